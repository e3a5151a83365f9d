"""Tests of the scene."""

import os
import zipfile
from unittest import mock

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import rng
from tff_noise import types
from tff_noise.data import noise
from tff_noise.data import partition
from tff_noise.data import scene

_SPLIT_CLEAN = ('iid', 'bernoulli_dirichlet', 'dirichlet', 'natural')
_SPLIT_NOISY = ('openset_uniform', 'openset_dirichlet')
_BY_CLIENT = ('client_uniform', 'client_symmetric')


def _dataset(n=6, num_classes=3, **changes):
  """Labels 0, 1, ... K-1, 0, ...; example i is an image of the number i."""
  x = np.broadcast_to(np.arange(n).astype(np.uint8)[:, None, None, None], (n, 2, 2, 1)).copy()
  y = (np.arange(n) % num_classes).astype(np.int32)
  names = tuple(map(str, range(num_classes)))
  dataset = types.Dataset('toy', x, y, x[:3], y[:3], num_classes, (2, 2, 1), 1.0, 0.0, names)
  return dataset._replace(**changes)


def _full_dataset(n, num_classes=3, *, unknown=False, **changes):
  """A data set with all that any partition and noise could need; some truths unknown if asked."""
  draw = np.random.default_rng(0)
  dataset = _dataset(n, num_classes)
  clean = dataset.train_y.copy()
  if unknown:
    clean[draw.permutation(n)[:n // 3]] = types.UNKNOWN
  return dataset._replace(
      train_y=clean,
      human_y=np.where(draw.random(n) < 0.3, (dataset.train_y + 1) % num_classes, dataset.train_y),
      client=(np.arange(n) % 4).astype(np.int32),
      similar_class=(1, 0, *range(2, num_classes)),
      **changes,
  )


def _spec(split='iid', corruption='symmetric', *, clients=2, held=0.0, **parameters):
  """A specification by the names of partition and noise; `parameters` are fields of either."""
  own = {k: v for k, v in parameters.items() if k in partition.PartitionSpec._fields}
  other = {k: v for k, v in parameters.items() if k not in own}
  if corruption == 'matrix':
    other.setdefault('matrix', np.full((3, 3), 0.1) + 0.7 * np.eye(3))
  return scene.SceneSpec(
      partition.PartitionSpec(split, clients, **own), noise.NoiseSpec(corruption, **other), held
  )


def _scene(**changes):
  """A scene of `_dataset`: client 1 has four examples, two of them wrong; client 0 none wrong."""
  return scene.Scene(
      client_of=np.array([1, 0, 1, 0, 1, 1], np.int32),
      noisy_label=np.array([2, 1, 2, 0, 0, 2], np.int32),
      clean_label=np.array([0, 1, 2, 0, 1, 2], np.int32),
      nominal_rate=np.array([0.0, 0.25]),
      is_noisy_client=np.array([False, True]),
      notes=('class 0 had no owner and was given to client 1', 'a second note'),
  )._replace(**changes)


def _everything():
  """A scene of `_dataset` with all there can be: held out, unknown, a client of unknown rate."""
  return _scene(
      client_of=np.array([1, 0, -1, 0, 1, -1], np.int32),
      noisy_label=np.array([2, 1, 2, 0, 0, 2], np.int32),
      clean_label=np.array([-1, 1, 2, 0, -1, 2], np.int32),
      nominal_rate=np.array([0.5, np.nan]),
      is_noisy_client=np.array([True, False]),
  )


def _assert_same(first, second):
  """Asserts that two scenes have the same values and types."""
  for name in scene.Scene._fields:
    expected, found = getattr(first, name), getattr(second, name)
    if isinstance(expected, np.ndarray):
      np.testing.assert_array_equal(found, expected, name)
      assert found.dtype == expected.dtype, name
    else:
      assert found == expected, name


class SceneTest(absltest.TestCase):

  def test_ground_truth_by_hand(self):
    built = _scene()
    np.testing.assert_array_equal(built.flipped, [True, False, False, False, True, False])
    np.testing.assert_array_equal(built.sizes, [2, 4])
    np.testing.assert_allclose(built.realised_rate, [0, 0.5])
    self.assertAlmostEqual(built.noise_rate, 2 / 6)
    self.assertEqual(built.num_clients, 2)

  def test_realised_rate_can_differ_from_the_nominal_one(self):
    # A noisy client stays noisy when by luck no label was changed.
    lucky = _scene(noisy_label=np.array([0, 1, 2, 0, 1, 2], np.int32))
    np.testing.assert_array_equal(lucky.realised_rate, [0, 0])
    np.testing.assert_array_equal(lucky.is_noisy_client, [False, True])

  def test_what_the_server_holds_counts_for_nobody(self):
    held = _scene(client_of=np.array([-1, 0, 1, 0, 1, 1], np.int32))
    np.testing.assert_array_equal(held.sizes, [2, 3])
    np.testing.assert_array_equal(held.flipped, [False, False, False, False, True, False])
    np.testing.assert_allclose(held.realised_rate, [0, 1 / 3])
    self.assertAlmostEqual(held.noise_rate, 1 / 5)

  def test_unknown_labels_are_neither_right_nor_wrong(self):
    unknown = _scene(clean_label=np.array([-1, 1, 2, 0, 1, -1], np.int32))
    np.testing.assert_array_equal(unknown.is_known, [False, True, True, True, True, False])
    np.testing.assert_array_equal(unknown.sizes, [2, 4])
    np.testing.assert_allclose(unknown.realised_rate, [0, 1 / 2])
    self.assertAlmostEqual(unknown.noise_rate, 1 / 4)

  def test_rates_are_nan_where_nothing_is_known(self):
    np.testing.assert_array_equal(_everything().realised_rate, [0, np.nan])
    self.assertEqual(_everything().noise_rate, 0)
    nothing = _scene(clean_label=np.full(6, types.UNKNOWN, np.int32))
    np.testing.assert_array_equal(nothing.realised_rate, [np.nan, np.nan])
    self.assertTrue(np.isnan(nothing.noise_rate))
    self.assertFalse(nothing.flipped.any())


class BuildTest(parameterized.TestCase):

  def _build(self, probability, **dataset):
    """Builds a scene of known owners and labels, and these flip probabilities."""
    labels = np.array([1, 1, 2, 0, 1, 2], np.int32)
    client_of = np.array([1, 0, 1, 0, 1, 1], np.int32)
    with mock.patch.object(
        noise, 'corrupt', return_value=noise.NoisyLabels(labels, probability, ('a warning',))
    ), mock.patch.object(
        partition, 'split', return_value=partition.Partition(client_of, ('a note',))
    ):
      return scene.build(_dataset(**dataset), _spec(), 0)

  def test_nominal_rate_is_the_mean_over_the_clients_examples(self):
    built = self._build(np.array([0.2, 0.0, 0.4, 0.0, 0.6, 0.8]))
    np.testing.assert_allclose(built.nominal_rate, [0, (0.2 + 0.4 + 0.6 + 0.8) / 4])
    np.testing.assert_array_equal(built.is_noisy_client, [False, True])
    np.testing.assert_array_equal(built.clean_label, _dataset().train_y)
    # What the partition changed, then what the noise warns of.
    self.assertEqual(built.notes, ('a note', 'a warning'))

  def test_nominal_rate_is_over_those_that_are_known(self):
    nan = np.nan
    built = self._build(np.array([0.2, nan, nan, nan, 0.6, nan]))
    np.testing.assert_allclose(built.nominal_rate, [nan, (0.2 + 0.6) / 2])
    np.testing.assert_array_equal(built.is_noisy_client, [False, True])

  def test_symmetric_noise_is_nominal_eta_at_every_client(self):
    built = scene.build(_dataset(600), _spec(clients=7), 0)
    np.testing.assert_allclose(built.nominal_rate, np.full(7, 0.4))
    # 600 labels, standard error .02.
    self.assertAlmostEqual(built.flipped.mean(), 0.4, delta=0.08)
    self.assertAlmostEqual(built.noise_rate, built.flipped.mean())
    self.assertAlmostEqual(
        np.average(built.realised_rate, weights=built.sizes), built.flipped.mean()
    )

  def test_without_noise_nobody_is_noisy(self):
    built = scene.build(_dataset(60), _spec(corruption='none'), 0)
    self.assertFalse(built.flipped.any())
    self.assertFalse(built.is_noisy_client.any())
    np.testing.assert_array_equal(built.nominal_rate, [0, 0])

  @parameterized.parameters(
      *((split, corruption) for split in partition.PARTITIONS for corruption in noise.NOISES
        if not (split in _SPLIT_NOISY and corruption in _BY_CLIENT))
  )
  def test_every_combination_is_a_valid_scene(self, split, corruption):
    dataset = _full_dataset(40)
    path = os.path.join(self.create_tempdir().full_path, 'scene.npz')
    # As many clients as examples; and few, of what is left by the server.
    for clients, held in ((40, 0), (5, 0.25)):
      built = scene.build(dataset, _spec(split, corruption, clients=clients, held=held), 3)
      scene.save(built, path)
      _assert_same(built, scene.load(path, dataset))  # Which checks it.
      self.assertEqual(built.num_clients, 4 if split == 'natural' else clients)
      self.assertEqual(built.sizes.sum(), 40 * (1 - held))

  @parameterized.parameters(*_SPLIT_NOISY)
  def test_openset_holds_for_the_labels_clients_believe(self, split):
    built = scene.build(_dataset(300), _spec(split, clients=10, q=0.9), 1)
    for client in range(10):
      self.assertBetween(len(np.unique(built.noisy_label[built.client_of == client])), 1, 2)

  def test_natural_clients_are_those_of_the_data(self):
    dataset = _full_dataset(40)
    built = scene.build(dataset, _spec('natural', clients=99, held=0.1), 0)
    ours = built.client_of != scene.SERVER
    self.assertEqual(ours.sum(), 36)
    np.testing.assert_array_equal(built.client_of[ours], dataset.client[ours])

  def test_natural_clients_alone_have_the_names_that_the_data_give_them(self):
    dataset = _full_dataset(40)._replace(client_names=('w', 'x', 'y', 'z'))
    natural = scene.build(dataset, _spec('natural'), 0)
    self.assertEqual(natural.client_names, ('w', 'x', 'y', 'z'))
    self.assertEqual(scene.centralised(natural).client_names, ())
    self.assertEqual(scene.build(dataset, _spec(clients=4), 0).client_names, ())

  @parameterized.parameters(*_BY_CLIENT)
  def test_noise_by_client_has_one_rate_for_each(self, corruption):
    built = scene.build(_dataset(300), _spec('dirichlet', corruption, clients=10, rho=0.5), 0)
    self.assertBetween(built.is_noisy_client.sum(), 1, 9)
    np.testing.assert_array_equal(built.realised_rate[~built.is_noisy_client], 0)


class OrderTest(parameterized.TestCase):
  """Noise before an open-set split, after any other."""

  def _noise(self, spec, dataset, client_of=None, num_clients=0):
    return noise.corrupt(
        spec.noise, dataset, np.arange(len(dataset.train_y)), client_of=client_of,
        num_clients=num_clients, rng=rng.generator(7, 'label noise'),
    )

  def _split(self, spec, dataset, labels):
    return partition.split(
        spec.partition, labels, num_classes=3, natural=dataset.client,
        rng=rng.generator(7, 'partition'),
    )

  @parameterized.product(split=_SPLIT_NOISY, corruption=['symmetric', 'human', 'instance'])
  def test_openset_splits_the_noisy_labels(self, split, corruption):
    dataset, spec = _full_dataset(90), _spec(split, corruption, clients=6)
    noisy = self._noise(spec, dataset)
    owners = self._split(spec, dataset, noisy.labels)
    built = scene.build(dataset, spec, 7)
    np.testing.assert_array_equal(built.noisy_label, noisy.labels)
    np.testing.assert_array_equal(built.client_of, owners.client_of)
    # The oracle can tell: with clean labels the owners would be others.
    self.assertTrue((self._split(spec, dataset, dataset.train_y).client_of
                     != built.client_of).any())

  @parameterized.product(
      split=_SPLIT_CLEAN, corruption=['symmetric', 'human', 'client_uniform', 'client_symmetric']
  )
  def test_the_others_split_the_clean_ones(self, split, corruption):
    dataset, spec = _full_dataset(90), _spec(split, corruption, clients=6)
    owners = self._split(spec, dataset, dataset.train_y)
    clients = 4 if split == 'natural' else 6
    noisy = self._noise(spec, dataset, owners.client_of, clients)
    built = scene.build(dataset, spec, 7)
    np.testing.assert_array_equal(built.client_of, owners.client_of)
    np.testing.assert_array_equal(built.noisy_label, noisy.labels)

  @parameterized.product(split=_SPLIT_NOISY, corruption=_BY_CLIENT)
  def test_noise_by_client_before_there_are_clients_is_refused(self, split, corruption):
    with self.assertRaisesRegex(
        types.UsageError, f'^--noise={corruption} gives .* --partition={split} splits .*: use '
    ):
      scene.build(_dataset(60), _spec(split, corruption, clients=5), 0)


class ValidationTest(parameterized.TestCase):

  def _held(self, dataset, spec, seed=0):
    built = scene.build(dataset, spec, seed)
    return built, built.client_of == scene.SERVER

  @parameterized.parameters((0.0, 0), (0.006, 1), (0.1, 10), (0.256, 26), (0.94, 94))
  def test_is_that_share_of_all_examples(self, fraction, count):
    built, held = self._held(_dataset(100), _spec(held=fraction))
    self.assertEqual(held.sum(), count)
    self.assertEqual(built.sizes.sum(), 100 - count)

  @parameterized.parameters('iid', 'openset_uniform')
  def test_is_clean_and_of_no_client(self, split):
    dataset = _dataset(200)
    built, held = self._held(dataset, _spec(split, clients=5, held=0.3, rate=0.9))
    np.testing.assert_array_equal(built.noisy_label[held], dataset.train_y[held])
    examples = scene.validation(dataset, built)
    np.testing.assert_array_equal(examples.x, dataset.train_x[held])
    np.testing.assert_array_equal(examples.y, dataset.train_y[held])
    ids = [c.example_id for c in scene.federation(dataset, built, 0).clients]
    np.testing.assert_array_equal(np.sort(np.concatenate(ids)), np.flatnonzero(~held))

  def test_is_a_function_of_the_seed_alone(self):
    dataset = _full_dataset(200)
    _, held = self._held(dataset, _spec(held=0.3))
    for split, corruption in (('dirichlet', 'client_uniform'), ('openset_uniform', 'human')):
      _, other = self._held(dataset, _spec(split, corruption, clients=9, held=0.3))
      np.testing.assert_array_equal(other, held)
    _, other = self._held(dataset, _spec(held=0.3), seed=1)
    self.assertTrue((other != held).any())

  def test_is_drawn_from_all_classes(self):
    # A data set sorted by class must not lose its first or last one.
    dataset = _dataset(300)._replace(train_y=np.repeat(np.arange(3, dtype=np.int32), 100))
    _, held = self._held(dataset, _spec(held=0.5))
    for k in range(3):
      self.assertBetween(held[dataset.train_y == k].sum(), 30, 70)

  def test_is_drawn_from_known_labels_only(self):
    dataset = _full_dataset(90, unknown=True)
    built, held = self._held(dataset, _spec(corruption='human', held=0.6))
    self.assertEqual(held.sum(), 54)  # Of 60 that are known.
    self.assertFalse((built.clean_label[held] == types.UNKNOWN).any())
    self.assertFalse((scene.validation(dataset, built).y == types.UNKNOWN).any())

  @parameterized.parameters(*range(5))
  def test_leaves_every_natural_client_an_example_of_its_own(self, seed):
    # Clients 1 and 3 have a single example; without it, 1 would be given another's, 3 be gone.
    owner = np.repeat(np.arange(4, dtype=np.int32), (19, 1, 19, 1))
    dataset = _full_dataset(40)._replace(client=owner)
    built, held = self._held(dataset, _spec('natural', held=0.9), seed)
    self.assertEqual(held.sum(), 36)
    np.testing.assert_array_equal(built.client_of[~held], owner[~held])
    np.testing.assert_array_equal(built.sizes, [1, 1, 1, 1])
    self.assertEqual(built.notes, ())
    with self.assertRaisesRegex(types.UsageError, 'asks for 37 .*, 36 can be taken'):
      scene.build(dataset, _spec('natural', held=37 / 40), seed)

  def test_more_than_are_known_is_refused(self):
    with self.assertRaisesRegex(
        types.UsageError,
        '^--validation_fraction=0.7 asks for 63 examples whose true label is known, 60 can be '
        'taken; use a smaller one or --validation_dir$',
    ):
      scene.build(_full_dataset(90, unknown=True), _spec(corruption='human', held=0.7), 0)

  def test_a_share_that_is_no_example_is_refused(self):
    with self.assertRaisesRegex(types.UsageError, '0.004 of 90 examples is none; use a larger'):
      scene.build(_dataset(90), _spec(held=0.004), 0)

  def test_all_examples_are_refused(self):
    with self.assertRaisesRegex(
        types.UsageError, '^--validation_fraction=0.999 leaves no example for the clients$'
    ):
      scene.build(_dataset(6), _spec(held=0.999), 0)

  def test_too_few_left_for_the_clients_is_refused(self):
    with self.assertRaisesRegex(types.UsageError, '5 clients .* there are 3: lower --clients'):
      scene.build(_dataset(6), _spec(clients=5, held=0.5), 0)

  def test_the_data_sets_own_is_used_where_there_is_one(self):
    own = types.Examples(np.ones((2, 2, 2, 1), np.uint8), np.array([2, 0], np.int32))
    self.assertIs(scene.validation(_dataset(validation=own), _scene()), own)

  def test_without_any_there_is_none(self):
    self.assertIsNone(scene.validation(_dataset(), _scene()))


class ClientValidationTest(parameterized.TestCase):

  def _built(self, fraction, seed=0, **more):
    spec = _spec('dirichlet', clients=7, **more)._replace(client_validation_fraction=fraction)
    return scene.build(_dataset(200), spec, seed)

  @parameterized.parameters(0.1, 0.25, 0.5, 0.99)
  def test_each_client_withholds_its_share_rounded_down_and_the_rest_is_as_it_was(self, fraction):
    whole, built = self._built(0.0, held=0.1), self._built(fraction, held=0.1)
    withheld = [len(ids) for ids in scene.withheld_of(built)]
    self.assertEqual(withheld, [int(fraction * n) for n in whole.sizes])
    np.testing.assert_array_equal(built.sizes, whole.sizes - withheld)
    self.assertTrue((built.sizes > 0).all())
    for mine, rest, ids in zip(
        scene.withheld_of(built), scene.examples_of(built), scene.examples_of(whole), strict=True
    ):
      np.testing.assert_array_equal(np.sort(np.concatenate([mine, rest])), ids)
      self.assertTrue((np.diff(mine) > 0).all())
    for name in ('client_of', 'noisy_label', 'is_noisy_client'):
      np.testing.assert_array_equal(getattr(built, name), getattr(whole, name))
    np.testing.assert_allclose(built.nominal_rate, whole.nominal_rate)
    self.assertEqual((whole.withheld_size, built.withheld_size), (0, sum(withheld)))
    self.assertEqual(built.server_size, 20)

  def test_who_withholds_what_is_drawn_by_the_seed(self):
    first, again, other = self._built(0.3), self._built(0.3), self._built(0.3, seed=1)
    np.testing.assert_array_equal(first.is_withheld, again.is_withheld)
    self.assertTrue((first.is_withheld != other.is_withheld).any())

  def test_clients_validate_with_the_labels_that_they_believe(self):
    built = _scene(is_withheld=np.array([1, 0, 0, 0, 1, 0], bool))
    federation = scene.federation(_dataset(), built, 0)
    self.assertEqual([c.example_id.tolist() for c in federation.clients], [[1, 3], [2, 5]])
    self.assertEqual([c.example_id.tolist() for c in federation.withheld], [[], [0, 4]])
    self.assertEqual(federation.withheld[1].y.tolist(), [2, 0])  # Not the clean 0, 1.
    self.assertEqual(federation.withheld[1].x[:, 0, 0, 0].tolist(), [0, 4])
    self.assertIsNone(scene.validation(_dataset(), built))

  def test_what_is_said_of_labels_is_of_those_that_are_trained_on(self):
    # Of client 1's labels those of examples 0 and 4 are wrong.
    built = _scene(is_withheld=np.array([1, 0, 0, 0, 0, 0], bool))
    self.assertEqual(built.is_trained_on.tolist(), [False, True, True, True, True, True])
    self.assertEqual(np.flatnonzero(built.flipped).tolist(), [4])
    np.testing.assert_allclose(built.realised_rate, [0, 1 / 3])
    self.assertAlmostEqual(built.noise_rate, 1 / 5)

  def test_noise_of_people_stays_graded(self):
    spec = _spec('iid', 'human', clients=5)._replace(client_validation_fraction=0.2)
    built = scene.build(_full_dataset(200), spec, 0)
    self.assertTrue(built.is_graded)
    self.assertEqual(built.clean_rate, noise.HUMAN_CLEAN_RATE)
    np.testing.assert_array_equal(built.nominal_rate, built.realised_rate)
    np.testing.assert_array_equal(
        built.is_noisy_client, built.realised_rate > noise.HUMAN_CLEAN_RATE
    )
    self.assertTrue(scene.build(_full_dataset(200), spec, 0).is_graded)

  @parameterized.parameters((0.29, 100, 29), (0.57, 100, 57), (0.58, 50, 29), (0.1, 30, 3))
  def test_a_share_that_is_whole_is_not_rounded_down(self, fraction, examples, expected):
    spec = _spec('iid', 'none', clients=1)._replace(client_validation_fraction=fraction)
    self.assertEqual(scene.build(_dataset(examples), spec, 0).withheld_size, expected)

  def test_each_client_keeps_one_to_train_on(self):
    spec = _spec('iid', 'none', clients=4)._replace(client_validation_fraction=1 - 1e-15)
    built = scene.build(_dataset(20), spec, 0)
    self.assertEqual(built.sizes.tolist(), [1] * 4)

  def test_one_client_in_place_of_all_withholds_what_they_did(self):
    built = self._built(0.3)
    np.testing.assert_array_equal(
        np.sort(np.concatenate(scene.withheld_of(built))),
        scene.withheld_of(scene.centralised(built))[0],
    )

  def test_a_share_that_is_nothing_of_any_client_is_refused(self):
    with self.assertRaisesRegex(
        types.UsageError,
        r'^--client_validation_fraction=0.01 of the \d+ examples of the largest client is none; '
        'use a larger one, or leave it out$',
    ):
      self._built(0.01)


class UnknownTest(parameterized.TestCase):

  @parameterized.parameters('iid', 'natural', *_SPLIT_NOISY, 'dirichlet', 'bernoulli_dirichlet')
  def test_human_labels_of_unknown_truth_can_be_split(self, split):
    dataset = _full_dataset(90, unknown=True)
    built = scene.build(dataset, _spec(split, 'human', clients=4), 0)
    np.testing.assert_array_equal(built.noisy_label, dataset.human_y)
    np.testing.assert_array_equal(built.clean_label, dataset.train_y)
    known = dataset.train_y != types.UNKNOWN
    wrong = dataset.human_y != dataset.train_y
    self.assertAlmostEqual(built.noise_rate, wrong[known].mean())
    for client in range(4):
      own = known & (built.client_of == client)
      self.assertAlmostEqual(built.realised_rate[client], wrong[own].mean())
      self.assertAlmostEqual(built.nominal_rate[client], wrong[own].mean())

  def test_one_wrong_label_of_a_person_makes_no_client_noisy(self):
    # Clients of 20 examples: 2 wrong ones are a tenth of them, 3 more than that.
    dataset = _dataset(80)._replace(client=np.repeat(np.arange(4), 20))
    wrong = np.isin(np.arange(80), (0, 20, 21, 40, 41, 42))
    human = np.where(wrong, (dataset.train_y + 1) % dataset.num_classes, dataset.train_y)
    built = scene.build(
        dataset._replace(human_y=human.astype(np.int32)), _spec('natural', 'human', clients=4), 0
    )
    np.testing.assert_allclose(built.realised_rate, [0.05, 0.1, 0.15, 0])
    self.assertTrue(built.is_graded)
    self.assertEqual(built.clean_rate, 0.1)
    np.testing.assert_array_equal(built.is_noisy_client, [False, False, True, False])

  def test_people_who_differ_little_are_graded_too(self):
    # Two clients, of which one has 2 of 20 wrong, and the other none.
    dataset = _dataset(40)._replace(client=np.repeat(np.arange(2), 20))
    human = dataset.train_y.copy()
    human[:2] = (human[:2] + 1) % dataset.num_classes
    built = scene.build(
        dataset._replace(human_y=human.astype(np.int32)), _spec('natural', 'human', clients=2), 0
    )
    path = os.path.join(self.create_tempdir().full_path, 'scene.npz')
    scene.save(built, path)
    for found in (built, scene.read(path)):
      self.assertEqual(found.clean_rate, noise.HUMAN_CLEAN_RATE)
      np.testing.assert_array_equal(found.is_noisy_client, [False, False])
    self.assertEqual(scene.centralised(built).is_noisy_client.tolist(), [False])

  def test_drawn_noise_is_not_graded(self):
    # Nor where each label is surely flipped or kept, so that rates come to what was drawn.
    certain = _spec('dirichlet', 'symmetric', clients=10, rate=1.0)
    built = scene.build(_dataset(300), certain, 0)
    self.assertEqual(built.clean_rate, 0)
    for corruption in ('client_uniform', 'symmetric', 'none'):
      built = scene.build(_dataset(300), _spec('dirichlet', corruption, clients=10, rho=0.5), 0)
      self.assertFalse(built.is_graded)
      self.assertEqual(built.clean_rate, 0)

  def test_where_nothing_is_known_all_rates_are_nan(self):
    dataset = _full_dataset(60)._replace(train_y=np.full(60, types.UNKNOWN, np.int32))
    built = scene.build(dataset, _spec(corruption='human', clients=4), 0)
    np.testing.assert_array_equal(built.nominal_rate, np.full(4, np.nan))
    self.assertFalse(built.is_noisy_client.any())
    self.assertTrue(np.isnan(built.noise_rate))

  def test_clean_split_takes_what_people_said_for_the_truth_it_lacks(self):
    dataset = _full_dataset(90, unknown=True)
    unknown = dataset.train_y == types.UNKNOWN
    told = dataset._replace(train_y=np.where(unknown, dataset.human_y, dataset.train_y))
    spec = _spec('dirichlet', 'human', clients=5, alpha=0.3)
    np.testing.assert_array_equal(
        scene.build(dataset, spec, 2).client_of, scene.build(told, spec, 2).client_of
    )

  @parameterized.parameters(*sorted(set(noise.NOISES) - {'human'}))
  def test_other_noise_needs_the_truth(self, corruption):
    with self.assertRaisesRegex(types.UsageError, 'have none that is known: use --noise=human'):
      scene.build(_full_dataset(90, unknown=True), _spec(corruption=corruption), 0)


class PropertyTest(parameterized.TestCase):
  """What holds for every scene, over random settings."""

  def _random_setting(self, draw):
    split = draw.choice(list(partition.PARTITIONS))
    names = sorted(set(noise.NOISES) - set(_BY_CLIENT if split in _SPLIT_NOISY else ()))
    corruption = draw.choice(names)
    dataset = _full_dataset(
        int(draw.integers(100, 600)), 3, unknown=corruption == 'human' and draw.random() < 0.5
    )
    spec = _spec(
        split, corruption, clients=int(draw.integers(2, 30)), held=float(draw.uniform(0, 0.5)),
        p=float(draw.uniform(0.05, 1)), alpha=float(10 ** draw.uniform(-3, 3)),
        q=float(draw.uniform(0.05, 0.95)), rate=float(draw.random()), rho=float(draw.random()),
        tau=float(draw.uniform(0, 0.9)), semantics=draw.choice(list(noise.SEMANTICS)),
    )
    if draw.random() < 0.5:
      spec = spec._replace(client_validation_fraction=float(draw.uniform(0.2, 0.6)))
    return dataset, spec

  @parameterized.parameters(*range(40))
  def test_random_setting(self, seed):
    dataset, spec = self._random_setting(np.random.default_rng(seed))
    built = scene.build(dataset, spec, seed)
    federation = scene.federation(dataset, built, seed)
    ids = [c.example_id for c in federation.clients]
    held = np.flatnonzero(built.client_of == scene.SERVER)
    ids += [c.example_id for c in federation.withheld]
    # Disjoint and complete.
    np.testing.assert_array_equal(
        np.sort(np.concatenate([held, *ids])), np.arange(len(dataset.train_y))
    )
    self.assertLen(held, round(spec.validation_fraction * len(dataset.train_y)))
    self.assertTrue((federation.sizes > 0).all())
    if spec.partition.name in _SPLIT_NOISY:
      for client in federation.clients:
        self.assertLess(len(np.unique(client.y)), 3)
    # Five standard deviations of a binomial variable, and one label for rounding.
    known = np.bincount(built.client_of[built.is_known], minlength=built.num_clients)
    rate = built.nominal_rate
    error = np.abs(built.realised_rate - rate) * known
    self.assertTrue((error <= 1 + 5 * np.sqrt(known * rate * (1 - rate)))[known > 0].all(), spec)
    np.testing.assert_array_equal(np.isnan(rate), known == 0)
    path = os.path.join(self.create_tempdir().full_path, 'scene.npz')
    scene.save(built, path)
    _assert_same(built, scene.load(path, dataset))
    _assert_same(built, scene.build(dataset, spec, seed))


class ManyTest(absltest.TestCase):

  def test_ten_thousand_clients_keep_their_examples_in_order(self):
    dataset = _dataset(30_000)
    built = scene.build(dataset, _spec(clients=10_000, held=0.1), 0)
    federation = scene.federation(dataset, built, 0)
    self.assertLen(federation.clients, 10_000)
    np.testing.assert_array_equal(federation.sizes, built.sizes)
    ids = [c.example_id for c in federation.clients]
    self.assertTrue(all((np.diff(i) > 0).all() for i in ids))
    together = np.concatenate(ids)
    owners = np.repeat(np.arange(10_000), federation.sizes)
    np.testing.assert_array_equal(built.client_of[together], owners)
    np.testing.assert_array_equal(
        np.sort(together), np.flatnonzero(built.client_of != scene.SERVER)
    )

  def test_a_million_examples(self):
    # What is quadratic in examples or clients would never end.
    x = np.broadcast_to(np.zeros((1, 1, 1, 1), np.uint8), (1_000_000, 1, 1, 1))
    y = (np.arange(1_000_000) % 3).astype(np.int32)
    built = scene.build(
        _dataset()._replace(train_x=x, train_y=y),
        _spec('openset_dirichlet', clients=500, held=0.01), 0,
    )
    self.assertEqual(built.sizes.sum(), 990_000)


class SeedTest(absltest.TestCase):

  def test_same_seed_same_scene(self):
    spec = _spec('openset_dirichlet', 'random', held=0.1)
    first, again = (scene.build(_dataset(100), spec, 5) for _ in range(2))
    _assert_same(first, again)

  def test_other_seed_other_labels_and_owners(self):
    first, other = (scene.build(_dataset(300), _spec(), seed) for seed in (5, 6))
    self.assertGreater((first.noisy_label != other.noisy_label).mean(), 0.2)
    self.assertGreater((first.client_of != other.client_of).mean(), 0.3)

  def test_labels_do_not_depend_on_the_split_nor_an_iid_split_on_the_noise(self):
    # Two streams: comparing partitions under the same wrong labels, and the other way round.
    dataset = _dataset(300)
    base = scene.build(dataset, _spec(), 5)
    more_clients = scene.build(dataset, _spec('openset_uniform', clients=9), 5)
    np.testing.assert_array_equal(base.noisy_label, more_clients.noisy_label)
    more_noise = scene.build(dataset, _spec(rate=0.8), 5)
    np.testing.assert_array_equal(base.client_of, more_noise.client_of)

  def test_only_open_set_owners_depend_on_the_noise(self):
    dataset = _full_dataset(300)
    for split in partition.PARTITIONS:
      less, more = (
          scene.build(dataset, _spec(split, clients=6, rate=r), 5).client_of for r in (0.1, 0.6)
      )
      self.assertEqual((less == more).all(), split not in _SPLIT_NOISY, split)

  def test_more_noise_changes_more_labels(self):
    dataset = _dataset(300)
    less, more = (scene.build(dataset, _spec(rate=r), 5).flipped for r in (0.2, 0.6))
    self.assertLess(less.sum(), more.sum())


class SaveAndLoadTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir().full_path
    self.path = os.path.join(self.folder, 'scene.npz')

  @parameterized.parameters(
      _scene(), _scene(notes=()), _scene(notes=('é ∞',)), _scene(client_names=('ward 3', 'é')),
      _scene(nominal_rate=np.array([0, np.nan])),
      _scene(is_withheld=np.array([1, 0, 0, 1, 0, 0], bool)),
  )
  def test_round_trip_keeps_values_and_types(self, *fields):
    saved = scene.Scene(*fields)
    scene.save(saved, self.path)
    loaded = scene.load(self.path, _dataset(client_names=saved.client_names))
    self.assertIsInstance(loaded, scene.Scene)
    _assert_same(saved, loaded)

  def test_round_trip_of_what_is_held_out_and_unknown(self):
    saved = _everything()
    scene.save(saved, self.path)
    _assert_same(saved, scene.load(self.path, _dataset(train_y=saved.clean_label)))

  def test_a_file_of_clients_without_names_has_no_array_of_them_and_others_have_one_each(self):
    scene.save(_scene(), self.path)
    with np.load(self.path) as file:
      self.assertNotIn('client_names', file.files)
    scene.save(_scene(client_names=('a',)), self.path)
    self._assert_refused('client_names are not 2 different names')
    scene.save(_scene(client_names=('a', 'a')), self.path)
    self._assert_refused('client_names are not 2 different names')
    scene.save(_scene(client_names=('a', 'b')), self.path)
    self._assert_refused('its clients have other names', _dataset(client_names=('a', 'c')))

  def test_a_file_without_what_clients_withhold_has_no_array_of_it(self):
    scene.save(_scene(), self.path)
    with np.load(self.path) as file:
      self.assertNotIn('is_withheld', file.files)
    scene.save(_scene(is_withheld=np.zeros(6, bool)), self.path)
    self.assertIsNone(scene.load(self.path, _dataset()).is_withheld)
    scene.save(_scene(is_withheld=np.zeros(5, bool)), self.path)
    self._assert_refused('its labels and clients differ in length')
    scene.save(_everything()._replace(is_withheld=np.ones(6, bool)), self.path)
    self._assert_refused('is_withheld marks examples of the server$')
    scene.save(_scene(is_withheld=np.ones(6, bool)), self.path)
    self._assert_refused('client 0 has no examples')

  def test_a_file_of_earlier_versions_does_not_say_from_which_rate_on_clients_are_noisy(self):
    people = _scene()._replace(
        nominal_rate=np.array([0.5, 0.25]), noisy_label=np.array([2, 0, 2, 0, 1, 2], np.int32)
    )
    for graded, expected in ((people, noise.HUMAN_CLEAN_RATE), (_scene(), 0)):
      scene.save(graded, self.path)
      with np.load(self.path) as file:
        arrays = dict(file)
      del arrays['clean_rate']
      np.savez(self.path, **arrays)
      self.assertEqual(scene.load(self.path, _dataset()).clean_rate, expected)
      np.savez(self.path, **arrays, clean_rate=1.5)
      self._assert_refused('clean_rate is no number within 0 to 1')

  def test_save_leaves_one_file_and_replaces_it(self):
    scene.save(_scene(), self.path)
    scene.save(_scene(notes=('new',)), self.path)
    self.assertEqual(os.listdir(self.folder), ['scene.npz'])
    self.assertEqual(scene.load(self.path, _dataset()).notes, ('new',))

  def test_failed_save_leaves_the_old_scene(self):
    scene.save(_scene(), self.path)
    with mock.patch.object(np, 'savez_compressed', side_effect=OSError('disk full')):
      with self.assertRaises(OSError):
        scene.save(_scene(notes=('new',)), self.path)
    self.assertEqual(scene.load(self.path, _dataset()).notes, _scene().notes)

  def _assert_refused(self, problem, dataset=None):
    with self.assertRaises(types.UsageError) as caught:
      scene.load(self.path, dataset or _dataset())
    message = str(caught.exception)
    self.assertStartsWith(message, f'scene {self.path}')
    self.assertRegex(message, problem)
    self.assertNotIn('\n', message)

  def test_missing_file(self):
    self._assert_refused(': no such file$')

  def test_folder(self):
    os.mkdir(self.path)
    self._assert_refused('cannot be read .*directory')

  @parameterized.parameters(b'', b'hello', b'PK\x03\x04')
  def test_other_file(self, content):
    with open(self.path, 'wb') as file:
      file.write(content)
    self._assert_refused('cannot be read')

  def test_file_cut_at_every_place(self):
    scene.save(_scene(), self.path)
    with open(self.path, 'rb') as file:
      content = file.read()
    for end in range(0, len(content), 7):
      with open(self.path, 'wb') as file:
        file.write(content[:end])
      self._assert_refused('cannot be read')

  def _save_arrays(self, without=(), **changes):
    arrays = _scene(
        notes=np.array(['note']), client_names=np.array(['a', 'b'])
    )._asdict() | changes
    arrays = {k: v for k, v in arrays.items() if k not in without and v is not None}
    np.savez(self.path, **arrays)

  @parameterized.parameters(*((name,) for name in scene.Scene._fields[:-3]))
  def test_missing_field(self, name):
    self._save_arrays(without=(name,))
    self._assert_refused(f'cannot be read .*{name}')

  def test_pickles_are_not_opened(self):
    # A scene may come from somebody else, and a pickle runs code.
    self._save_arrays(notes=np.array([{'a': 1}], object))
    self._assert_refused('cannot be read .*allow_pickle=False')

  def test_a_member_that_is_no_array(self):
    self._save_arrays()
    with zipfile.ZipFile(self.path) as archive:
      members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(self.path, 'w') as archive:
      for name, content in members.items():
        archive.writestr(name, b'' if name == 'notes.npy' else content)
    self._assert_refused('cannot be read: notes is no array')

  @parameterized.parameters('client_of', 'noisy_label', 'clean_label')
  def test_wrong_length(self, name):
    self._save_arrays(**{name: np.zeros(5, np.int32)})
    self._assert_refused(': its labels and clients differ in length')

  def test_scene_of_a_larger_data_set(self):
    scene.save(_scene(), self.path)
    self._assert_refused(
        r': client_of has shape \(6,\), toy has 9 training examples', _dataset(9)
    )

  @parameterized.parameters(('noisy_label', -1, 0), ('clean_label', -2, -1))
  def test_label_below_the_least(self, name, label, least):
    # Unlike the truth, what the owner believes is always known.
    self._save_arrays(**{name: np.array([2, 1, 2, 0, label, 2])})
    self._assert_refused(f': {name} has a label below {least}$')

  def test_label_that_int32_does_not_hold(self):
    self._save_arrays(noisy_label=np.array([2, 1, 2, 0, 2**32 + 1, 2]))
    self._assert_refused(': noisy_label has a label above 2147483647$')

  @parameterized.parameters(-0.1, 1.1, np.inf, -np.inf)
  def test_nominal_rate_out_of_range(self, rate):
    self._save_arrays(nominal_rate=np.array([0.0, rate]))
    self._assert_refused(': nominal_rate is not within 0 to 1$')

  @parameterized.parameters(
      {'client_of': np.zeros(6)}, {'client_of': np.zeros((6, 1), int)},
      {'noisy_label': np.zeros(6, bool)}, {'clean_label': np.array(['a'] * 6)},
      {'nominal_rate': np.zeros(2, int)}, {'is_noisy_client': np.zeros(2)},
      {'notes': np.zeros(1)},
  )
  def test_array_of_another_kind(self, **changes):
    self._save_arrays(**changes)
    (name,) = changes
    self._assert_refused(f': {name} must be a vector of kind ')

  def test_rates_and_noisy_clients_of_different_length(self):
    self._save_arrays(is_noisy_client=np.zeros(3, bool))
    self._assert_refused(': nominal_rate and is_noisy_client differ in length')

  @parameterized.parameters(3, 2**31 - 1)
  def test_label_out_of_range(self, label):
    self._save_arrays(noisy_label=np.array([2, 1, 2, 0, label, 2]))
    self._assert_refused(f': label {label} of example 4 is out of range, toy has labels 0 to 2')

  def test_clean_labels_of_another_data_set(self):
    self._save_arrays(clean_label=np.array([0, 1, 2, 0, 1, 1]))
    self._assert_refused(': its clean labels are not those of toy')

  def test_unknown_truth_of_what_the_data_set_knows(self):
    self._save_arrays(clean_label=np.array([0, 1, 2, 0, 1, -1]))
    self._assert_refused(': its clean labels are not those of toy')

  @parameterized.parameters(2, -2)
  def test_client_id_out_of_range(self, client):
    self._save_arrays(client_of=np.array([1, 0, client, 0, 1, 1]))
    self._assert_refused(': client_of is not within -1 to 1')

  def test_everything_held_by_the_server(self):
    self._save_arrays(client_of=np.full(6, -1))
    self._assert_refused(': client 0 has no examples')

  @parameterized.parameters(0, 1)
  def test_client_without_examples(self, client):
    self._save_arrays(client_of=np.full(6, 1 - client))
    self._assert_refused(f': client {client} has no examples')

  def test_no_clients(self):
    self._save_arrays(
        nominal_rate=np.zeros(0), is_noisy_client=np.zeros(0, bool), client_names=np.zeros(0, 'U1')
    )
    self._assert_refused(': client_of is not within')


class FederationTest(absltest.TestCase):

  def test_clients_partition_the_examples(self):
    dataset = _dataset(50)
    built = scene.build(dataset, _spec(clients=7), 2)
    federation = scene.federation(dataset, built, seed=9)
    self.assertLen(federation.clients, 7)
    self.assertEqual((federation.num_classes, federation.seed), (3, 9))
    ids = np.concatenate([c.example_id for c in federation.clients])
    self.assertEqual(sorted(ids), list(range(50)))
    np.testing.assert_array_equal(federation.sizes, built.sizes)

  def test_clients_hold_their_own_images_and_believed_labels(self):
    federation = scene.federation(_dataset(), _scene(), seed=0)
    client = federation.clients[1]
    self.assertEqual(client.example_id.tolist(), [0, 2, 4, 5])
    self.assertEqual(client.y.tolist(), [2, 2, 0, 2])  # Not the clean 0, 2, 1, 2.
    self.assertEqual(client.x[:, 0, 0, 0].tolist(), [0, 2, 4, 5])
    self.assertEqual(
        (client.x.dtype, client.y.dtype, client.example_id.dtype),
        (np.uint8, np.int32, np.int64),
    )

  def test_what_the_server_holds_is_with_no_client(self):
    federation = scene.federation(_dataset(), _everything(), seed=0)
    self.assertEqual([c.example_id.tolist() for c in federation.clients], [[1, 3], [0, 4]])

  def test_paths_of_image_files_are_handed_on(self):
    paths = np.array([f'/images/{i}.png'.encode() for i in range(6)])
    dataset = _dataset()._replace(train_x=paths)
    client = scene.federation(dataset, _scene(), seed=0).clients[0]
    self.assertEqual(client.x.tolist(), [b'/images/1.png', b'/images/3.png'])

  def test_centralised_is_one_client_with_the_same_labels(self):
    before = _everything()._replace(nominal_rate=np.array([0.25, 0.75]))
    after = scene.centralised(before)
    self.assertEqual(after.num_clients, 1)
    np.testing.assert_array_equal(after.noisy_label, before.noisy_label)
    np.testing.assert_array_equal(after.client_of == scene.SERVER, before.client_of == scene.SERVER)
    np.testing.assert_array_equal(after.sizes, [before.sizes.sum()])
    self.assertAlmostEqual(
        after.nominal_rate[0],
        np.average(
            np.array([0.25, 0.75]),
            weights=np.bincount(before.client_of[before.is_known], minlength=2),
        ),
    )
    self.assertTrue(after.is_noisy_client[0])
    unknown = scene.centralised(before._replace(nominal_rate=np.full(2, np.nan)))
    self.assertTrue(np.isnan(unknown.nominal_rate[0]))

  def test_clean_labels_change_nothing_a_client_holds(self):
    # Ground truth must not reach training by any way.
    dataset = _dataset()
    expected = scene.federation(dataset, _scene(), seed=0)
    masked = scene.federation(
        dataset._replace(train_y=np.full(6, -99, np.int32)),
        _scene(
            clean_label=np.full(6, -99, np.int32),
            nominal_rate=np.full(2, np.nan),
            is_noisy_client=np.array([True, False]),
        ),
        seed=0,
    )
    for client, other in zip(expected.clients, masked.clients, strict=True):
      for field in types.ClientExamples._fields:
        np.testing.assert_array_equal(getattr(client, field), getattr(other, field))


if __name__ == '__main__':
  absltest.main()
