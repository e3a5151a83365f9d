"""The command line: plain absl flags, grouped, read into a `RunConfig`.

Imports no TensorFlow, so that `--help` and mistakes are answered at once.
"""

import dataclasses
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from tff_noise import params as params_lib
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.optimizers import catalog as optimizers
from tff_noise.program import command_line
from tff_noise.program import effect
from tff_noise.program import run_config

# Not absl's global flags: a program that imports this module may have a --help of its own.
_FLAGS = flags.FlagValues()
_GROUPS: dict[str, list[str]] = {}


def _define(group, define, name, default, text):
  define(name, default, text, flag_values=_FLAGS)
  _GROUPS.setdefault(group, []).append(name)


def _define_all():
  """Defines every flag; ranges are checked in one place, `RunConfig`."""
  text, integer, real, boolean = (
      flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_float, flags.DEFINE_boolean,
  )
  for group, define, name, default, doc in (
      ('What', text, 'method', 'feddpcont',
       'Method: ' + ', '.join(catalog.ALGORITHMS)
       + '; or one of your own, package.module:ENTRY, see CONTRIBUTING.md.'),
      ('What', flags.DEFINE_multi_string, 'param', [],
       'NAME=VALUE, a parameter of the method, see --list_methods.'),
      ('What', text, 'base', '',
       'Federated optimizer that the method runs on ('
       + ', '.join(name for name, entry in catalog.ALGORITHMS.items() if entry.takes_base)
       + '; fedcorr in its last stage): ' + ', '.join(optimizers.OPTIMIZERS)
       + '; empty for FedAvg.'),
      ('What', flags.DEFINE_multi_string, 'base_param', [],
       'NAME=VALUE, a parameter of the optimizer that --base names.'),
      ('What', text, 'stages', None,
       'NAME:LENGTH,..., lengths of the stages of a method that has them, such as '
       'preprocess:5,finetune:50,usual:45 of fedcorr (iterations, rounds, rounds); 0 skips one.'),
      ('What', boolean, 'allow_per_client_disclosure', False,
       'Allow a method that shows the server values of single clients.'),
      ('What', boolean, 'list_methods', False, 'List the methods and their parameters, and stop.'),
      ('What', boolean, 'help', False, 'Show this help, and stop.'),
      ('Data', text, 'dataset', 'digits',
       "digits (built in: scikit-learn's 1,797 8x8 scans); cifar10, cifar100 (standard binary or "
       'Python layout); cifar10n, cifar100n (with human labels); clothing1m; image_folder '
       '(train/CLASS/*.jpg and test/CLASS/*.jpg); npz (x, images or features, y, and if you like '
       'clean_y, client, x_test, y_test).'),
      ('Data', text, 'data_dir', None, 'Where its files are; nothing is downloaded.'),
      ('Data', text, 'human_labels', '',
       'Which human labels: worse (default), aggre, random1, random2, random3 of cifar10n; fine of '
       'cifar100n.'),
      ('Data', integer, 'subset', 0,
       'For quick tries: so many of the training examples, always the same; 0 for all.'),
      ('Data', real, 'validation_fraction', 0.0,
       'Share of the training examples that the server holds out, with clean labels, in [0, 1).'),
      ('Data', text, 'validation_dir', None,
       "Or the server's own clean images, a folder for each class."),
      ('Data', real, 'client_validation_fraction', 0.0,
       'Share of its examples that each client withholds from training, with the labels that it '
       'believes, in [0, 1): accuracy on them, by sums over clients, chooses the best round and '
       'stops early where there are no clean labels.'),
      ('Data', text, 'public_dataset', None,
       'Data set whose images, without labels, the server and all clients know; for rhfl.'),
      ('Data', text, 'public_dir', None, 'Where its files are; --data_dir if not given.'),
      ('Data', integer, 'public_examples', 5000, 'How many of its images, at most.'),
      ('Data', integer, 'clients', 20, 'Number of clients.'),
      ('Data', text, 'partition', 'openset_uniform',
       'Who holds what: iid; bernoulli_dirichlet (FedCorr, 3.1); dirichlet; openset_uniform, '
       'openset_dirichlet (FedDPCont, 3.3); natural (the data have a client column).'),
      ('Data', real, 'partition_p', 0.7,
       'p, probability that a client holds a class, in (0, 1]; bernoulli_dirichlet.'),
      ('Data', real, 'partition_alpha', 1.0,
       'alpha, positive: the smaller, the more uneven; bernoulli_dirichlet and dirichlet.'),
      ('Data', integer, 'partition_min_size', 1, 'Examples that every client has at least.'),
      ('Data', text, 'openset_q', '0.5',
       'Q, probability that a client knows a class: a number in (0, 1), or a file (.npy, .csv) '
       'with one for each class, or for each client and class.'),
      ('Data', text, 'scene', None,
       'Use the scene.npz of another run or of bin/scene instead of drawing clients and noise.'),
      ('Data', boolean, 'centralised', False,
       'One client holds what all of them hold, with the same labels: learning without a '
       'federation. Needs --clients_per_round=1.'),
      ('Label noise', text, 'noise', 'symmetric',
       'none; symmetric, random (FedDPCont, 5.2); pairflip; asymmetric (similar classes); instance '
       "(Xia et al. 2020); matrix (--noise_matrix); human (the data set's own); client_uniform "
       "(FedCorr's rho, tau); client_symmetric (ClipFL's rho, mu)."),
      ('Label noise', real, 'noise_rate', 0.4,
       'eta, the share of wrong labels; mu of a noisy client for client_symmetric; in [0, 1].'),
      ('Label noise', real, 'noise_rho', 0.6, 'rho, the share of noisy clients, in [0, 1].'),
      ('Label noise', real, 'noise_tau', 0.5,
       'tau, the least noise of a noisy client of client_uniform, in [0, 1).'),
      ('Label noise', text, 'noise_semantics', 'paper',
       'client_uniform: paper changes exactly mu * n labels of a client, reference (its public '
       'code) each label with probability mu.'),
      ('Label noise', text, 'noise_matrix', None,
       'A K x K matrix (.npy, .csv): row i has the probabilities of the labels of class i.'),
      ('Model', text, 'model', 'mlp',
       'mlp, cnn, resnet18, resnet34 (3x3 stem), resnet50, vit_tiny; or one of your own, '
       'package.module:function, called as those of tff_noise/models/architectures.py.'),
      ('Model', text, 'norm', 'group',
       'group or batch; batch statistics are averaged with the weights.'),
      ('Model', integer, 'image_size', 0,
       'Height and width to which images are brought before the model; 0 keeps them (224 for image '
       'files).'),
      ('Model', text, 'weights', None,
       'Pre-trained weights to start from: a Keras .h5 file or a TensorFlow checkpoint.'),
      ('Training', integer, 'rounds', 100,
       'R, communication rounds of --clients_per_round clients. A stage whose rounds have fewer '
       "clients (FedCorr's pre-processing: one by one) has as many more rounds in their place."),
      ('Training', integer, 'early_stopping', 0,
       'End the run after so many evaluations of its last stage without a better validation '
       'accuracy; 0 for never.'),
      ('Training', real, 'average_models', 0.0,
       'b in [0, 1): evaluate the mean of the models so far, theta <- b theta + (1 - b) w after '
       'each round, in place of the last; 0 for the last. Training is the same. In round t of a '
       'stage it is t / (t + 4) at most, so that .8 holds from round 16 on, .9 from 36.'),
      ('Training', integer, 'clients_per_round', 10, 'Clients drawn in each round.'),
      ('Training', text, 'client_sampling', 'fixed',
       'fixed: cohorts of this size, drawn uniformly; poisson: each client takes part by itself, '
       'so that cohorts have this size on average, and may be empty (needs --client_dp_noise); '
       'cyclic: they have turns, in an order that is drawn once and need not be kept secret.'),
      ('Training', text, 'arrivals', None,
       'Clients that join late or drop out: a CSV file with the columns client (its name, or '
       'number from 0), joins, leaves (rounds), or uniform:SHARE:LAST_ROUND.'),
      ('Training', integer, 'local_epochs', 5, 'E, passes over the local data in a round.'),
      ('Training', integer, 'batch_size', 32, 'B.'),
      ('Training', real, 'learning_rate', 0.1, 'Step size of local SGD.'),
      ('Training', text, 'learning_rate_schedule', 'constant',
       'How it changes over the rounds: constant; exponential:0.99, times 0.99 after each round; '
       'steps:0.1:60,80, times 0.1 after rounds 60 and 80; cosine:100, down to next to nothing in '
       'round 100.'),
      ('Training', text, 'local_optimizer', 'sgd',
       'sgd, or adam with its usual constants, anew in each round; --weight_decay is added to the '
       'gradient of either.'),
      ('Training', real, 'momentum', 0.0, 'Of local SGD, in [0, 1).'),
      ('Training', real, 'weight_decay', 0.0, 'L2 coefficient of local training.'),
      ('Training', text, 'aggregation', 'mean',
       'mean, by plain sums; secure_sum, by secure sums of clipped and quantised updates; or '
       "package.module:function that returns one of TFF's aggregation factories, such as "
       'tensorflow_federated.python.learning:robust_aggregator; what that gives is taken for the '
       'mean of updates, of which a factory of plain sums gives as many times as there are '
       'clients.'),
      ('Training', real, 'update_bound', 1.0,
       'What is summed, the entries of an update times its client\'s examples, is clipped to +- '
       'this bound times the most examples of a client; secure_sum only.'),
      ('Training', text, 'augmentation', 'none',
       'none, or crop_flip: random shifts by up to 4 pixels, and mirroring.'),
      ('Training', real, 'label_smoothing', 0.0, 'Of cross-entropy, in [0, 1); ClipFL: 0.1.'),
      ('Training', real, 'temperature', 1.0, 'Of the softmax in training; ClipFL: 10.'),
      ('Training', text, 'temperature_reading', 'divide',
       'divide: logits are divided by the temperature T; rescale: and the loss multiplied by T^2, '
       'so that gradients keep their size. ClipFL does not say which.'),
      ('Training', real, 'mixup_alpha', 0.0,
       'Blend each image with another of its batch, by a share drawn from Beta(alpha, alpha); 0 '
       'for none, else at least 0.05. For methods whose clients train by a loss of logits and '
       'labels alone: fedavg and the other optimizers, gce, sce, clipfl.'),
      ('Training', real, 'logit_adjustment', 0.0,
       'tau: each client trains on logits (divided by the temperature) + tau log(K pi), pi the '
       'shares of its labels, (n_k + 1) / (n + K); 0 for none. For the same methods.'),
      ('Training', integer, 'seed', 0, 'All randomness is a function of it.'),
      ('Privacy', text, 'label_epsilon', '0.81',
       'epsilon of the label reports, a positive decimal number.'),
      ('Privacy', text, 'label_prior', 'shrinkage',
       'How the label distribution is recovered: inverse (the paper), projected, shrinkage; none: '
       'labels are counted unflipped, without any privacy; uniform: no labels are asked for.'),
      ('Privacy', text, 'training_labels', 'local',
       'local, or private: clients train on their flipped reports alone, with a loss that knows '
       'the flips, so that --label_epsilon holds for the whole run.'),
      ('Privacy', real, 'client_dp_noise', 0.0,
       'DP-FedAvg: standard deviation of the noise on the sum of updates, in units of '
       '--client_dp_clip; 0 for none. In rounds clients then send nothing but updates.'),
      ('Privacy', real, 'client_dp_clip', 1.0, 'The norm that each update is cut to.'),
      ('Privacy', text, 'client_dp_mechanism', 'gaussian',
       'gaussian: noise in floating point, added by the server, which is not the noise in real '
       'numbers that its epsilon is about; discrete_gaussian: noise in integers, of which each '
       'client adds its share; tree (DP-FTRL; needs --client_sampling=cyclic): as gaussian, but '
       'on sums over rounds, so that little of it is in the sum over all of them.'),
      ('Privacy', real, 'target_client_epsilon', None,
       'epsilon of a client at delta 1e-5 that the run has to stay within. Alone: the least '
       '--client_dp_noise is taken that allows all rounds. With --client_dp_noise: the run ends '
       'before the round that would pass it.'),
      ('Privacy', text, 'noise_source', 'seed',
       'Of the noise on updates. seed: runs can be repeated, and who knows the seed can subtract '
       'it; system: the system\'s cryptographic generator, its key kept in the run directory.'),
      ('Privacy', boolean, 'debug_client_errors', False,
       "Show what TensorFlow says where a client's computation fails, which may hold the client's "
       'data: the run then claims no privacy at all.'),
      ('Runtime', text, 'runtime', 'local',
       "local: TFF's worker, started by this program; remote: workers that bin/worker started; "
       'accelerator: the TensorFlow of this program, which uses a GPU where it sees one.'),
      ('Runtime', flags.DEFINE_list, 'workers', [], 'HOST:PORT,... of the remote workers.'),
      ('Runtime', integer, 'max_concurrent_clients', None,
       'Clients computed at the same time; memory grows with it. By default as many as cores, '
       'since operations have one thread each, and 2 with --runtime=accelerator. For remote '
       'workers it is a flag of bin/worker.'),
      ('Runtime', boolean, 'mixed_precision', False,
       'Compute in bfloat16 with float32 weights: slower on most CPUs; for GPUs see '
       'docs/runtimes.md.'),
      ('Run', text, 'root_dir', 'runs', 'Folder of run directories.'),
      ('Run', text, 'run_name', None,
       'Name of the run directory; by default made of method, data, seed and the other flags.'),
      ('Run', boolean, 'resume', True,
       'Continue a run that is there; --noresume refuses to touch it.'),
      ('Run', boolean, 'resume_other_code', False,
       'Continue it though its code has changed: what it released since the last checkpoint counts '
       'again, reports of labels have no guarantee any more, and its ledger and audits tell.'),
      ('Run', boolean, 'overwrite', False,
       'Begin it anew, and remove what is there, its ledger too, once the new one is known to '
       'begin.'),
      ('Run', text, 'extend', None,
       'The directory of a finished run with the same flags but fewer --rounds, whose rounds the '
       'new run takes over; for methods that do not plan their rounds, without noise on updates. '
       'One in --root_dir is found by itself, unless either has a --run_name.'),
      ('Run', text, 'log_level', 'info',
       'quiet: no progress; info: a bar, or a line now and then; debug: a line for each round, '
       'and what TensorFlow and TFF tell.'),
      ('Run', integer, 'eval_every', 1,
       'Rounds of a stage between evaluations on the test set, and on the validation set where '
       'there is one; a stage ends with one. Of FedCorr\'s pre-processing, iterations.'),
      ('Run', integer, 'checkpoint_every', 5, 'Rounds between checkpoints.'),
      ('Run', text, 'metrics_hook', None,
       'package.module:function of your own, from the run\'s directory and flags to what is called '
       'with the metrics of each round, by name, and its number: W&B, MLflow, ... See '
       'docs/examples/metrics_hook.py.'),
  ):
    _define(group, define, name, default, doc)


