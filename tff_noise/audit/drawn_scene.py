"""Whether a run's scene is the one that its flags draw.

Flips of labels are a function of seed, client and place: who may choose which client gets which
example, or which labels it has, can choose them so that each flip keeps the true label. Then every
report is right, and all that an audit works out from the scene agrees with it.
"""

import numpy as np

from tff_noise import types
from tff_noise.audit import finding
from tff_noise.data import partition
from tff_noise.data import scene as scene_lib
from tff_noise.program import data
from tff_noise.program import effect
from tff_noise.program import run_config

_SCENE = 'scene: is the one that the flags draw'
# Where noise depends on images, another machine may round a few of its draws otherwise.
_ROUNDED = 1e-3
_IN_AN_ORDER_OF_WHO_BRINGS_THEM = ('npz', 'image_folder')


def check(
    config: run_config.RunConfig,
    dataset: types.Dataset,
    scene: scene_lib.Scene,
    same_code: bool,
) -> finding.Finding:
  """Draws the scene again and compares it.

  Args:
    config: The run's.
    dataset: What it names.
    scene: The run's.
    same_code: Whether this code made the run; other code may draw otherwise.
  """
  if config.scene is not None:
    return finding.no_evidence(
        _SCENE, 'it was given by --scene: nothing says how clients came to their examples'
    )
  try:
    drawn = data.load_scene(config, dataset, None)
  except types.UsageError as error:
    return finding.no_evidence(_SCENE, f'it cannot be drawn again ({type(error).__name__})')
  other = _different(scene, drawn, _ROUNDED if config.noise == 'instance' else 0.0)
  if not other and config.dataset in _IN_AN_ORDER_OF_WHO_BRINGS_THEM and _reports_labels(config):
    return finding.no_evidence(
        _SCENE, 'it is, but of data in an order of their owner: nothing says it was not chosen '
        'by which flips keep the labels'
    )
  if not other:
    return finding.passed(_SCENE, f'{len(scene.client_of)} examples of {scene.num_clients} clients')
  of_labels = config.noise == 'instance' and partition.splits_noisy_labels(config.partition)
  if of_labels and other in _FOLLOW_FROM_LABELS:
    return finding.no_evidence(
        _SCENE, f'{other} are others: they follow from labels that another machine may draw so'
    )
  found = finding.failed if same_code else finding.no_evidence
  return found(_SCENE, f'{other} are others' + ('' if same_code else ' by this code'))


def _reports_labels(config):
  """Whether labels leave clients flipped: then their epsilon is read."""
  return not effect.problem_of(config, 'label_epsilon')


def _different(scene, drawn, allowed):
  """What differs, '' if nothing does."""
  if len(scene.noisy_label) != len(drawn.noisy_label) or np.mean(
      scene.noisy_label != drawn.noisy_label
  ) > allowed:
    return 'labels'
  for name, words in _WORDS.items():
    if not _equal(getattr(scene, name), getattr(drawn, name)):
      return words
  return ''


_WORDS = {
    'clean_label': 'true labels',
    'client_names': "clients' names",
    'client_of': "clients' examples",
    'is_withheld': 'withheld examples',
    'nominal_rate': "clients' noise rates",
}
_FOLLOW_FROM_LABELS = frozenset(
    _WORDS[name] for name in ('client_of', 'is_withheld', 'nominal_rate')
)


def _equal(a, b):
  if a is None or b is None:
    return a is b
  a, b = np.asarray(a), np.asarray(b)
  if a.dtype.kind == 'f':
    return a.shape == b.shape and np.allclose(a, b, equal_nan=True)
  return np.array_equal(a, b)
