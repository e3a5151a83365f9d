"""Tests of the random streams."""

import hashlib
import itertools

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import rng

# The first, changed in each of its parts, and what a careless concatenation would confuse with it.
_STREAMS = (
    (0, 'a', 1, 2),
    (1, 'a', 1, 2),
    (0, 'b', 1, 2),
    (0, 'a', 2, 2),
    (0, 'a', 1, 3),
    (0, 'a', 2, 1),
    (0, 'a', 12),
    (0, 'a', 1),
    (0, 'a'),
    (0, 'a1', 2),
    (0, 'a, 1', 2),
    (0, 'a", 1, 2'),
    (0, '', 1, 2),
    (10, 'a', 1, 2),
    (0, 'a', -1, 2),
    (2**62, 'a', 1, 2),
)


def _values(stream):
  """What every function gives for one stream, comparable and hashable."""
  return {
      'generator': tuple(rng.generator(*stream).integers(2**62, size=4).tolist()),
      'tf_seed': tuple(rng.tf_seed(*stream).tolist()),
      'integer': rng.integer(*stream),
      'key': rng.key(*stream),
  }


class StreamTest(parameterized.TestCase):

  @parameterized.parameters('generator', 'tf_seed', 'integer', 'key')
  def test_every_part_changes_the_stream(self, function):
    values = {stream: _values(stream)[function] for stream in _STREAMS}
    for (one, value), (other, other_value) in itertools.combinations(values.items(), 2):
      self.assertNotEqual(value, other_value, f'{one} and {other} collide')

  @parameterized.parameters(*((s,) for s in _STREAMS))
  def test_equal_parts_give_equal_draws(self, stream):
    self.assertEqual(_values(stream), _values(stream))

  def test_a_stream_does_not_depend_on_what_was_drawn_before(self):
    expected = rng.generator(3, 'flips', 1).random(5)
    np.random.seed(1)
    rng.generator(3, 'flips', 1).random(1000)
    rng.generator(4, 'flips', 1).random(7)
    np.testing.assert_array_equal(rng.generator(3, 'flips', 1).random(5), expected)

  def test_numpy_integers_are_the_integers_they_hold(self):
    # Client ids come out of arrays; they must not start streams of their own.
    self.assertEqual(_values((np.int64(5), 'a', np.int32(7))), _values((5, 'a', 7)))

  def test_neighbouring_streams_are_uncorrelated(self):
    draws = np.stack([rng.generator(0, 'clients', i).random(2000) for i in range(20)])
    correlation = np.corrcoef(draws)[np.triu_indices(20, 1)]
    # Standard error 1 / sqrt(2000) = .022; 190 pairs stay below 4.5 of it.
    self.assertLess(np.abs(correlation).max(), 0.1)


class PinnedTest(absltest.TestCase):
  """A changed value here changes every experiment ever run: do it knowingly or not at all."""

  def test_generator(self):
    np.testing.assert_allclose(
        rng.generator(0, 'a', 1).random(2), [0.56121944, 0.48621157], atol=1e-8
    )

  def test_tf_seed(self):
    seed = rng.tf_seed(0, 'a', 1)
    self.assertEqual(seed.tolist(), [-563441260, 1661290239])
    self.assertEqual((seed.dtype, seed.shape), (np.int32, (2,)))

  def test_integer(self):
    self.assertEqual(rng.integer(0, 'a', 1), 1246279023)

  def test_key(self):
    self.assertEqual(
        rng.key(0, 'a', 1).hex(),
        '54ca670231a3f7559bf5e79a95656d871df06a960683bc37d6ff3c3b1d7daa9c',
    )


class RangeTest(absltest.TestCase):

  def test_integers_fill_31_bits_and_no_more(self):
    values = [rng.integer(0, 'range', i) for i in range(1000)]
    self.assertGreaterEqual(min(values), 0)
    self.assertLess(max(values), 2**31)
    # Missed by all 1000 with probability 2^-1000, if the top bit is really in use.
    self.assertGreaterEqual(max(values), 2**30)
    self.assertLess(min(values), 2**30)

  def test_tf_seeds_use_the_sign_bit(self):
    seeds = np.stack([rng.tf_seed(0, 'range', i) for i in range(100)])
    self.assertTrue((seeds < 0).any() and (seeds > 0).any())

  def test_key_has_256_bits_that_no_public_stream_shows(self):
    # The digest behind `generator` seeds experiments in the open. The key must be another one.
    key = rng.key(0, 'labels', 1)
    self.assertLen(key, 32)
    public = hashlib.sha256(b'[0, "labels", 1]').digest()
    self.assertEqual(int.from_bytes(public[:4], 'big') >> 1, rng.integer(0, 'labels', 1))
    self.assertNotEqual(key, public)


if __name__ == '__main__':
  absltest.main()
