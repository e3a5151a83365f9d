"""RoFL: class centroids that the clients of all rounds share (Yang et al., 2022), summed securely.

Beside the model the server sends f_G `[K, d]`, for each class a point among the features. In round
t, 0 the first, a client takes it for its own f_k (at t = 0 the means of its features, by class) and
trains on the batch's confident examples S, those of the `int((1 - R_t) b)` smallest losses:

  `y~_i = argmax_j cos(f_k[j], f(x_i))`,  `m_i = [y~_i = y_i]`
  `L = mean_S CE(y_i if m_i else y^_i) + lambda_e mean_S H(p_i)
       + lambda_cen min(t / T_pl, 1) sum_S m_i ||f(x_i) - f_k[y_i]||^2`
  `f_k[j] <- (1 - s_j^2) f_k[j] + s_j^2 f^_j`,  `s_j = cos(f_k[j], f^_j)`

with f^_j the mean of f(x_i) over the S with y_i = j, and y^_i the class that the received model
predicts: the pseudo-label, which from round T_pl on takes the place of a label that the centroids
contradict. At the end `f_G[j] <- sum_k c_kj f_k[j] / sum_k c_kj` with `c_kj = cos(f_G[j], f_k[j])`.

There the server sees each client's f_k: which classes the client has, and features to invert. As
the client knows f_G, it can compute c_kj itself. Here it sends `c_kj f_k[j]` and `c_kj`, of which
the server needs the sums alone: the same f_G to rounding, and no value of a single client. Entries
of f_k are cut to a declared bound (`feature_bound`), and clients that were cut are counted.

The formulas are those of the public code that papers compare with, which is not the authors'
(jangsoohyuk/Robust-Federated-Learning-with-Noisy-Labels, and FNBench after it); of the paper only
the abstract was at hand. What that code does is the default, also where it must surprise:
- It detaches f(x) before the centroids' term, which then has no gradient: lambda_cen only shifts
  the loss that is shown. `centroid_gradient=features` is the formula.
- It takes the sum over S of that term, beside means in the others; `centroid_reduction=mean`.
- It starts f_G with normal numbers, and weights the first f_k by their cosines with these, whose
  signs mean nothing: f_G[j] may be far outside of what it averages, and needs rounds to come back.
  `first_weights=equal` is the mean over the clients that have the class, of all that somebody of
  the first cohort has.
- Until T_pl every label is the given one, so that the method is small-loss selection with entropy
  minimisation; R_t rises over the first rounds to a constant, whatever the true noise is.
- Its y^ are predictions on augmented images, if training augments; f_k is not kept between rounds,
  and a client without class j votes for the old f_G[j] with full weight, `c = cos(f_G, f_G) = 1`.

Where this differs from that code:
- Models are averaged by their numbers of examples, as all methods' here: --base, DP and secure sums
  are built on that mean. The code takes the unweighted one; with clients of equal size that is the
  same. In f_G clients have no such weights, as in the code.
- At least one example of a batch is confident: in the code none is of a last batch of one,
  `int(0.8 * 1) = 0`, and the mean over none is NaN. Where `(1 - R_t) b` is whole but for rounding,
  the code may have one less.
- Where `|sum_k c_kj| < 1e-6`, such as for a class that nobody has at t = 0, f_G[j] stays; in the
  code it is NaN for ever. f_G is cut to the bound, as each client's part was.

R_t ranks by plain cross-entropy; --label_smoothing and --temperature change CE alone.
"""

import numpy as np
import tensorflow as tf

from tff_noise import rng
from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.algorithms import parameters
from tff_noise.clients import program
from tff_noise.clients import small_loss
from tff_noise.federated import computation
from tff_noise.federated import task as task_lib
from tff_noise.models import losses
from tff_noise.uplink import uplink

# What clients receive, f_G, and what they send.
CENTROIDS, _SIMILARITIES, _CUT = 'centroids', 'similarities', 'cut_centroids'

_PLAIN = types.CrossEntropy()
# The smallest sum of cosines that is divided by.
_SMALLEST_SUM = 1e-6
# T_pl where it is not given, of all rounds: 100 of 1,000 in the public code.
_PSEUDO_LABEL_SHARE = 0.1


def forget_rate(t: tf.Tensor, p: parameters.RoFLParams) -> tf.Tensor:
  """Returns float64, R_t: `numpy.linspace(0, p.forget, p.forget_rounds)[t]`, then `p.forget`."""
  t = tf.cast(t, tf.float64)
  rises = float(max(p.forget_rounds - 1, 1))
  if not p.forget_rounds:
    return tf.constant(p.forget, tf.float64)
  return tf.where(t < rises, t * (p.forget / rises), p.forget)


