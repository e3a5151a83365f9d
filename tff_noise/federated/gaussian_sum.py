"""A sum of clipped records with Gaussian noise that is a function of (key, round)."""

import collections
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_privacy as tfp

from tff_noise.federated import clipping
from tff_noise.federated import noise_seed


class GaussianSum(tfp.GaussianSumQuery):
  """`tfp.GaussianSumQuery` with noise that a run that is continued draws again, and another clip.

  The stock query draws from an unseeded operation: no run could be repeated, and the rounds that a
  resume repeats would release the same updates under new noise, at twice the cost. Its clip adds
  up squares in float32, where a finite record can make the sum NaN (see `clipping`).
  """

  def __init__(
      self, l2_norm_clip: float, stddev: float, key: np.ndarray, *, margin: float = 0.0
  ):
    """Initializes the query.

    Args:
      l2_norm_clip: S, positive.
      stddev: Of the noise on the sum, at least 0.
      key: int64 `[2]`, of this release and no other.
      margin: How much smaller than S records are made, relatively.
    """
    super().__init__(l2_norm_clip, stddev)
    self._clip = l2_norm_clip
    self._key = key
    self._margin = margin

  def initial_global_state(self):
    """See base class."""
    return collections.OrderedDict(
        query=super().initial_global_state(), round_num=tf.constant(0)
    )

  def derive_sample_params(self, global_state):
    """See base class."""
    return super().derive_sample_params(global_state['query'])

  def preprocess_record(self, params, record):
    """See base class."""
    del params  # Unused: the clip is a constant.
    clipped = clipping.clip_to_norm(tf.nest.flatten(record), self._clip, self._margin)
    return tf.nest.pack_sequence_as(record, clipped)

  def get_noised_result(self, sample_state, global_state):
    """See base class."""
    stddev = global_state['query'].stddev
    round_num = global_state['round_num']
    parts = tf.nest.flatten(sample_state)
    noise = self.noise(parts, round_num)
    noisy = [part + stddev * added for part, added in zip(parts, noise, strict=True)]
    _, _, event = super().get_noised_result(sample_state, global_state['query'])
    next_state = collections.OrderedDict(global_state, round_num=round_num + 1)
    return tf.nest.pack_sequence_as(sample_state, noisy), next_state, event

  def noise(self, parts: Sequence[tf.Tensor], round_num: tf.Tensor) -> list[tf.Tensor]:
    """Returns standard normal numbers for all parts of a sum; int32 `round_num` is 0 at first."""
    return [
        tf.random.stateless_normal(
            tf.shape(part), noise_seed.derive(self._key, round_num, i), dtype=part.dtype
        )
        for i, part in enumerate(parts)
    ]
