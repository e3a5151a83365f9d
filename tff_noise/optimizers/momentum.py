"""How many gradients a client's momentum SGD has moved by.

Local SGD with momentum rho is `v_i = rho v_{i-1} + g_i`, `w <- w - eta v_i`, fresh in every round.
After tau steps it has moved by `-eta sum_i b_i g_i` with `b_i = (1 - rho^(tau-i+1)) / (1 - rho)`:
gradient g_i is part of all later velocities. The sum of these coefficients is FedNova's
`||a_k||_1` (Wang et al. 2020),

  `a(tau) = (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho)`,

tau without momentum. `(w_t - w_k) / (eta a)` is thus a weighted mean of the client's gradients,
weight decay and all that was put in their place included.
"""

import tensorflow as tf


def accumulated(steps: float, rho: float) -> float:
  """Returns a(tau).

  Args:
    steps: tau, a number or a tensor of float64: two differences of nearly equal numbers are
      divided by the small `1 - rho`, which costs float32 its digits.
    rho: Local momentum, in [0, 1).
  """
  return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


def accumulated_tensor(steps: tf.Tensor, rho: float) -> tf.Tensor:
  """Returns a(tau) as float32.

  Args:
    steps: tau, an integer tensor.
    rho: Local momentum, in [0, 1).
  """
  return tf.cast(accumulated(tf.cast(steps, tf.float64), rho), tf.float32)
