"""Which flags a run reads: one that was given and has no effect misleads who gave it."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tff_noise import params as params_lib
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.program import run_config

# What a scene fixes.
_DRAWN = (
    'clients', 'validation_fraction', 'client_validation_fraction', 'partition', 'partition_p',
    'partition_alpha', 'partition_min_size', 'openset_q', 'noise', 'noise_rate', 'noise_rho',
    'noise_tau', 'noise_semantics', 'noise_matrix', 'human_labels',
)


class _Condition(NamedTuple):
  """On which a flag is read.

  Attributes:
    holds: Of a configuration.
    text: The flags that make it hold.
  """

  holds: Callable[[run_config.RunConfig], bool]
  text: str


def _one_of(flag, *values):
  return _Condition(lambda c: getattr(c, flag) in values, f'--{flag}={" or ".join(values)}')


def _not(flag, value):
  return _Condition(lambda c: getattr(c, flag) != value, f'another --{flag} than {value}')


def _given(flag):
  return _Condition(lambda c: getattr(c, flag) not in (None, '', ()), f'--{flag}')


def _methods(chosen):
  """The methods of this package whose entries are chosen."""
  return '--method=' + ' or '.join(n for n, e in catalog.ALGORITHMS.items() if chosen(e))


def _both(first, second):
  return _Condition(
      lambda c: first.holds(c) and second.holds(c), f'{first.text} with {second.text}'
  )


def _averages(config):
  return catalog.entry(config.method).averages_models


_SINGLE_RATE = _one_of(
    'noise', 'symmetric', 'random', 'pairflip', 'asymmetric', 'instance', 'client_symmetric'
)
_CLIENT_DP = _Condition(
    lambda c: c.client_dp_noise > 0 or c.target_client_epsilon is not None,
    '--client_dp_noise or --target_client_epsilon',
)
_HISTOGRAM = _Condition(
    lambda c: catalog.entry(c.method).reports_labels,
    _methods(lambda entry: entry.reports_labels),
)
_REPORTS = _Condition(
    lambda c: c.training_labels == 'private' or (
        _HISTOGRAM.holds(c) and c.label_prior not in ('none', 'uniform')
    ),
    f'--training_labels=private, or {_HISTOGRAM.text} with a --label_prior that is estimated from '
    'reports,',
)
_PUBLIC = _Condition(
    # A method of one's own may look at them.
    lambda c: catalog.entry(c.method).uses_public or ':' in c.method,
    _methods(lambda entry: entry.uses_public),
)
_READ: Mapping[str, _Condition] = {
    'data_dir': _Condition(
        lambda c: c.dataset != 'digits' or (
            _PUBLIC.holds(c) and c.public_dataset is not None and not c.public_dir
        ),
        'a --dataset that is not built in, or a --public_dataset without --public_dir,',
    ),
    'public_dataset': _PUBLIC,
    'public_dir': _both(_PUBLIC, _not('public_dataset', 'digits')),
    'public_examples': _both(_PUBLIC, _given('public_dataset')),
    'model': _Condition(
        lambda c: not getattr(c.method_params(), 'architectures', ''),
        'a run without --param=architectures',
    ),
    'norm': _not('model', 'vit_tiny'),
    'clients': _not('partition', 'natural'),
    'partition_p': _one_of('partition', 'bernoulli_dirichlet'),
    'partition_alpha': _one_of('partition', 'bernoulli_dirichlet', 'dirichlet'),
    'openset_q': _one_of('partition', 'openset_uniform', 'openset_dirichlet'),
    'noise_rate': _SINGLE_RATE,
    'noise_rho': _one_of('noise', 'client_uniform', 'client_symmetric'),
    'noise_tau': _one_of('noise', 'client_uniform'),
    'noise_semantics': _one_of('noise', 'client_uniform'),
    'noise_matrix': _one_of('noise', 'matrix'),
    'aggregation': _Condition(
        lambda c: ':' not in c.aggregation or _averages(c), 'a --method that averages models',
    ),
    'momentum': _one_of('local_optimizer', 'sgd'),
    'update_bound': _Condition(
        lambda c: c.aggregation == 'secure_sum' and _averages(c) and not _CLIENT_DP.holds(c),
        '--aggregation=secure_sum without client DP, by a --method that averages models,',
    ),
    'temperature_reading': _not('temperature', 1.0),
    'label_prior': _HISTOGRAM,
    'label_epsilon': _REPORTS,
    'client_dp_clip': _CLIENT_DP,
    'client_dp_mechanism': _CLIENT_DP,
    'noise_source': _CLIENT_DP,
    'max_concurrent_clients': _one_of('runtime', 'local', 'accelerator'),
}


def check(config: run_config.RunConfig, given: Iterable[str]) -> None:
  """Raises `UsageError` if one of the flags that were `given` changes nothing."""
  given = list(given)
  check_drawn(config, given)
  for problem in (problem_of(config, name) for name in given):
    if problem:
      raise types.UsageError(problem)


def check_parameters(
    config: run_config.RunConfig, param: Iterable[str], base_param: Iterable[str]
) -> None:
  """Raises `UsageError` if one of the parameters that were given changes nothing.

  Args:
    config: The flags.
    param: The texts of --param among them that were given.
    base_param: Those of --base_param.
  """
  given = {*_as_flags('param', param), *_as_flags('base_param', base_param)}
  for flag, reader in unread_parameters(config).items():
    if flag in given:
      raise types.UsageError(as_text(flag, reader))


def as_text(flag: str, reader: str) -> str:
  """Returns what to do about an item of `unread_parameters`."""
  return f'{flag} has no effect here: {reader} would read it; give that, or leave {flag} out'


def unread_parameters(config: run_config.RunConfig) -> dict[str, str]:
  """Returns what parameters change nothing, as `--param=NAME=VALUE`, and what would read each."""
  found = {}
  for flag, params in (('param', config.method_params()), ('base_param', config.base_params())):
    texts = getattr(config, flag)
    unread_texts = params_lib.unread(params, texts) if texts else {}
    found |= zip(_as_flags(flag, unread_texts), unread_texts.values(), strict=True)
  entry = catalog.entry(config.method)
  for text in config.param:
    stage = entry.stage_of_param.get(text.partition('=')[0])
    if stage in config.stage_lengths():
      found[f'--param={text}'] = f'--stages without {stage}'
  return found


def _as_flags(name, texts):
  return [f'--{name}={text}' for text in texts]


def problem_of(config: run_config.RunConfig, name: str) -> str:
  """Returns why a flag changes nothing, and what to do; '' if it does."""
  condition = _READ.get(name)
  if condition is None or condition.holds(config):
    return ''
  return as_text(f'--{name}', condition.text)


def unread(config: run_config.RunConfig) -> set[str]:
  """Returns the names of the flags that change nothing, whatever their values."""
  drawn = _DRAWN if config.scene is not None else ()
  return {*drawn, *(name for name in _READ if problem_of(config, name))}


def check_drawn(config: run_config.RunConfig, given: Iterable[str]) -> None:
  """Raises `UsageError` if some of the flags that were `given` are about what a scene fixes."""
  ignored = [f'--{name}' for name in _DRAWN if name in given and config.scene is not None]
  if ignored:
    raise types.UsageError(
        f'{", ".join(ignored)} cannot be given with --scene, which fixes them: leave them out'
    )
