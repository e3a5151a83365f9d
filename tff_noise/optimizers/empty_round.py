"""Rounds in which no client had a finite update: the server stands still."""

from typing import Any

import tensorflow as tf

from tff_noise.federated import optimizer


def unless_empty(inputs: optimizer.ServerInputs, new: Any, old: Any) -> Any:
  """Returns `new`, or `old` if nobody contributed to `inputs`.

  A mean update of 0 is no reason to stand still for a server that moves by what it remembers.

  Args:
    inputs: What came from the clients.
    new: The result of the server's step, a structure of tensors.
    old: What it was before.
  """
  if 'examples' not in inputs.sums:
    return new  # Under client-level noise nobody may know.
  # Half an example: the sum may have been quantised.
  anyone = inputs.sums['examples'] > 0.5
  return tf.nest.map_structure(lambda a, b: tf.where(anyone, a, b), new, old)