_define_all()
# What the server has besides what clients' examples are drawn from.
_OF_THE_SERVER = ('validation_dir', 'public_dataset', 'public_dir', 'public_examples')
# What the data and who holds them depend on.
OF_A_SCENE = tuple(
    name for name in (*_GROUPS['Data'], *_GROUPS['Label noise'], 'image_size', 'seed')
    if name not in _OF_THE_SERVER
)


def parse(argv: Sequence[str]) -> flags.FlagValues:
  """Parses `argv` (program name first) and returns the flag values.

  Raises:
    types.UsageError: For an unknown flag, a value of the wrong type or a stray argument.
  """
  return command_line.parse(_FLAGS, argv)[0]


def config_from(values: flags.FlagValues) -> run_config.RunConfig:
  """Returns the run's configuration.

  Raises:
    types.UsageError: If a value is out of range.
  """
  named = {f.name: values[f.name].value for f in dataclasses.fields(run_config.RunConfig)}
  lists = {name: _last_of_each(named[name]) for name in ('param', 'base_param')}
  lists['workers'] = tuple(named['workers'])
  config = run_config.RunConfig(**{**named, **lists})
  if config.target_client_epsilon is None:
    return config
  from tff_noise.program import client_noise  # The accountant takes a second to load.

  return client_noise.with_least_noise(config)


