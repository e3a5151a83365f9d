"""Types that every layer shares. Imports nothing heavier than NumPy."""

from typing import NamedTuple

import numpy as np


class UsageError(ValueError):
  """A mistake of the person at the keyboard: shown as one line, exit status 2."""


class Dataset(NamedTuple):
  """A classification data set as it lies on disk, before any partition or label noise.

  Attributes:
    name: The name of the data set.
    train_x: uint8 `[n, height, width, channels]`, raw pixels.
    train_y: int32 `[n]` in `[0, num_classes)`, the clean labels.
    test_x: uint8 `[m, height, width, channels]`.
    test_y: int32 `[m]`, clean.
    num_classes: K.
    pixel_scale: The factor that takes a raw pixel to the model's input; the model applies it, so
      that bytes and not floats travel to the clients' computation.
  """

  name: str
  train_x: np.ndarray
  train_y: np.ndarray
  test_x: np.ndarray
  test_y: np.ndarray
  num_classes: int
  pixel_scale: float


class ClientExamples(NamedTuple):
  """What one client holds. Ground truth is absent by design.

  Attributes:
    x: uint8 `[n_c, ...]`.
    y: int32 `[n_c]`, the (noisy) labels the client believes.
    example_id: int64 `[n_c]`, position in the data set; the key of memoised label reports.
  """

  x: np.ndarray
  y: np.ndarray
  example_id: np.ndarray


class Federation(NamedTuple):
  """The simulated population of clients: the only data a method ever sees.

  Attributes:
    clients: One entry per client, indexed by client id.
    num_classes: K.
    seed: The experiment's seed, from which all randomness is derived.
  """

  clients: tuple[ClientExamples, ...]
  num_classes: int
  seed: int

  @property
  def sizes(self) -> np.ndarray:
    """int64 `[num_clients]`, the number of examples of each client (n_c)."""
    return np.array([len(c.y) for c in self.clients], np.int64)


class LocalTraining(NamedTuple):
  """Local training, the same flags for every method.

  Attributes:
    epochs: E.
    batch_size: B.
    learning_rate: Step size of local SGD.
    momentum: Its momentum, in [0, 1).
    weight_decay: L2 coefficient added to the gradient.
  """

  epochs: int = 5
  batch_size: int = 32
  learning_rate: float = 0.1
  momentum: float = 0.0
  weight_decay: float = 0.0
