"""The images that the server has, which no claim of privacy holds for."""

import hashlib

import numpy as np

from tff_noise import types
from tff_noise.data import scene as scene_lib


def require_apart(dataset: types.Dataset, scene: scene_lib.Scene) -> None:
  """Raises `UsageError` where images of clients are among those that the server has besides.

  Those of `--validation_dir` and `--public_dataset`, compared byte by byte: that of which the
  server has another version is not noticed.

  Args:
    dataset: What the scene is of.
    scene: Who holds what.
  """
  validation = dataset.validation.x if dataset.validation is not None else None
  for flag, images in (('--validation_dir', validation), ('--public_dataset', dataset.public)):
    if images is None:
      continue
    held = _digests(dataset.train_x[scene.client_of != scene_lib.SERVER])
    known = len(held & _digests(images))
    if known:
      raise types.UsageError(
          f'{flag}: {known} of its images are images of clients, which reports of labels '
          '(--label_epsilon), --training_labels=private and --client_dp_noise claim to protect '
          'from the server: take others'
      )


def _digests(images: np.ndarray) -> set[bytes]:
  contents = map(_read, images) if images.dtype.kind == 'S' else (i.tobytes() for i in images)
  return {hashlib.blake2b(content, digest_size=16).digest() for content in contents}


def _read(path):
  with open(path, 'rb') as file:
    return file.read()
