"""Loops."""

import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.clients import loops


class LoopsTest(parameterized.TestCase):

  @parameterized.product(count=(0, 1, 5), traced=(False, True))
  def test_repeats(self, count, traced):
    def fibonacci(n):
      return loops.repeat(n, lambda i, s: {'a': s['b'], 'b': s['a'] + s['b'], 'last': i}, start)

    start = {'a': tf.constant(0), 'b': tf.constant(1), 'last': tf.constant(-1)}
    run = tf.function(fibonacci, autograph=False) if traced else fibonacci
    found = {name: int(v) for name, v in run(tf.constant(count)).items()}
    numbers = [0, 1, 1, 2, 3, 5, 8]
    self.assertEqual(
        found, {'a': numbers[count], 'b': numbers[count + 1], 'last': count - 1}
    )

  def test_what_a_computation_does_without_a_loop_is_refused(self):
    @tf.function(autograph=False)
    def wrong(n):
      return list(tf.range(n))

    with self.assertRaisesRegex(TypeError, 'AutoGraph'):
      wrong(3)


if __name__ == '__main__':
  absltest.main()
