"""What a client sends lies within the bounds that it is declared with, however it is summed."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tff_noise.uplink import uplink


def cut(
    declared: Sequence[uplink.UplinkSum | uplink.UplinkReport], values: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
  """Returns a client's values, cut to their declared bounds; nan, which says "none", stays.

  Secure sums cut by themselves; plain ones would take what is declared never to be sent.

  Args:
    declared: Each of `values`, and perhaps more.
    values: By name.
  """
  by_name = {one.name: one for one in declared}
  return {name: _cut(by_name[name], value) for name, value in values.items()}


def _cut(declared, value):
  lower, upper = declared.dtype(declared.lower), declared.dtype(declared.upper)
  return tf.clip_by_value(tf.ensure_shape(value, declared.shape), lower, upper)
