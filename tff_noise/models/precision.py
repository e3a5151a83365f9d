"""Mixed precision: layers compute in bfloat16, variables stay float32.

bfloat16 has float32's range, so that gradients need no scaling; GPUs since 2020 multiply it faster,
though rounds of small models were slower (docs/runtimes.md); most CPUs are slow in it.
"""

import contextlib
from collections.abc import Iterator

import tensorflow as tf


@contextlib.contextmanager
def mixed_precision(enabled: bool) -> Iterator[None]:
  """Makes Keras layers that are built while this is open compute in bfloat16, if `enabled`."""
  before = tf.keras.mixed_precision.global_policy()
  if enabled:
    tf.keras.mixed_precision.set_global_policy('mixed_bfloat16')
  try:
    yield
  finally:
    tf.keras.mixed_precision.set_global_policy(before)
