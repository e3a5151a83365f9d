"""The distributed discrete Gaussian: integers, to which each client adds its share of the noise.

Kairouz, Liu and Steinke, The Distributed Discrete Gaussian Mechanism for Federated Learning with
Secure Aggregation, ICML 2021, without its rotation, which only saves bits of the modulus: here the
modulus is so large that a sum never wraps but with the probability of the noise's far tail.

TFF's `DiscretizationFactory` and tensorflow_privacy's `DistributedDiscreteGaussianSumQuery` are not
used: they round and check norms in float32, draw from the time and from unseeded operations, a
rounding that fails raises an error, which is a release, and their sampler is not exact.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise.federated import clipping
from tff_noise.federated import noise_seed
from tff_noise.federated import stacked
from tff_noise.privacy import discrete_gaussian

# Of a rounding whose norm is too large; each succeeds with probability 1 - e^-1/2 at least.
_TRIES = 32
# A guide of 2^16 entries stays in a processor's cache.
_GUIDE_BITS = 16
# What a client's seed is for.
_NOISE, _ROUNDING = 0, 1


class DiscreteMean(tff.aggregators.WeightedAggregationFactory):
  """Sum of clipped, rounded and noised updates modulo 2^b, over the size of the cohort.

  What is a weight elsewhere is the client's id here: a client draws its share from it. It stays
  with the client.
  """

  def __init__(
      self, clip: float, grid: discrete_gaussian.Grid, cohort: int, key: np.ndarray, secure: bool
  ):
    """Initializes the factory.

    Args:
      clip: S, positive.
      grid: For as many entries as the values have.
      cohort: The divisor.
      key: int64 `[2]`, of this release and no other.
      secure: Whether sums are secure ones.
    """
    self._clip = clip
    self._grid = grid
    self._cohort = cohort
    self._key = key
    self._secure = secure

  def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
    """See base class; `next` is `(<state=int32@SERVER, value={T}@CLIENTS, weight={int32}@CLIENTS>`
    `-> <state=int32@SERVER, result=T@SERVER, measurements=<>@SERVER>)`.
    """
    clip, grid, cohort, key = self._clip, self._grid, self._cohort, self._key
    modulus = 2**grid.modulus_bits
    table = None
    if grid.variance:
      table = discrete_gaussian.inversion_table(grid.variance)

    @tff.tensorflow.computation(value_type, weight_type, np.int32)
    def protect(value, client, round_num):
      @tf.function(autograph=False)
      def run(value, client, round_num):
        seed = noise_seed.derive(key, round_num, client)
        parts = clipping.clip_to_norm(tf.nest.flatten(value), clip)
        vector = tf.concat([tf.reshape(part, [-1]) for part in parts], 0)
        whole = rounded(
            vector * (grid.steps / clip), grid.norm_squared, noise_seed.derive(seed, _ROUNDING)
        )
        if table is not None:
          whole += sample(table, tf.shape(whole), noise_seed.derive(seed, _NOISE))
        return tf.bitwise.bitwise_and(whole, modulus - 1)

      return run(value, client, round_num)

    @tff.tensorflow.computation(protect.type_signature.result)
    def mean(total):
      # Plain sums are not reduced yet; int32 overflows modulo 2^32, of which 2^b is a divisor.
      total = tf.math.floormod(tf.cast(total, tf.int64), modulus)
      centred = total - modulus * tf.cast(total >= modulus // 2, tf.int64)
      values = tf.cast(centred, tf.float64) * (clip / grid.steps / cohort)
      return stacked.unflatten(tf.cast(values, tf.float32), value_type)

    @tff.tensorflow.computation(np.int32)
    def following(round_num):
      return round_num + 1

    @tff.federated_computation
    def initialize():
      return tff.federated_value(0, tff.SERVER)

    @tff.federated_computation(
        initialize.type_signature.result,
        tff.FederatedType(value_type, tff.CLIENTS),
        tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, value, client):
      sent = tff.federated_map(protect, (value, client, tff.federated_broadcast(state)))
      if self._secure:
        total = tff.backends.mapreduce.federated_secure_modular_sum(sent, modulus)
      else:
        total = tff.federated_sum(sent)
      return tff.templates.MeasuredProcessOutput(
          tff.federated_map(following, state),
          tff.federated_map(mean, total),
          tff.federated_value((), tff.SERVER),
      )

    return tff.templates.AggregationProcess(initialize, next_fn)


def rounded(vector: tf.Tensor, norm_squared: int, seed: tf.Tensor) -> tf.Tensor:
  """Rounds each entry up or down at random, so that its mean stays and the norm does not grow much.

  It is repeated while the norm is too large, and after 32 times towards 0, which enlarges no norm.
  The norm is that of the integers, exactly: what it promises depends on nothing before it.

  Args:
    vector: float32 `[d]`, finite, whose squared norm is at most about `norm_squared`.
    norm_squared: What that of the result is at most; below 2^60.
    seed: int64 `[2]`.

  Returns:
    int32 `[d]`; 0 if it would be too large in spite of all.
  """
  floor = tf.floor(vector)
  rest, low = vector - floor, tf.cast(floor, tf.int32)

  def draw(number):
    uniform = tf.random.stateless_uniform(tf.shape(vector), noise_seed.derive(seed, number))
    return low + tf.cast(uniform < rest, tf.int32)

  def fits(whole):
    return tf.reduce_sum(tf.square(tf.cast(whole, tf.int64))) <= norm_squared

  _, whole = tf.while_loop(
      lambda number, whole: tf.logical_and(number < _TRIES, tf.logical_not(fits(whole))),
      lambda number, whole: (number + 1, draw(number)),
      (1, draw(0)),
  )
  whole = tf.cond(fits(whole), lambda: whole, lambda: tf.cast(vector, tf.int32))
  return tf.cond(fits(whole), lambda: whole, lambda: tf.zeros_like(whole))


def sample(table: np.ndarray, shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Draws discrete Gaussians by inversion; all comparisons are of integers.

  Args:
    table: Of `discrete_gaussian.inversion_table`, with words of 31 bits.
    shape: int32 `[1]`.
    seed: int64 `[2]`.

  Returns:
    int32 of this shape.
  """
  def word(number, shape):
    return tf.random.stateless_uniform(
        shape, noise_seed.derive(seed, number), minval=None, maxval=None, dtype=tf.int32
    )

  mask = 2**discrete_gaussian.WORD_BITS - 1
  first = word(0, shape)
  magnitude = inverted(
      table, tf.bitwise.bitwise_and(first, mask),
      lambda number, shape: tf.bitwise.bitwise_and(word(number, shape), mask),
  )
  # The sign is a bit that the mask leaves out.
  return tf.where(first < 0, -magnitude, magnitude)