def config_of_run(identity: Mapping[str, Any]) -> run_config.RunConfig:
  """Returns the configuration of a run from the flags in its `config.json`.

  How a run is executed, which changes no result, is as by default; so are flags that came later.

  Raises:
    types.UsageError: If the run has flags that this version does not know.
  """
  gone = sorted(identity.keys() - defaults().keys())
  if gone:
    raise types.UsageError(
        f'the run has flags that this version does not know, {", ".join(gone)}: use the one that '
        'made it, see config.json'
    )
  flags_ = {
      k: tuple(v) if isinstance(v, list) else v for k, v in {**defaults(), **identity}.items()
  }
  return run_config.RunConfig(**flags_, **config_from(parse(['run'])).execution())


def defaults() -> dict[str, Any]:
  """Returns what the flags that determine a result are where nobody gives them, as JSON has it."""
  return config_from(parse(['run'])).identity()


def config_of_command_line(
    argv: Sequence[str], own: Sequence[str] | None = None
) -> run_config.RunConfig:
  """Returns the configuration that a user asks for, and says on stderr what is not taken of it.

  Args:
    argv: The command line, program name first.
    own: The same without what comes from files of flags, if these were read already.

  Raises:
    types.UsageError: If a value is out of range, or a flag has no effect that is given on the
      command line itself: a file of flags may be for several kinds of runs.
  """
  own = own or without_files(argv)
  values, asked_for = parse(argv), parse(own)
  config = config_from(values)
  for name in given(own):
    if asked_for[name].present > 1 and name not in repeated():
      print(
          f'flags: --{name} is given {asked_for[name].present} times; the last, '
          f'{_as_text(asked_for[name].value)}, holds', file=sys.stderr,
      )
    for again in _overridden(asked_for[name].value) if name in repeated() else ():
      print(f'flags: --{name}={again} is given again; the last holds', file=sys.stderr)
    asked, taken = (_as_taken(v[name].value) for v in (asked_for, values))
    if asked != taken and not (isinstance(asked, tuple) and set(asked) <= set(taken)):
      print(
          f'flags: a --flagfile that comes later on the command line changes --{name} from '
          f'{_as_text(asked)} to {_as_text(taken)}', file=sys.stderr,
      )
  effect.check(config, given(own))
  effect.check_parameters(config, asked_for['param'].value, asked_for['base_param'].value)
  return config


