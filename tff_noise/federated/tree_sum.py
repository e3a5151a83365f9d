"""A sum of clipped records whose noise is that of a tree over the rounds: DP-FTRL."""

from collections.abc import Sequence

import dp_accounting
import tensorflow as tf

from tff_noise.federated import gaussian_sum
from tff_noise.privacy import tree


class TreeSum(gaussian_sum.GaussianSum):
  """The noise of each round is that of the sum over all rounds so far, less what is on it already.

  That is the noise of the node that ends in this round (`privacy.tree`) less that of the nodes that
  it takes in. A node's noise is a function of the key and its last round: nothing is carried from
  round to round.

  `tfp.TreeResidualSumQuery` is not used: it carries the noise of its nodes, of the size of the
  model each and of a number that grows, as state, and draws it from seeds that are counted up from
  one integer.
  """

  def get_noised_result(self, sample_state, global_state):
    """See base class."""
    noisy, next_state, _ = super().get_noised_result(sample_state, global_state)
    # A round by itself is no event: it is accounted for by the nodes.
    return noisy, next_state, dp_accounting.UnsupportedDpEvent()

  def noise(self, parts: Sequence[tf.Tensor], round_num: tf.Tensor) -> list[tf.Tensor]:
    """See base class."""
    draw = super().noise

    def node(end):
      return draw(parts, end - 1)

    def take_off(end, noise):
      return tree.before(end), [a - b for a, b in zip(noise, node(end), strict=True)]

    end = round_num + 1
    start = tree.before(end)
    # The nodes that it takes in, from the last one: each begins where the one before it ends.
    _, noise = tf.while_loop(lambda last, _: last > start, take_off, (end - 1, node(end)))
    return noise