def confident(logits: tf.Tensor, labels: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
  """Returns int32 `[m]`, S: where a batch's `m = int((1 - R_t) b)` smallest losses are, m >= 1."""
  each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  return tf.argsort(each, stable=True)[: small_loss.num_kept(rate, tf.size(each))]


def similarity(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
  """Returns float32 `[K]`, the cosines of rows `[K, d]`; 0 where one of the two is 0."""
  return tf.reduce_sum(tf.math.l2_normalize(a, axis=1) * tf.math.l2_normalize(b, axis=1), axis=1)


def nearest(features: tf.Tensor, centroids: tf.Tensor) -> tf.Tensor:
  """Returns int32 `[m]`, `y~_i = argmax_j cos(f_k[j], f(x_i))` of features `[m, d]`."""
  # Whatever the norm of f(x_i), it is the same for all j.
  along = tf.matmul(features, tf.math.l2_normalize(centroids, axis=1), transpose_b=True)
  return tf.argmax(along, axis=1, output_type=tf.int32)


def class_means(features: tf.Tensor, labels: tf.Tensor, num_classes: int) -> tf.Tensor:
  """Returns float32 `[K, d]`, the means of features `[m, d]` by class; 0 where there are none."""
  return tf.math.unsorted_segment_mean(features, labels, num_classes)


def moved(centroids: tf.Tensor, means: tf.Tensor) -> tf.Tensor:
  """Returns `(1 - s_j^2) f_k[j] + s_j^2 f^_j`, all `[K, d]`; f_k[j] where f^_j is 0."""
  s2 = similarity(centroids, means)[:, tf.newaxis] ** 2
  return (1 - s2) * centroids + s2 * means


def centroid_weight(t: tf.Tensor, p: parameters.RoFLParams, start: int) -> tf.Tensor:
  """Returns float32, `lambda_cen min(t / T_pl, 1)`."""
  ramp = tf.minimum(t / start, 1) if start else tf.constant(1.0)
  return p.centroid_weight * tf.cast(ramp, tf.float32)


def objective(
    logits: tf.Tensor,
    features: tf.Tensor,
    labels: tf.Tensor,
    predicted: tf.Tensor,
    centroids: tf.Tensor,
    weight: tf.Tensor,
    p: parameters.RoFLParams,
    form: types.CrossEntropy = _PLAIN,
) -> tf.Tensor:
  """Returns float32, L of confident examples.

  Args:
    logits: float32 `[m, K]`.
    features: float32 `[m, d]`, f(x_i).
    labels: int32 `[m]`, y_i.
    predicted: int32 `[m]`, y^_i.
    centroids: float32 `[K, d]`, f_k.
    weight: lambda_cen in this round.
    p: What of L is read in which way.
    form: What CE is.
  """
  agrees = tf.equal(nearest(features, centroids), labels)  # m_i
  targets = tf.where(agrees, labels, predicted)
  if p.centroid_gradient == 'none':
    features = tf.stop_gradient(features)
  distances = tf.reduce_sum((features - tf.gather(centroids, labels)) ** 2, axis=1)
  reduce = tf.reduce_sum if p.centroid_reduction == 'sum' else tf.reduce_mean
  return (
      losses.cross_entropy(logits, targets, form)
      + weight * reduce(tf.where(agrees, distances, 0.0))
      + p.entropy_weight * losses.entropy(logits)  # H(p_i)
  )


def client(
    p: parameters.RoFLParams, training: types.LocalTraining, start: int, centroids: np.ndarray
) -> program.ClientProgram:
  """Local SGD on L, which moves f_k on its way; then `c_kj f_k[j]` and `c_kj`.

  Args:
    p: The parameters.
    training: Local training.
    start: T_pl.
    centroids: float32 `[K, d]`, the first f_G.
  """
  num_classes = len(centroids)

  def columns(client):
    def predictions():
      return tf.argmax(client.predict(augmented=True), axis=1, output_type=tf.int32)

    is_late = client.round_num - 1 >= start
    return program.Columns({'predicted': tf.cond(is_late, predictions, lambda: client.labels)})

  def init(client):
    def means():
      _, features = client.predict_with_features(augmented=True)
      return class_means(features, client.labels, num_classes)

    is_first = tf.equal(client.round_num, 1)
    return tf.cond(is_first, means, lambda: client.received[CENTROIDS])  # f_k

  def loss(s):
    t = s.client.round_num - 1
    chosen = confident(s.logits, s.labels, forget_rate(t, p))  # S
    logits, features, labels, predicted = (
        tf.gather(v, chosen) for v in (s.logits, s.features, s.labels, s.columns['predicted'])
    )
    weight = centroid_weight(t, p, start)
    value = objective(logits, features, labels, predicted, s.carry, weight, p, training.loss)
    return value, moved(s.carry, class_means(features, labels, num_classes))

  def final(result):
    f_k = tf.clip_by_value(result.carry, -p.feature_bound, p.feature_bound)
    c = similarity(result.client.received[CENTROIDS], f_k)
    if p.first_weights == 'equal':
      has_class = tf.cast(tf.reduce_any(tf.not_equal(f_k, 0), axis=1), tf.float32)
      c = tf.where(tf.equal(result.client.round_num, 1), has_class, c)
    was_cut = tf.reduce_any(tf.not_equal(f_k, result.carry))
    return program.Sent(sums={
        CENTROIDS: c[:, tf.newaxis] * f_k, _SIMILARITIES: c, _CUT: tf.cast(was_cut, tf.int32)
    })

  return program.ClientProgram(
      loss=loss,
      columns=columns,
      init=init,
      step=lambda s: (s.gradients, s.found),
      final=final,
      receives={CENTROIDS: centroids},
      sums=(
          uplink.UplinkSum(
              CENTROIDS, np.float32, -p.feature_bound, p.feature_bound,
              'mean features of each class, times their similarity to those of all clients, which '
              'become the next ones of all', shape=centroids.shape,
          ),
          uplink.UplinkSum(
              _SIMILARITIES, np.float32, -1.0, 1.0, 'what the sum of these means is divided by',
              shape=(num_classes,),
          ),
          uplink.UplinkSum(
              _CUT, np.int32, 0, 1, 'clients whose means were cut to the bound (feature_bound)'
          ),
      ),
  )


def next_centroids(
    centroids: np.ndarray, weighted: np.ndarray, similarities: np.ndarray, bound: float
) -> tuple[np.ndarray, np.ndarray]:
  """Returns float32 `[K, d]`, the next f_G, and bool `[K]`, whose f_G[j] is not the old one.

  Args:
    centroids: float32 `[K, d]`, f_G.
    weighted: float32 `[K, d]`, `sum_k c_kj f_k[j]`.
    similarities: float32 `[K]`, `sum_k c_kj`.
    bound: What entries are cut to.
  """
  changed = np.abs(similarities) >= _SMALLEST_SUM
  means = weighted / np.where(changed, similarities, 1)[:, np.newaxis]
  following = np.where(changed[:, np.newaxis], np.clip(means, -bound, bound), centroids)
  return following.astype(np.float32), changed


def first_centroids(task: task_lib.Task) -> np.ndarray:
  """Returns float32 `[K, d]`, f_G before the first round: normal numbers, as in the public code."""
  draw = rng.generator(task.seed, 'rofl centroids')
  return draw.standard_normal((task.num_classes, task.model.num_features), np.float32)


def build(task: task_lib.Task, p: parameters.RoFLParams) -> algorithm.Algorithm:
  """Samples and trains in every round, and aligns the centroids.

  Raises:
    types.UsageError: If labels are reports and would be replaced by predictions.
  """
  start = p.pseudo_labels_from
  if start < 0:
    # Not the first: its predictions are those of an untrained model.
    start = max(1, round(_PSEUDO_LABEL_SHARE * task.rounds))
  if start < task.rounds:
    algorithm.require_labels_kept(task, 'rofl', f'--param=pseudo_labels_from={task.rounds}')
  program_ = client(p, task.training, start, first_centroids(task))
  train = computation.train('a round of train', task, program_)

  def round_(state, clients):
    output = clients.train(train, state, clients.sample(train, state))
    f_g, changed = next_centroids(
        state.received[CENTROIDS], output.sums[CENTROIDS], output.sums[_SIMILARITIES],
        p.feature_bound,
    )
    state = output.state.send(**{CENTROIDS: f_g})
    return state.record(
        cut_centroids=np.int64(output.sums[_CUT]), kept_centroids=np.int64(np.sum(~changed))
    )

  return algorithm.Algorithm(
      round_, algorithm.computations_of(train), {'train': task.rounds},
      records={'cut_centroids': np.int64(0), 'kept_centroids': np.int64(0)},
      report=algorithm.Report(
          columns=lambda s: {
              name: int(s.records[name]) for name in ('cut_centroids', 'kept_centroids')
          }
      ),
  )
