"""Types that every layer shares. Imports nothing heavier than NumPy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# TFF refuses to carry more than 100 MiB as one data set; the rest is labels and packing.
MAX_PIXEL_BYTES = 99 * 2**20
# How JPEG and PNG files begin.
IMAGE_SIGNATURES = (b'\xff\xd8\xff', b'\x89PNG')
MAX_FLOAT32 = float(np.finfo(np.float32).max)


class UsageError(ValueError):
  """A mistake of the person at the keyboard: shown as one line, exit status 2."""


class RunError(RuntimeError):
  """What ends a run that was asked for rightly: shown as one line, exit status 1."""


# The label of an example whose true class nobody knows.
UNKNOWN = -1


class Examples(NamedTuple):
  """Labelled examples.

  Attributes:
    x: As `Dataset.train_x`.
    y: int32 `[n]`.
  """

  x: np.ndarray
  y: np.ndarray


class Dataset(NamedTuple):
  """A classification data set as it lies on disk, before any partition or label noise.

  Attributes:
    name: The name of the data set.
    train_x: uint8 `[n, height, width, channels]`, raw pixels; or float32 `[n, d]`, features; or
      bytes `[n]` (NumPy kind `S`), the absolute paths of JPEG or PNG files, which are read where a
      client computes.
    train_y: int32 `[n]` in `[0, num_classes)`, the clean labels; `UNKNOWN` where nobody knows.
    test_x: As `train_x`, `m` of them.
    test_y: int32 `[m]`, clean.
    num_classes: K.
    image_shape: (height, width, channels), image files are brought to it; of features (d,).
    pixel_scale: With `pixel_offset`, what takes a raw pixel to the model's input: `x * scale +
      offset`. One number, or one for each channel. The model applies it, so that bytes and not
      floats travel to the clients' computation.
    pixel_offset: See `pixel_scale`.
    class_names: K names.
    human_y: int32 `[n]`, what people called the examples, where that is known; or None.
    client: int32 `[n]` in `[0, C)`, every client having an example, who holds the examples by
      nature; or None.
    client_names: C texts, what the data call these clients; empty where they are called 0 to C-1,
      or nobody knows who holds what.
    similar_class: K classes, what each class is taken for in asymmetric noise (itself where it is
      not confused); or None where no such map is published.
    validation: A clean set at the server that is not part of the training data; or None.
    public: Images that the server and all clients know, as `train_x`, without labels; or None.
    largest_pixel: Of the scale that raw pixels are on; files of images have 255.
    train_rows: int64 `[n]`, where each training example lies among those that the files have; None
      where they are all, in order.
    test_rows: int64 `[m]`, likewise.
  """

  name: str
  train_x: np.ndarray
  train_y: np.ndarray
  test_x: np.ndarray
  test_y: np.ndarray
  num_classes: int
  image_shape: tuple[int, ...]
  pixel_scale: float | tuple[float, ...]
  pixel_offset: float | tuple[float, ...]
  class_names: tuple[str, ...]
  human_y: np.ndarray | None = None
  client: np.ndarray | None = None
  client_names: tuple[str, ...] = ()
  similar_class: tuple[int, ...] | None = None
  validation: Examples | None = None
  public: np.ndarray | None = None
  largest_pixel: int = 255
  train_rows: np.ndarray | None = None
  test_rows: np.ndarray | None = None

  def without_examples(self) -> Dataset:
    """Returns what kind of images and classes these are, and none of them."""
    x = np.zeros((0, *self.train_x.shape[1:]), self.train_x.dtype)
    y = np.zeros(0, np.int32)
    return self._replace(
        train_x=x, train_y=y, test_x=x, test_y=y, human_y=None, client=None, validation=None,
        public=None, train_rows=None, test_rows=None,
    )


class ClientExamples(NamedTuple):
  """What one client holds. Ground truth is absent by design.

  Attributes:
    x: Of its examples, as `Dataset.train_x`.
    y: int32 `[n_c]`, the (noisy) labels the client believes.
    example_id: int64 `[n_c]`, position in the data set; the key of memoised label reports.
  """

  x: np.ndarray
  y: np.ndarray
  example_id: np.ndarray


class Federation(NamedTuple):
  """The simulated population of clients: the only data a method ever sees.

  Attributes:
    clients: What each client trains on, indexed by client id.
    num_classes: K.
    seed: The experiment's seed, from which all randomness is derived.
    withheld: What each client validates models with and does not train on, likewise; some may be
      empty. `()` where no client withholds any.
    client_names: C texts, what the data call the clients; empty where they are called 0 to C-1.
  """

  clients: tuple[ClientExamples, ...]
  num_classes: int
  seed: int
  withheld: tuple[ClientExamples, ...] = ()
  client_names: tuple[str, ...] = ()

  @property
  def sizes(self) -> np.ndarray:
    """int64 `[num_clients]`, the number of examples of each client (n_c)."""
    return np.array([len(c.y) for c in self.clients], np.int64)


class CrossEntropy(NamedTuple):
  """What l is in the methods' losses.

  Attributes:
    label_smoothing: s in [0, 1): the target is `(1 - s)` on the label and `s / K` on every class.
    temperature: T, positive: softmax of `z / T`. ClipFL trains with s = 0.1 and T = 10.
    temperature_reading: The paper says no more than "temperature 10". 'divide' takes it literally,
      so that gradients shrink by T; 'rescale' multiplies the loss by T^2, as in distillation
      (Hinton et al. 2015).
    keep_probability: a in (1/K, 1], with which a label is the one it stands for, all others being
      equally likely: the loss is that of the label's own distribution, `-log (T^T p)_y` (forward
      correction, Patrini et al. 2017). Below 1 for labels that are reports of randomised response.
  """

  label_smoothing: float = 0.0
  temperature: float = 1.0
  temperature_reading: str = 'divide'
  keep_probability: float = 1.0


class Schedule(NamedTuple):
  """The factor on the local step size in round t of a run, t = 1, 2, ...

  Attributes:
    kind: 'constant': 1; 'exponential': `gamma^(t - 1)`; 'steps': gamma to the number of `rounds`
      before t; 'cosine': `(1 + cos(pi (min(t, R) - 1) / R)) / 2`, R the one of `rounds`.
    gamma: In (0, 1); 1 where there is none.
    rounds: Positive, ascending.
  """

  kind: str = 'constant'
  gamma: float = 1.0
  rounds: tuple[int, ...] = ()


# Of mixup's Beta(alpha, alpha): with a smaller one both of the gammas that it is drawn by are often
# below all of float32, and the share would be 1/2.
SMALLEST_MIXUP_ALPHA = 0.05


class LocalTraining(NamedTuple):
  """Local training, the same flags for every method.

  Attributes:
    epochs: E.
    batch_size: B.
    learning_rate: Step size of local SGD.
    momentum: Its momentum, in [0, 1).
    weight_decay: L2 coefficient added to the gradient.
    augmentation: 'none', or 'crop_flip': random shifts by up to 4 pixels and mirroring.
    loss: What l is.
    optimizer: 'sgd', or 'adam' with its usual constants; momentum is of SGD alone.
    schedule: Of the step size over the run's rounds.
    mixup_alpha: Of `clients.label_loss`, 0 for none.
    logit_adjustment: tau there, 0 for none.
  """

  epochs: int = 5
  batch_size: int = 32
  learning_rate: float = 0.1
  momentum: float = 0.0
  weight_decay: float = 0.0
  augmentation: str = 'none'
  loss: CrossEntropy = CrossEntropy()
  optimizer: str = 'sgd'
  schedule: Schedule = Schedule()
  mixup_alpha: float = 0.0
  logit_adjustment: float = 0.0

  def require_sgd(self, name: str) -> None:
    """Raises `UsageError` where steps are not those of SGD, which `name` reckons with."""
    if self.optimizer != 'sgd':
      raise UsageError(
          f'--local_optimizer={self.optimizer}: {name} reckons with the steps of SGD; use '
          '--local_optimizer=sgd, or another federated optimizer'
      )
