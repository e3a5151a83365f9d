"""Tests that rounded bounds are bounds."""

from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.privacy import rounding


class RoundingTest(parameterized.TestCase):

  @parameterized.parameters(
      (32.8546, '32.86', '32.85'), (0.81, '0.81', '0.81'), (0.81000001, '0.8101', '0.81'),
      (0.0, '0', '0'), (12.0, '12', '12'), (9.99951, '10', '9.999'), (123456.0, '1.235e+05',
                                                                      '1.234e+05'),
      (3.20000000000001, '3.2', '3.2'), (1e-9, '1e-09', '1e-09'), (float('inf'), 'inf', 'inf'),
  )
  def test_by_hand(self, bound, above, below):
    self.assertEqual(rounding.up(bound), above)
    self.assertEqual(rounding.down(bound), below)


if __name__ == '__main__':
  absltest.main()
