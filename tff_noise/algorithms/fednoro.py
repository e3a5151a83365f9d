"""FedNoRo: noisy clients are found by their losses, and learn from the global model (Wu et al.).

"FedNoRo: Towards Noise-Robust Federated Learning by Addressing Class Imbalance and Label Noise
Heterogeneity", IJCAI 2023. A warm-up, a look for noisy clients, and distance-aware aggregation, as
`fednoro_stages` has them. In the second stage a noisy client's loss in round t is

  `lambda(t) KL(softmax(z_T / tau) || softmax(z + log pi_c)) + (1 - lambda(t)) CE(z + log pi_c, y)`
  `lambda(t) = a exp(-5 (1 - min((t - begin) / (end - begin), 1))^2)`,  t counted from 0

with z_T the logits of the model as it was received, in evaluation mode, on the same augmented
batch, and pi_c the shares of the client's labels. Clean clients keep to the second term, so theirs
is this loss with lambda = 0. tau sharpens the teacher alone, and the student is adjusted to pi_c,
the teacher is not.

Clients send sums in the warm-up; once, all of them, K losses each (nan for a class that they have
not: that shows which classes they have); and in the second stage their models, which the server
compares. They receive one bit in each of its rounds.

What the public code (wnn2000/FedNoRo) does is the default:
- Where a client has no example of a class, log pi_c is -inf; the code replaces -inf among the
  student's log-probabilities by 0. Those terms of KL are constants, `p_T log p_T`, without a
  gradient: only the loss that is shown is smaller. `kl=present` leaves these classes out.
- Distances between models add up the norms of each tensor, statistics of batch norm included;
  `distance=flat` is the norm of all weights together, as FedNoisy's port has it.
- begin is where the second stage starts; stages are 10 and 90 rounds of 100, which are shares of
  all rounds here, and end is 49, which is 39 of 90 rounds of the second (`ramp_end`). FNBench's
  port has 20 and 100, and end = 120.

Where this differs from that code:
- It computes losses by class at the server, which has all data there, on augmented images. Here
  each client computes its own, on images as they are.
- Where all losses of a class are equal, where no noisy model differs from all clean ones, it
  divides 0 by 0, and where nobody is clean it has no minimum: here the column is 0, and models are
  weighted by n_c. Not all clients need to take part: distances are to clean clients of the round.
- Fewer than three different clients are not split; late clients count as clean.
- It trains on Adam with weight decay; here local training is that of the flags.

--temperature divides the logits of student and teacher alike; what --temperature_reading=rescale
multiplies is CE alone, as --label_smoothing changes CE alone. Smoothing pulls at classes that a
client has not, too, whose log pi_c is -60.
Private labels: CE knows the flips, and pi_c is estimated from the reports.
"""

from collections.abc import Mapping

import tensorflow as tf

from tff_noise.algorithms import algorithm
from tff_noise.algorithms import fednoro_stages
from tff_noise.algorithms import parameters
from tff_noise.clients import program
from tff_noise.federated import task as task_lib

# Of all rounds: the warm-up, and where lambda(t) reaches a.
_WARM_UP_SHARE = 0.1


def distillation_weight(t: tf.Tensor, begin: int, end: int, a: float) -> tf.Tensor:
  """Returns float32, lambda(t) of round t, at least `begin`, 0 the first; a if `end <= begin`."""
  if end <= begin:
    return tf.constant(a)
  done = tf.cast(t - begin, tf.float32) / (end - begin)
  return a * tf.exp(-5 * (1 - tf.clip_by_value(done, 0.0, 1.0)) ** 2)


def distillation(
    adjusted: tf.Tensor, teacher: tf.Tensor, tau: float, has_class: tf.Tensor, kind: str
) -> tf.Tensor:
  """Returns float32 `[]`, the mean of KL.

  Args:
    adjusted: float32 `[b, K]`, z + log pi_c.
    teacher: float32 `[b, K]`, z_T.
    tau: The teacher's temperature.
    has_class: bool `[K]`, where the client has examples.
    kind: 'code', in which the others' terms are constants, or 'present', in which they are 0.
  """
  p = tf.nn.softmax(teacher / tau)
  log_q = tf.where(has_class, tf.nn.log_softmax(adjusted), 0.0)
  terms = tf.math.xlogy(p, p) - p * log_q
  if kind == 'present':
    terms = tf.where(has_class, terms, 0.0)
  return tf.reduce_mean(tf.reduce_sum(terms, axis=1))


def client(
    task: task_lib.Task, p: parameters.FedNoRoParams, begin: int, end: int
) -> program.ClientProgram:
  """Local SGD of the second stage, from round `begin` on; lambda is a in round `end`."""
  form = task.training.loss

  def loss(s):
    log_pi = s.carry

    def kl():
      teacher, _ = s.received_forward(s.images)
      return distillation(
          fednoro_stages.adjusted(s.logits, log_pi, form) / form.temperature,
          tf.stop_gradient(teacher) / form.temperature,
          p.temperature, fednoro_stages.has_class(log_pi), p.kl,
      )

    is_noisy = fednoro_stages.is_noisy(s.client)
    weight = distillation_weight(s.client.round_num - 1, begin, end, p.weight)
    weight = tf.where(is_noisy, weight, 0.0)
    ce = fednoro_stages.logit_adjusted(s.logits, s.labels, log_pi, form)
    return weight * tf.cond(is_noisy, kl, lambda: 0.0) + (1 - weight) * ce

  return fednoro_stages.warm_up_program(task)._replace(loss=loss, uses_received_model=True)


def ramp_end(stages: Mapping[str, int], p: parameters.FedNoRoParams) -> int:
  """Returns the round, counted from 0, in which lambda is a."""
  begin, robust = stages[fednoro_stages.WARM_UP], stages[fednoro_stages.NOISE_ROBUST]
  return round(begin + 39 * robust / 90) if p.ramp_end < 0 else p.ramp_end


def build(task: task_lib.Task, p: parameters.FedNoRoParams) -> algorithm.Algorithm:
  """Returns both stages; see `fednoro_stages.build` for errors."""
  stages = fednoro_stages.stage_lengths(task, _WARM_UP_SHARE)
  robust = client(task, p, stages[fednoro_stages.WARM_UP], ramp_end(stages, p))
  return fednoro_stages.build(task, 'fednoro', robust, stages, distance=p.distance)
