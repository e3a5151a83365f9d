"""Clipping to an L2 norm that no finite update overflows and no other update survives."""

from collections.abc import Sequence

import tensorflow as tf

# Kept below the norm: far more than what rounding the clipped entries to float32 adds to it.
_MARGIN = 2.0**-22


def clip_to_norm(parts: Sequence[tf.Tensor], norm: float, margin: float = 0.0) -> list[tf.Tensor]:
  """Returns a vector of norm at most `norm`, whatever is given.

  `tf.clip_by_global_norm` adds up squares in float32: an entry of 1e20 makes the norm infinite, and
  the result NaN. Here they are added up in float64, which holds the squares of all of float32. A
  vector that is not finite becomes 0, and so does one whose norm after clipping is not at most
  `norm`: the sensitivity rests on that comparison alone, not on the arithmetic before it.

  Args:
    parts: float32 tensors of any shapes, together one vector.
    norm: S, positive, a normal float32.
    margin: How much smaller than S the clipped norm has to be, relatively, for what is done to the
      vector afterwards; in [0, 1).

  Returns:
    The clipped parts. In float64 their joint norm is at most `norm * (1 - margin)`.
  """
  most = norm * (1 - margin)
  found = _norm(parts)
  # Of NaN neither comparison holds, so the factor is finite for finite vectors alone.
  factor = tf.where(found > most * (1 - _MARGIN), most * (1 - _MARGIN) / found, 1.0)
  clipped = [tf.cast(tf.cast(part, tf.float64) * factor, part.dtype) for part in parts]
  # Infinity times 0 is NaN, whose norm is not at most anything.
  holds = tf.logical_and(tf.math.is_finite(found), _norm(clipped) <= most)
  return tf.cond(holds, lambda: clipped, lambda: [tf.zeros_like(part) for part in parts])


def _norm(parts):
  """float64, the joint norm."""
  if not parts:
    return tf.constant(0.0, tf.float64)
  return tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(tf.cast(p, tf.float64))) for p in parts]))
