"""Tests of the partitions."""

import itertools
import re

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from scipy import stats

from tff_noise import rng
from tff_noise.data import partition

_OPENSET = ('openset_uniform', 'openset_dirichlet')


def _generator(*ids):
  return rng.generator(0, 'partition test', *ids)


def _random_settings(count):
  """Yields (labels, K, C, q), corners included: as many clients as examples, absent classes."""
  random = _generator(1000)
  for _ in range(count):
    num_classes = int(random.choice([2, 2, 3, 5, 10, 50]))
    n = int(random.choice([2, 3, 5, 10, 30, 200, 1000]))
    num_clients = int(random.choice([2, n, max(2, n // 2), int(random.integers(2, n + 1))]))
    q = float(random.choice([1e-300, 1e-6, 0.1, 0.5, 0.9, 1 - 1e-6, random.uniform(0.01, 0.99)]))
    present = random.choice(num_classes, int(random.integers(1, num_classes + 1)), replace=False)
    labels = random.choice(present, n).astype(np.int32)
    yield labels, num_classes, num_clients, q


def _counts(labels, client_of, num_classes, num_clients):
  """int `[C, K]`, examples of each client by class."""
  counts = np.zeros((num_clients, num_classes), int)
  np.add.at(counts, (client_of, labels), 1)
  return counts


class EveryPartitionTest(parameterized.TestCase):

  @parameterized.parameters(*((name,) for name in partition.PARTITIONS))
  def test_every_example_has_one_owner_and_no_client_is_empty(self, name):
    for i, (labels, num_classes, num_clients, q) in enumerate(_random_settings(200)):
      before = labels.copy()
      result = partition.split(
          name, labels, num_classes=num_classes, num_clients=num_clients, q=q, rng=_generator(i)
      )
      setting = f'{name}: n={len(labels)} K={num_classes} C={num_clients} q={q} i={i}'
      # One owner for each example is what the shape says; -1 would be an example nobody holds.
      self.assertEqual((result.client_of.dtype, result.client_of.shape), (np.int32, labels.shape))
      self.assertGreaterEqual(result.client_of.min(), 0, setting)
      self.assertLess(result.client_of.max(), num_clients, setting)
      sizes = np.bincount(result.client_of, minlength=num_clients)
      self.assertGreater(sizes.min(), 0, setting)
      self.assertEqual(sizes.sum(), len(labels))
      self.assertTrue(all(isinstance(note, str) for note in result.notes))
      np.testing.assert_array_equal(labels, before)

  @parameterized.parameters(*_OPENSET)
  def test_no_openset_client_holds_every_class(self, name):
    for i, (labels, num_classes, num_clients, q) in enumerate(_random_settings(200)):
      client_of = partition.split(
          name, labels, num_classes=num_classes, num_clients=num_clients, q=q, rng=_generator(i)
      ).client_of
      counts = _counts(labels, client_of, num_classes, num_clients)
      self.assertLess(
          (counts > 0).sum(axis=1).max(), num_classes,
          f'n={len(labels)} K={num_classes} C={num_clients} q={q} i={i}',
      )

  @parameterized.parameters(*((name,) for name in partition.PARTITIONS))
  def test_other_generator_other_split(self, name):
    labels = np.arange(500, dtype=np.int32) % 10
    first, again, other = (
        partition.split(name, labels, num_classes=10, num_clients=5, q=0.5, rng=_generator(i))
        for i in (0, 0, 1)
    )
    np.testing.assert_array_equal(first.client_of, again.client_of)
    self.assertEqual(first.notes, again.notes)
    # Chance agreement is about 1 in 5.
    self.assertGreater((first.client_of != other.client_of).mean(), 0.5)


class IidTest(parameterized.TestCase):

  @parameterized.parameters((10, 3), (10, 10), (11, 10), (19, 10), (1400, 20), (1400, 33), (5, 1))
  def test_first_clients_get_the_remainder(self, n, num_clients):
    result = partition.split(
        'iid', np.zeros(n, int), num_classes=2, num_clients=num_clients, q=0.5, rng=_generator()
    )
    quotient, remainder = divmod(n, num_clients)
    sizes = [quotient + 1] * remainder + [quotient] * (num_clients - remainder)
    self.assertEqual(np.bincount(result.client_of).tolist(), sizes)
    self.assertEqual(result.notes, ())

  def test_labels_have_no_influence(self):
    splits = [
        partition.split('iid', labels, num_classes=5, num_clients=4, q=0.5, rng=_generator())
        for labels in (np.zeros(40, int), np.arange(40) % 5)
    ]
    np.testing.assert_array_equal(splits[0].client_of, splits[1].client_of)

  def test_clients_see_all_classes_in_proportion(self):
    labels = np.repeat(np.arange(4), 2500)  # Sorted: a split without a shuffle would show.
    client_of = partition.split(
        'iid', labels, num_classes=4, num_clients=5, q=0.5, rng=_generator()
    ).client_of
    # 500 of each class in each client, standard error about 17.
    np.testing.assert_allclose(_counts(labels, client_of, 4, 5), 500, atol=4.5 * 17.3)


class OwnersTest(parameterized.TestCase):

  def test_rows_are_neither_empty_nor_full_and_columns_are_owned(self):
    random = _generator(2000)
    for i in range(200):
      num_classes = int(random.integers(2, 30))
      num_clients = int(random.choice([2, 3, 10, 100]))
      q = float(random.choice([1e-300, 1e-6, 0.3, 0.7, 1 - 1e-6, 1 - 1e-15]))
      owners, _ = partition.draw_openset_owners(num_clients, num_classes, q, _generator(i))
      setting = f'K={num_classes} C={num_clients} q={q} i={i}'
      self.assertEqual((owners.dtype, owners.shape), (bool, (num_clients, num_classes)))
      self.assertBetween(owners.sum(axis=1).min(), 1, num_classes - 1, setting)
      self.assertBetween(owners.sum(axis=1).max(), 1, num_classes - 1, setting)
      self.assertTrue(owners.any(axis=0).all(), setting)

  @parameterized.product(num_classes=[2, 3, 4], q=[0.1, 0.5, 0.8])
  def test_rows_follow_the_bernoulli_rows_that_are_neither_empty_nor_full(self, num_classes, q):
    n = 6000  # So many clients that every class has an owner: no row is corrected.
    owners, notes = partition.draw_openset_owners(n, num_classes, q, _generator(3))
    self.assertEqual(notes, ())
    patterns = [
        p for p in itertools.product([0, 1], repeat=num_classes) if 0 < sum(p) < num_classes
    ]
    found = np.array([(owners == np.array(p)).all(axis=1).sum() for p in patterns])
    weight = np.array([q ** sum(p) * (1 - q) ** (num_classes - sum(p)) for p in patterns])
    self.assertGreater(stats.chisquare(found, n * weight / weight.sum()).pvalue, 1e-4)

  def test_number_of_classes_is_that_of_the_papers_redraw(self):
    # The procedure as the paper has it: draw the row again until it is neither empty nor full.
    random = _generator(4)
    rejection = []
    while len(rejection) < 5000:
      row = random.random(6) < 0.75
      if 0 < row.sum() < 6:
        rejection.append(row.sum())
    owners, _ = partition.draw_openset_owners(5000, 6, 0.75, _generator(5))
    table = [np.bincount(sizes, minlength=6)[1:] for sizes in (rejection, owners.sum(axis=1))]
    self.assertGreater(stats.chi2_contingency(table)[1], 1e-4)

  @parameterized.parameters((1e-6, 1), (1 - 1e-6, 9))
  def test_extreme_q_ends_and_takes_the_nearest_allowed_row(self, q, size):
    # Redrawing until a row fits would take a million tries for each client.
    owners, notes = partition.draw_openset_owners(1000, 10, q, _generator(6))
    self.assertEqual(notes, ())
    np.testing.assert_array_equal(owners.sum(axis=1), np.full(1000, size))
    # Every class is the odd one out 100 times, standard error 9.5.
    odd = owners.sum(axis=0) if size == 1 else (~owners).sum(axis=0)
    np.testing.assert_allclose(odd, 100, atol=4 * 9.5)

  def test_class_without_owner_gets_one_owner_and_a_note(self):
    noted = 0
    for i in range(100):
      # Three clients with about one class each, of eight.
      owners, notes = partition.draw_openset_owners(3, 8, 0.05, _generator(7, i))
      for note in notes:
        match = re.fullmatch(r'class (\d+) had no owner and was given to client (\d+)', note)
        k, client = map(int, match.groups())
        np.testing.assert_array_equal(np.flatnonzero(owners[:, k]), [client])
        noted += 1
      # Without notes the rows are as drawn, and three of them hold at least eight classes in all.
      if not notes:
        self.assertGreaterEqual(owners.sum(), 8)
    self.assertGreater(noted, 300)

  def test_two_clients_two_classes_swap_instead_of_becoming_full(self):
    # Each client knows one class. Where it is the same one, nobody has room for the other.
    swapped, givers = 0, []
    for i in range(400):
      owners, notes = partition.draw_openset_owners(2, 2, 0.5, _generator(8, i))
      np.testing.assert_array_equal(owners.sum(axis=0), [1, 1])
      np.testing.assert_array_equal(owners.sum(axis=1), [1, 1])
      self.assertLessEqual(len(notes), 1)
      if notes:
        swapped += 1
        givers.append(int(notes[0][-1]))
    # Both draw the same class with probability 1/2: 200 of 400, standard error 10.
    self.assertBetween(swapped, 160, 240)
    # And either client may be the one that swaps: half of them, standard error .035.
    self.assertAlmostEqual(np.mean(givers), 0.5, delta=4 * 0.036)

  def test_swap_leaves_the_dropped_class_with_the_others(self):
    # q near 1: every client knows all classes but one, often the same one.
    swaps = 0
    for i in range(300):
      owners, notes = partition.draw_openset_owners(2, 3, 1 - 1e-9, _generator(9, i))
      self.assertTrue(owners.any(axis=0).all())
      np.testing.assert_array_equal(owners.sum(axis=1), [2, 2])
      swaps += len(notes)
    # Both miss the same class with probability 1/3: 100 of 300, standard error 8.2.
    self.assertBetween(swaps, 67, 133)


class LargestRemainderTest(parameterized.TestCase):

  @parameterized.parameters(
      (7, [0.5, 0.3, 0.2], [4, 2, 1]),  # 3.5, 2.1, 1.4: one left, .5 is the largest fraction.
      (10, [0.25, 0.25, 0.5], [3, 2, 5]),  # A tie goes to the first.
      (7, [1 / 3] * 3, [3, 2, 2]),
      (1, [0.2, 0.5, 0.3], [0, 1, 0]),
      (2, [0.2, 0.5, 0.3], [0, 1, 1]),  # .4, 1.0, .6
      (0, [0.5, 0.5], [0, 0]),
      (5, [1.0], [5]),
      (5, [0.0, 1.0, 0.0], [0, 5, 0]),
      (3, [0.2] * 5, [1, 1, 1, 0, 0]),  # More owners than examples.
  )
  def test_by_hand(self, total, shares, expected):
    parts = partition.largest_remainder(total, np.array(shares))
    self.assertEqual(parts.tolist(), expected)
    self.assertEqual(parts.dtype, np.int64)

  def test_sums_exactly_and_stays_within_one_of_the_share(self):
    random = _generator(10)
    for _ in range(500):
      m = int(random.integers(1, 200))
      total = int(random.choice([0, 1, m, 7 * m, random.integers(0, 10**6)]))
      shares = random.choice(
          [np.full(m, 1 / m), random.dirichlet(np.ones(m)), random.dirichlet(np.full(m, 0.01))]
      )
      parts = partition.largest_remainder(total, shares)
      self.assertEqual(parts.sum(), total)
      self.assertGreaterEqual(parts.min(), 0)
      self.assertLess(np.abs(parts - total * shares).max(), 1 + 1e-6)


class OpensetUniformTest(absltest.TestCase):

  def test_owners_of_a_class_share_it_equally(self):
    for i in range(100):
      random = _generator(11, i)
      labels = random.integers(0, 6, 400)
      result = partition.split(
          'openset_uniform', labels, num_classes=6, num_clients=8, q=0.5, rng=random
      )
      counts = _counts(labels, result.client_of, 6, 8)
      for k in range(6):
        held = counts[:, k][counts[:, k] > 0]
        # An empty client's example comes from elsewhere; 8 clients of 400 examples never are.
        self.assertLessEqual(held.max() - held.min(), 1, f'class {k} of run {i}: {counts[:, k]}')

  def test_remainder_does_not_favour_low_client_ids(self):
    # Class 0 has one example. Both clients own it with probability 4/9; if ties went to the
    # lower id, client 0 would have it in 13 of 18 runs.
    labels = np.array([0] + [1] * 20 + [2] * 20)
    first = np.mean([
        partition.split(
            'openset_uniform', labels, num_classes=3, num_clients=2, q=0.999999,
            rng=_generator(12, i),
        ).client_of[0] == 0
        for i in range(400)
    ])
    # Standard error .025.
    self.assertAlmostEqual(first, 0.5, delta=4 * 0.025)

  def test_which_examples_a_client_gets_is_drawn(self):
    # Of one class in file order, a split without a shuffle would give out contiguous blocks.
    labels = np.repeat([0, 1], 200)
    client_of = partition.split(
        'openset_uniform', labels, num_classes=2, num_clients=8, q=0.5, rng=_generator(13)
    ).client_of
    self.assertGreater((np.diff(client_of[:200]) != 0).sum(), 50)


class OpensetDirichletTest(absltest.TestCase):

  def test_share_of_one_of_two_owners_is_uniform(self):
    # Dir(1) over two owners is Unif(0, 1). A count strictly between 0 and n means two owners.
    labels = np.array([0] * 10_000 + [1] * 10 + [2] * 10)
    shares = []
    for i in range(400):
      client_of = partition.split(
          'openset_dirichlet', labels, num_classes=3, num_clients=2, q=0.7, rng=_generator(14, i)
      ).client_of
      share = (client_of[:10_000] == 0).mean()
      if 0 < share < 1:
        shares.append(share)
    self.assertGreater(len(shares), 100)
    self.assertGreater(stats.kstest(shares, 'uniform').pvalue, 1e-4)
    # Variance 1/12 with standard error sqrt(.8 / n) / 12. Dir(2) would have 1/20.
    self.assertAlmostEqual(np.var(shares), 1 / 12, delta=4 * np.sqrt(0.8 / len(shares)) / 12)

  def test_differs_from_the_uniform_allocation(self):
    labels = np.arange(2000) % 10
    spread = {}
    for name in _OPENSET:
      client_of = partition.split(
          name, labels, num_classes=10, num_clients=20, q=0.5, rng=_generator(15)
      ).client_of
      counts = _counts(labels, client_of, 10, 20)
      spread[name] = np.mean([counts[:, k][counts[:, k] > 0].std() for k in range(10)])
    self.assertGreater(spread['openset_dirichlet'], 10 * spread['openset_uniform'])


class EmptyClientTest(parameterized.TestCase):

  def test_client_of_an_absent_class_gets_one_example_and_a_note(self):
    # Only class 0 has examples: who knows class 1 alone starts with nothing.
    filled = 0
    for i in range(50):
      result = partition.split(
          'openset_uniform', np.zeros(40, int), num_classes=2, num_clients=5, q=0.5,
          rng=_generator(16, i),
      )
      sizes = np.bincount(result.client_of, minlength=5)
      empty = []
      for note in result.notes:
        if note.startswith('class'):
          continue  # Class 1, or 0, had no owner.
        match = re.fullmatch(
            r'client (\d+) was empty and got one example of class 0 from client (\d+)', note
        )
        self.assertIsNotNone(match, note)
        empty.append(int(match[1]))
        self.assertNotIn(int(match[2]), empty)
      # 40 examples of 1 to 4 owners are 10 or more each: one example is what was given.
      np.testing.assert_array_equal(np.flatnonzero(sizes == 1), sorted(empty))
      # Given by the richest, so the owners still differ by at most one.
      owners = sizes[sizes > 1]
      self.assertLessEqual(owners.max() - owners.min(), 1)
      filled += len(empty)
    self.assertGreater(filled, 50)

  def test_example_of_a_class_the_client_knows_is_preferred(self):
    # Nine owners share four examples of class 0, so five of them have nothing; they may hold
    # class 0 only, but all of its examples are the last one of somebody.
    labels = np.array([0] * 4 + [1] * 40)
    owners = np.array([[True, False]] * 9 + [[False, True]])
    client_of = np.array([0, 1, 2, 2] + [9] * 40, np.int32)
    notes = partition._fill_empty_clients(client_of, labels, owners, _generator(17))
    counts = _counts(labels, client_of, 2, 10)
    # Client 3 got the spare one of class 0, from client 2; the rest got class 1 from client 9.
    self.assertEqual(counts[:4].tolist(), [[1, 0]] * 4)
    self.assertEqual(counts[4:].tolist(), [[0, 1]] * 5 + [[0, 35]])
    self.assertEqual(notes[0], 'client 3 was empty and got one example of class 0 from client 2')
    self.assertLen(notes, 6)

  @parameterized.parameters(*_OPENSET)
  def test_as_many_clients_as_examples(self, name):
    for i in range(20):
      result = partition.split(
          name, np.arange(30) % 3, num_classes=3, num_clients=30, q=0.5, rng=_generator(18, i)
      )
      self.assertEqual(sorted(result.client_of), list(range(30)))

  @parameterized.parameters(*_OPENSET)
  def test_nothing_corrected_nothing_noted(self, name):
    # 30 clients leave a class without an owner with probability 2^-29, and 2000 examples a class
    # leave no owner's share so small that it rounds to nothing in all of its classes.
    labels = np.arange(20_000) % 10
    result = partition.split(
        name, labels, num_classes=10, num_clients=30, q=0.5, rng=_generator(19)
    )
    self.assertEqual(result.notes, ())


if __name__ == '__main__':
  absltest.main()
