"""Co-teaching: two networks, each trained on what the other finds easy (Han et al., NeurIPS 2018).

Clients train two networks f and g at once. In each step (algorithm 1), on a batch D of b examples,

  `D_f` = the R(T) b examples with the least `l(f(x), y)`                                  (line 4)
  `D_g` = the R(T) b examples with the least `l(g(x), y)`                                  (line 5)
  `w_f <- w_f - eta grad l(f, D_g)`                                                        (line 6)
  `w_g <- w_g - eta grad l(g, D_f)`                                                        (line 7)
  `R(T + 1) = 1 - min(T / T_k, 1) tau`, R(1) = 1                                           (line 8)

with l(f, D) the mean over D. The server holds both networks and averages each as FedAvg does.

The two are one structure of weights and their losses are added, so no gradient of one reaches the
other, and what treats weights entry by entry (SGD with momentum and decay, Adam, most optimizers of
--base) treats each network as it would alone: with tau = 0 these are two runs of FedAvg. What
takes the norm of an update takes that of both together: --client_dp_clip is the norm of the joint
vector, about sqrt(2) times that of one network, and one release covers both; so does fedprox with
term=norm. Twice as much is sent each way. `train_loss` is the sum of both losses on what was kept.

What the paper leaves open, and where its public code differs:
* T counts rounds, not local epochs: FedDPCont, which compares with it, does not say; federated
  ports count rounds. tau is the true rate of noise in the paper, 0.2 in ports.
* Line 8 comes at the end of an epoch, so it is read as the R of the next one, and the first leaves
  nothing out. The public code has `numpy.linspace(0, tau, T_k)[T]` in epoch T, 1 the first that is
  trained: it leaves some out from the first on and reaches tau two earlier (`schedule=code`).
* The two networks start from different random weights, or they would stay the same network.
  FedDPCont's comparison has "two same networks" (appendix 9.3): `initial=equal`.
* The paper keeps at least R(T) b examples, so rounds up; the code cuts the number off, and so does
  this. In the code a batch may keep none (b = 1 with R < 1), and the mean of nothing is not a
  number: at least one is kept here. By float64 the code also loses one where R(T) b is whole, as of
  `int((1 - 0.9) * 20) = 1`; here it is 2.
* The code divides the mean over the kept by their number again: steps of SGD are shorter by
  1 / n_keep, those of Adam as long as before. Not done here.
* The code leaves out the last batch of an epoch if it is smaller; it counts here, as everywhere.
* The code trains with Adam, whose step size falls and whose beta1 changes after 80 of 200 epochs;
  here local training is that of the flags.
* Equal losses are ordered by their place in the batch, so that runs can be repeated.
* Each network's accuracy is reported in the paper. Which of them tables of other papers mean they
  do not say: `evaluate` is the first network, or the mean of both predictions.
"""

import tensorflow as tf

from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.algorithms import parameters
from tff_noise.clients import program
from tff_noise.clients import small_loss
from tff_noise.federated import computation
from tff_noise.federated import task as task_lib
from tff_noise.models import keras_model
from tff_noise.models import losses


def forget_rate(round_num: int | tf.Tensor, p: parameters.CoTeachingParams) -> tf.Tensor:
  """Returns float64, `1 - R(T)` in round T, 1 the first."""
  if p.schedule == 'paper':
    done, span = round_num - 1, p.ramp_rounds
  else:  # numpy.linspace(0, tau, T_k)[T], then tau.
    done, span = round_num, max(p.ramp_rounds - 1, 1)
  return p.forget_rate * tf.minimum(tf.cast(done, tf.float64) / span, 1.0)


def crossed(l_f: tf.Tensor, l_g: tf.Tensor, n_keep: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the losses of f and of g, float32 `[]` each.

  Args:
    l_f: float32 `[b]`, l(f(x), y) of each example.
    l_g: The same of g.
    n_keep: int32, at most b.
  """
  d_f = tf.argsort(l_f, stable=True)[:n_keep]  # Line 4
  d_g = tf.argsort(l_g, stable=True)[:n_keep]  # Line 5
  return tf.reduce_mean(tf.gather(l_f, d_g)), tf.reduce_mean(tf.gather(l_g, d_f))


def client(
    p: parameters.CoTeachingParams, training: types.LocalTraining
) -> program.ClientProgram:
  """Lines 4 to 7, for a model of two networks."""
  def loss(s):
    rate = forget_rate(s.client.round_num, p)
    l_f, l_g = (losses.example_losses(z, s.labels, training.loss) for z in s.logits)
    loss_f, loss_g = crossed(l_f, l_g, small_loss.num_kept(rate, tf.shape(s.labels)[0]))
    return loss_f + loss_g  # Lines 6 and 7: of either sum one part depends on w_f, one on w_g.

  return program.ClientProgram(loss=loss)


def build(task: task_lib.Task, p: parameters.CoTeachingParams) -> algorithm.Algorithm:
  """Returns algorithm 1 in every round, and FedAvg, or the task's optimizer, of both networks."""
  both = keras_model.several(task.model, 2, p.evaluate, equal=p.initial == 'equal')
  task = task.with_model(both)
  train = computation.train('a round of train', task, client(p, task.training))
  return algorithm.of_rounds(task, train)._replace(
      report=algorithm.Report(columns=lambda s: {'forget_rate': float(forget_rate(s.round_num, p))})
  )