def inverted(
    table: np.ndarray,
    first: tf.Tensor,
    further: Callable[[int, tf.Tensor], tf.Tensor],
    word_bits: int = discrete_gaussian.WORD_BITS,
) -> tf.Tensor:
  """Returns int32 `[d]`, how many columns of the table are at most each random number.

  The highest bits of most numbers leave one column open at most, with which they are compared;
  searching for the others alone takes a fifth of the time of searching for all.

  Args:
    table: int32 `[words, n]`.
    first: int32 `[d]`, the random numbers' highest words.
    further: From 1, ..., words - 1 and a shape to int32 of that shape: lower words of those numbers
      that need them, where the highest is one of the table's, which is next to never.
    word_bits: Bits of each word.
  """
  shift = max(0, word_bits - _GUIDE_BITS)
  guide = tf.gather(
      tf.constant(_guide(table[0], shift, word_bits)), tf.bitwise.right_shift(first, shift)
  )
  below, following = tf.unstack(guide, axis=1)
  open_ = tf.where(tf.logical_or(below < 0, tf.equal(following, first)))
  searched = _searched(table, tf.gather_nd(first, open_), further)
  return tf.tensor_scatter_nd_update(
      below + tf.cast(following < first, tf.int32), open_, searched
  )


def _guide(top, shift, word_bits):
  """For each value of the highest bits: how many columns are below all numbers that begin so, and
  the next column's highest word; -1 and any where several columns lie among these numbers.
  """
  starts = np.arange(2 ** (word_bits - shift) + 1, dtype=np.int64) << shift
  below = np.searchsorted(top, starts)
  following = np.append(top, 2**word_bits - 1)[below[:-1]]
  several = np.diff(below) > 1
  return np.stack([np.where(several, -1, below[:-1]), following], 1).astype(np.int32)


def _searched(table, first, further):
  """As `inverted`, by a search for each number."""
  top = tf.constant(table[0])
  below = tf.searchsorted(top, first, side='left')
  equal = tf.equal(tf.gather(top, tf.minimum(below, len(table[0]) - 1)), first)
  tied = tf.where(equal)

  def compare():
    words = [tf.gather_nd(first, tied)]
    words += [further(i, tf.shape(words[0])) for i in range(1, len(table))]
    at_most = tf.ones([tf.size(words[0]), len(table[0])], tf.bool)
    for row, drawn in reversed(list(zip(table, words, strict=True))):
      column, drawn = tf.constant(row)[tf.newaxis], drawn[:, tf.newaxis]
      at_most = tf.logical_or(column < drawn, tf.logical_and(tf.equal(column, drawn), at_most))
    counts = tf.reduce_sum(tf.cast(at_most, tf.int32), 1)
    return tf.tensor_scatter_nd_update(below, tied, counts)

  return tf.cond(tf.size(tied) > 0, compare, lambda: below)
