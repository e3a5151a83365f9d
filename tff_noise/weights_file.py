"""Where files of pre-trained weights are."""

import os

from tff_noise import types


def require(path: str) -> None:
  """Raises `UsageError` unless `path` is a file or the prefix of a TensorFlow checkpoint."""
  if not is_checkpoint(path) and not os.path.exists(path):
    raise types.UsageError(
        f'there is no weights file {path}: give a Keras H5 file or the prefix of a TensorFlow '
        'checkpoint (its path without .index)'
    )


def is_checkpoint(path: str) -> bool:
  """Whether `path` is the prefix of a TensorFlow checkpoint."""
  return os.path.isfile(path + '.index')
