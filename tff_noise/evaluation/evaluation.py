"""How good a trained model is on examples."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_noise import types
from tff_noise.evaluation import examples as examples_lib
from tff_noise.models import images
from tff_noise.models import portable
from tff_noise.program import exported
from tff_noise.program import own_model
from tff_noise.program import quality
from tff_noise.program import run_directory
from tff_noise.program import trained_models
from tff_noise.report import runs

_BATCH_SIZE = 128

# A file that cannot be decoded, is not there, or may not be read.
_UNREADABLE = (
    tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.PermissionDeniedError
)


class Evaluation(NamedTuple):
  """What was found.

  Attributes:
    title: Of the page.
    about: Sentences: whose model it is, on what.
    where: On what: examples of ...
    class_names: K names.
    labels: int32 `[n]`, true classes; `types.UNKNOWN` where nobody knows.
    probabilities: float32 `[n, K]`.
    by_client: float64 `[C]`, see `quality.client_accuracy`; None on other data.
    client_names: C names; empty where clients have numbers alone.
    names: Of the examples: positions, or paths of files.
    models: Paths of the models, within the run directory.
  """

  title: str
  about: str
  where: str
  class_names: Sequence[str]
  labels: np.ndarray
  probabilities: np.ndarray
  by_client: np.ndarray | None
  client_names: Sequence[str]
  names: Sequence[str]
  models: Sequence[str]

  @property
  def confusion(self) -> np.ndarray:
    """int64 `[K, K]`, true classes by predicted ones."""
    return quality.confusion_matrix(
        self.labels, self.probabilities.argmax(1), len(self.class_names)
    )

  @property
  def is_labelled(self) -> bool:
    """Whether any true class is known."""
    return bool((self.labels != types.UNKNOWN).any())

  def numbers(self) -> dict[str, Any]:
    """Returns what was measured, as JSON has it."""
    found = {'about': self.about, 'examples': len(self.labels)}
    if not self.is_labelled:
      return found
    confusion = self.confusion
    found |= {
        'accuracy': float(np.trace(confusion) / confusion.sum()),
        'calibration_error': _numbers([
            quality.calibration(self.probabilities, self.labels).error
        ])[0],
        'accuracy_by_class': dict(zip(
            self.class_names, _numbers(quality.class_accuracy(confusion)), strict=True
        )),
    }
    if self.by_client is not None and np.isfinite(self.by_client).any():
      found |= {
          'mean_client_accuracy': float(np.nanmean(self.by_client)),
          'worst_tenth_client_accuracy': quality.worst_tenth(self.by_client),
          'accuracy_by_client': _numbers(self.by_client),
      }
      if self.client_names:
        found['client_names'] = list(self.client_names)
    return found

  def text(self) -> str:
    """Returns it in a few lines."""
    lines = [self.about]
    numbers = self.numbers()
    for name, title in (
        ('accuracy', 'accuracy'), ('calibration_error', 'expected calibration error'),
        ('mean_client_accuracy', 'mean accuracy of the clients'),
        ('worst_tenth_client_accuracy', 'of their worst tenth'),
    ):
      if numbers.get(name) is not None:
        lines.append(f'  {title:30} {numbers[name]:.4f}')
    for name, accuracy in numbers.get('accuracy_by_class', {}).items():
      lines.append(f'  {name:30} {"not tried" if accuracy is None else f"{accuracy:.4f}"}')
    return '\n'.join(lines)


def _numbers(values):
  """JSON has no nan."""
  return [None if np.isnan(value) else float(value) for value in values]


def evaluate(run: runs.Run, which: str, source: examples_lib.Source) -> Evaluation:
  """Evaluates a model of a run; writes it as a Keras model if it is not there.

  Args:
    run: It is finished.
    which: `model_files.FINAL` or `BEST`.
    source: On what.

  Raises:
    types.UsageError: If files are missing or damaged, or the data are not of the model's kind.
  """
  directory = run_directory.RunDirectory(run.path)
  saved = trained_models.load(directory, which)
  dataset, examples, names = examples_lib.load(run, source)
  own_model.load_code(directory, saved.models)
  models = [portable.build(trained) for trained in saved.models]
  probabilities = _predict(models, examples.x, dataset, run)
  scene = runs.read_scene(run)
  confusion = quality.confusion_matrix(examples.y, probabilities.argmax(1), dataset.num_classes)
  own = source.dataset is None and source.images is None
  several = f'{len(models)} models of clients, their probabilities averaged, ' if (
      len(models) > 1
  ) else ''
  return Evaluation(
      title=f'Evaluation of {run.name}',
      about=(
          f'Run {run.name}, {several}{which.replace("_", " ")}, round {saved.round_num}, on '
          f'{len(examples.y):,} examples of {source.where}.'
      ),
      where=source.where,
      class_names=dataset.class_names,
      labels=examples.y,
      probabilities=probabilities,
      by_client=quality.client_accuracy(confusion, scene) if own else None,
      client_names=scene.client_names,
      names=names,
      models=exported.write(directory),
  )


def _predict(models, x, dataset, run):
  """float32 `[n, K]`, the mean over models."""
  shape, classes = models[0].inputs[0].shape[1:], models[0].outputs[0].shape[1]
  if classes != dataset.num_classes:
    raise types.UsageError(
        f'{run.path} tells {classes} classes apart, the data have {dataset.num_classes}: give data '
        'of the same classes'
    )
  if x.dtype.kind == 'S' and len(shape) != 3:
    raise types.UsageError(
        f'{run.path} takes features of {tuple(shape)}, these are images: give data of the same kind'
    )
  if x.dtype.kind != 'S' and not shape.is_compatible_with(x.shape[1:]):
    raise types.UsageError(
        f'{run.path} takes images of {tuple(shape)}, these are {x.shape[1:]}: give data of the '
        'same shape'
    )

  @tf.function(autograph=False)
  def predict(batch):
    pixels = images.read(batch, tuple(shape))
    if batch.dtype == tf.string and dataset.largest_pixel != 255:
      scaled = tf.cast(pixels, tf.float32) * (dataset.largest_pixel / 255)
      pixels = tf.cast(tf.round(scaled), pixels.dtype)
    return tf.reduce_mean(tf.stack([model(pixels, training=False) for model in models]), 0)

  try:
    parts = [
        predict(tf.constant(x[i : i + _BATCH_SIZE])).numpy() for i in range(0, len(x), _BATCH_SIZE)
    ]
  except _UNREADABLE as error:
    if x.dtype.kind != 'S':
      raise
    raise types.UsageError(
        f'{_unreadable(x, tuple(shape))} is missing, or no JPEG or PNG that can be decoded: take '
        'it out of the data, or bring it back'
    ) from error
  return np.concatenate(parts)


def _unreadable(paths, shape):
  """The first file that cannot be read; decoders do not say which."""
  for path in paths:
    try:
      images.read(tf.constant([path]), shape)
    except _UNREADABLE:
      return os.fsdecode(path)
  return 'one of the images'
