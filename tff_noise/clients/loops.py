"""Loops in TensorFlow computations, without AutoGraph.

AutoGraph rewrites the source of every function that a traced one calls, TFF's optimizers included:
two thirds of the seconds that building a computation would take. So computations are traced with
`tf.function(autograph=False)`, and say where they loop. A Python `if` or `for` over a tensor then
raises an error.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def repeat(count: tf.Tensor | int, body: Callable[[tf.Tensor, Any], Any], state: Any) -> Any:
  """Returns the state after `state = body(i, state)` for i = 0, ..., count - 1.

  Args:
    count: int32, times.
    body: From int32 i and the state to the next one, of the same structure, shapes and dtypes.
    state: Tensors in any structure of `tf.nest`.
  """
  _, state = tf.while_loop(
      lambda i, _: i < count, lambda i, now: (i + 1, body(i, now)), (tf.constant(0), state)
  )
  return state