def given(argv: Sequence[str]) -> list[str]:
  """Returns the names of the flags on the command line, in the order of `--help`."""
  values = parse(argv)
  return [name for names in _GROUPS.values() for name in names if values[name].present]


def repeated() -> frozenset[str]:
  """Returns the names of the flags that may be given several times."""
  return frozenset(n for n in _FLAGS if isinstance(_FLAGS[n], flags.MultiFlag))


def without_files(argv: Sequence[str]) -> list[str]:
  """Returns the command line but for the files of flags."""
  kept, words = [], iter(argv)
  for word in words:
    name = word.lstrip('-').partition('=')[0]
    if not word.startswith('-') or name != 'flagfile':
      kept.append(word)
    elif '=' not in word:
      next(words, None)
  return kept


def _as_taken(value):
  return _last_of_each(value) if isinstance(value, list) else value


def _as_text(value):
  return ' '.join(value) if isinstance(value, tuple) else value


def _last_of_each(assignments):
  """Later ones win, as later flags do: a file's can be overridden."""
  return tuple({text.partition('=')[0]: text for text in assignments}.values())


def _overridden(assignments):
  """Those that a later one of the same name takes the place of."""
  return [text for text in assignments if text not in _last_of_each(assignments)]


def help_text() -> str:
  """Returns the text of `--help`."""
  lines = [
      'Trains a federated method on noisy labels in a TensorFlow Federated simulation.',
      '',
      '  ./bazelw run //bin:train -- --method=feddpcont --noise=symmetric --noise_rate=0.4',
      '',
      'Flags may also come from a file: --flagfile=configs/NAME.flags (later flags win).',
  ]
  for group, names in _GROUPS.items():
    lines += ['', f'{group}:']
    for name in names:
      lines += command_line.help_lines(_FLAGS[name])
  return '\n'.join(lines)


def methods_text() -> str:
  """Returns the text of `--list_methods`."""
  lines = []
  for name, method in catalog.ALGORITHMS.items():
    lines += [name, f'  {method.title}', f'  {method.paper}']
    meanings = params_lib.meanings(method.params)
    for field in dataclasses.fields(method.params):
      lines.append(f'  --param={field.name}={field.default}')
      meaning = meanings.get(field.name, '')
      lines += textwrap.wrap(meaning, 92, initial_indent=' ' * 6, subsequent_indent=' ' * 6)
    if method.stages:
      lines.append(f'  --stages={",".join(f"{stage}:LENGTH" for stage in method.stages)}')
    lines.append('')
  return '\n'.join(lines).rstrip()
