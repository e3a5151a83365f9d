"""A clipped sum with Gaussian noise that is a function of (seed, round)."""

import collections

import tensorflow as tf
import tensorflow_privacy as tfp


class GaussianSum(tfp.GaussianSumQuery):
  """`tfp.GaussianSumQuery`, whose noise a run that is continued draws again.

  The stock query draws from an unseeded operation: no run could be repeated, and the rounds that a
  resume repeats would release the same updates under new noise, at twice the cost.
  """

  def __init__(self, l2_norm_clip: float, stddev: float, seed: tf.Tensor):
    """Initializes the query.

    Args:
      l2_norm_clip: S, positive.
      stddev: Of the noise on the sum, at least 0.
      seed: int32 `[2]`.
    """
    super().__init__(l2_norm_clip, stddev)
    self._seed = seed

  def initial_global_state(self):
    """See base class."""
    return collections.OrderedDict(
        query=super().initial_global_state(), round_num=tf.constant(0)
    )

  def derive_sample_params(self, global_state):
    """See base class."""
    return super().derive_sample_params(global_state['query'])

  def get_noised_result(self, sample_state, global_state):
    """See base class."""
    stddev = global_state['query'].stddev
    round_num = global_state['round_num']
    seed = tf.random.experimental.stateless_fold_in(self._seed, round_num)
    noisy = [
        part
        + stddev * tf.random.stateless_normal(
            tf.shape(part), tf.random.experimental.stateless_fold_in(seed, i), dtype=part.dtype
        )
        for i, part in enumerate(tf.nest.flatten(sample_state))
    ]
    _, _, event = super().get_noised_result(sample_state, global_state['query'])
    next_state = collections.OrderedDict(global_state, round_num=round_num + 1)
    return tf.nest.pack_sequence_as(sample_state, noisy), next_state, event
