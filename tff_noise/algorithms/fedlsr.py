"""FedLSR: local self-regularisation by a second view of each batch (Jiang et al., CIKM 2022).

A step sees its batch as it is and augmented once more; z_1 and z_2 are the logits of both, and
gradients flow through both. With lambda uniform in [0, 1), one draw a step, and round t of R:

  `p = lambda softmax(z_1) + (1 - lambda) softmax(z_2)`,  `p_s = p^2 / sum p^2`
  `s_v = softmax(3 z_v)`, clipped to [1e-6, 1]
  `L = CE(p_s, y) + gamma_t JS(s_1, s_2) + lambda_e H(s_1)`,  `gamma_t = gamma min(t / .2 R, 1)`

The last term is that of the paper's discussion (FedLSR+), which the public code has switched on.
Clients send what FedAvg's send and keep nothing.

Defaults are what the public code (`FedLSR.ipynb`) does, where it departs from these equations:

- CE is PyTorch's, which takes logits and is given probabilities: for 10 classes its values are in
  [1.46, 2.47], and where the model knows nothing its gradient is 2 / K of cross-entropy's. Its step
  sizes are for that. `--param=cross_entropy=log` is `-log p_s[y]`.
- JS is divided by the number of classes, too: `--param=divergence=batch_mean` is not.
- H is that of softmax(s_1), which hardly moves; `--param=entropy=plain` is H(s_1). The code adds
  the first view's twice and halves them; so here it is that view's alone.
- The second view depends on the data set: a rotation of MNIST, mirroring, colours and grey of
  CIFAR; here it depends on whether images have colours. One draw is for the whole batch, as there.

Deviations: pixels are augmented as they are stored; the code changes colours of normalised ones,
which cuts them to [0, 1]. Brightness, contrast, saturation and hue are changed in this order, not
in a random one. The ramp of gamma counts rounds from 1; the code counts from 0, so that its first
round has no JS. `--param=view=training` draws --augmentation again instead, for each image; without
an augmentation both views are equal then, and JS is 0. Half precision is --mixed_precision's.

The paper has no smoothed, tempered or flipped labels: p_s (or, with `cross_entropy=log`, log p_s)
takes the place of the logits in the cross-entropy that these flags make.
"""

import tensorflow as tf

from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.algorithms import parameters
from tff_noise.clients import program
from tff_noise.clients import seeds
from tff_noise.federated import computation
from tff_noise.federated import task as task_lib
from tff_noise.models import images
from tff_noise.models import losses

_DISTILLATION_TEMPERATURE = 1 / 3  # T_d
_SMALLEST_PROBABILITY = 1e-6
_RAMP_SHARE = 0.2  # Of all rounds, where `ramp_rounds` is not given.

# Into a step's seed.
_AUGMENT, _MIX = seeds.OWN, seeds.OWN + 1


def ramp(round_num, ramp_rounds: float):
  """float32 `[]`, what gamma is multiplied by in round `round_num`, 1 the first: up to 1."""
  if not ramp_rounds:
    return tf.constant(1.0)
  return tf.minimum(tf.cast(round_num, tf.float32) / ramp_rounds, 1.0)


def log_mixed(first: tf.Tensor, second: tf.Tensor, share, sharpness: float) -> tf.Tensor:
  """Returns float32 `[b, K]`, log p_s.

  Args:
    first: float32 `[b, K]`, z_1.
    second: float32 `[b, K]`, z_2.
    share: lambda, in [0, 1], of the first.
    sharpness: What p is raised to.
  """
  log_p = [
      tf.math.log(weight) + tf.nn.log_softmax(logits)
      for weight, logits in ((share, first), (1 - share, second))
  ]
  return tf.nn.log_softmax(sharpness * tf.reduce_logsumexp(tf.stack(log_p), axis=0))


def cross_entropy(
    log_mixed_: tf.Tensor, labels: tf.Tensor, kind: str, form: types.CrossEntropy
) -> tf.Tensor:
  """Returns float32 `[]`, CE.

  Args:
    log_mixed_: float32 `[b, K]`, log p_s.
    labels: int32 `[b]`.
    kind: 'probabilities', which takes p_s for logits, or 'log', -log p_s[y].
    form: What becomes of logits and labels.
  """
  logits = tf.exp(log_mixed_) if kind == 'probabilities' else log_mixed_
  return losses.cross_entropy(logits, labels, form)


def distilled(logits: tf.Tensor) -> tf.Tensor:
  """Returns float32 `[b, K]`, s_v of the logits `[b, K]`."""
  s = tf.nn.softmax(logits / _DISTILLATION_TEMPERATURE)
  return tf.clip_by_value(s, _SMALLEST_PROBABILITY, 1.0)


def divergence(first: tf.Tensor, second: tf.Tensor, reduction: str) -> tf.Tensor:
  """Returns float32 `[]`, the Jensen-Shannon divergence of s_1 and s_2, float32 `[b, K]`.

  Args:
    first: s_1.
    second: s_2.
    reduction: 'batch_mean' over examples, or 'mean' over examples and classes.
  """
  log_middle = tf.math.log((first + second) / 2)
  terms = (
      first * (tf.math.log(first) - log_middle) + second * (tf.math.log(second) - log_middle)
  ) / 2
  return tf.reduce_mean(terms if reduction == 'mean' else tf.reduce_sum(terms, axis=1))


def entropy(s: tf.Tensor, kind: str) -> tf.Tensor:
  """Returns float32 `[]`, the mean H of s, float32 `[b, K]`: 'plain', or of its 'softmax'."""
  log_s = tf.math.log(s) if kind == 'plain' else tf.nn.log_softmax(s)
  return -tf.reduce_mean(tf.reduce_sum(tf.exp(log_s) * log_s, axis=1))


def client(
    p: parameters.FedLSRParams, training: types.LocalTraining, ramp_rounds: float
) -> program.ClientProgram:
  """Local SGD on L; gamma reaches its value in round `ramp_rounds`."""

  def view(s):
    if p.view == 'training':
      return s.view(s.seed)
    change = images.rotate if s.images.shape[-1] == 1 else images.mirror_and_recolour
    return change(s.images, seeds.fold(s.seed, _AUGMENT))

  def loss(s):
    second, _ = s.forward(view(s))
    share = tf.random.stateless_uniform([], seeds.fold(s.seed, _MIX))  # Beta(1, 1)
    log_p = log_mixed(s.logits, second, share, p.sharpness)
    s_1, s_2 = distilled(s.logits), distilled(second)
    gamma = p.consistency_weight * ramp(s.client.round_num, ramp_rounds)
    return (
        cross_entropy(log_p, s.labels, p.cross_entropy, training.loss)
        + gamma * divergence(s_1, s_2, p.divergence)
        + p.entropy_weight * entropy(s_1, p.entropy)
    )

  return program.ClientProgram(loss)


def build(task: task_lib.Task, p: parameters.FedLSRParams) -> algorithm.Algorithm:
  """Samples and trains in every round.

  Raises:
    types.UsageError: If the model does not take images and `p.view` changes such.
  """
  shape = task.model.input_shape
  if p.view == 'code' and (len(shape) != 3 or shape[-1] not in (1, 3)):
    raise types.UsageError(
        '--param=view=code changes images [height, width, channels] of 1 or 3 channels, and the '
        f'model takes {list(shape)}: --param=view=training'
    )
  ramp_rounds = _RAMP_SHARE * task.rounds if p.ramp_rounds < 0 else p.ramp_rounds
  program_ = client(p, task.training, ramp_rounds)
  return algorithm.of_rounds(task, computation.train('a round of train', task, program_))
