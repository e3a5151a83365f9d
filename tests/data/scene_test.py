"""Tests of the scene."""

import os
from unittest import mock

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.data import noise
from tff_noise.data import partition
from tff_noise.data import scene


def _dataset(n=6, num_classes=3):
  """Labels 0, 1, ... K-1, 0, ...; example i is an image of the number i."""
  x = np.broadcast_to(np.arange(n, dtype=np.uint8)[:, None, None, None], (n, 2, 2, 1)).copy()
  y = (np.arange(n) % num_classes).astype(np.int32)
  return types.Dataset('toy', x, y, x[:3], y[:3], num_classes, 1.0)


def _spec(**changes):
  return scene.SceneSpec(2, 'iid', 0.5, 'symmetric', 0.4)._replace(**changes)


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


class SceneTest(absltest.TestCase):

  def test_ground_truth_by_hand(self):
    built = _scene()
    np.testing.assert_array_equal(built.flipped, [True, False, False, False, True, False])
    np.testing.assert_array_equal(built.sizes, [2, 4])
    np.testing.assert_allclose(built.realised_rate, [0, 0.5])

  def test_realised_rate_can_differ_from_the_nominal_one(self):
    # A noisy client stays noisy when by luck no label was changed.
    lucky = _scene(noisy_label=np.array([0, 1, 2, 0, 1, 2], np.int32))
    np.testing.assert_array_equal(lucky.realised_rate, [0, 0])
    np.testing.assert_array_equal(lucky.is_noisy_client, [False, True])


class BuildTest(parameterized.TestCase):

  def test_nominal_rate_is_the_mean_over_the_clients_examples(self):
    probability = np.array([0.2, 0.0, 0.4, 0.0, 0.6, 0.8])
    labels = np.array([1, 1, 2, 0, 1, 2], np.int32)
    client_of = np.array([1, 0, 1, 0, 1, 1], np.int32)
    with mock.patch.object(
        noise, 'corrupt', return_value=noise.NoisyLabels(labels, probability)
    ), mock.patch.object(
        partition, 'split', return_value=partition.Partition(client_of, ('a note',))
    ) as split:
      built = scene.build(_dataset(), _spec(), 0)
    np.testing.assert_allclose(built.nominal_rate, [0, (0.2 + 0.4 + 0.6 + 0.8) / 4])
    np.testing.assert_array_equal(built.is_noisy_client, [False, True])
    np.testing.assert_array_equal(built.clean_label, _dataset().train_y)
    self.assertEqual(built.notes, ('a note',))
    # FedDPCont splits the labels clients believe, not the true ones.
    np.testing.assert_array_equal(split.call_args.args[1], labels)

  def test_symmetric_noise_is_nominal_eta_at_every_client(self):
    built = scene.build(_dataset(600), _spec(num_clients=7), 0)
    np.testing.assert_allclose(built.nominal_rate, np.full(7, 0.4))
    # 600 labels, standard error .02.
    self.assertAlmostEqual(built.flipped.mean(), 0.4, delta=0.08)
    self.assertAlmostEqual(
        np.average(built.realised_rate, weights=built.sizes), built.flipped.mean()
    )

  def test_without_noise_nobody_is_noisy(self):
    built = scene.build(_dataset(60), _spec(noise='none'), 0)
    self.assertFalse(built.flipped.any())
    self.assertFalse(built.is_noisy_client.any())
    np.testing.assert_array_equal(built.nominal_rate, [0, 0])

  @parameterized.product(
      partition=list(partition.PARTITIONS), noise=list(noise.NOISES), num_clients=[2, 5, 30]
  )
  def test_every_combination_is_a_valid_scene(self, **choices):
    dataset = _dataset(30)
    built = scene.build(dataset, _spec(**choices), 3)
    path = os.path.join(self.create_tempdir().full_path, 'scene.npz')
    scene.save(built, path)
    scene.load(path, dataset)  # Checks it.
    self.assertEqual(built.sizes.sum(), 30)

  @parameterized.parameters('openset_uniform', 'openset_dirichlet')
  def test_openset_holds_for_the_labels_clients_believe(self, name):
    built = scene.build(_dataset(300), _spec(partition=name, num_clients=10, openset_q=0.9), 1)
    for client in range(10):
      self.assertLess(len(np.unique(built.noisy_label[built.client_of == client])), 3)


class SeedTest(absltest.TestCase):

  def test_same_seed_same_scene(self):
    spec = _spec(partition='openset_dirichlet', noise='random')
    first, again = (scene.build(_dataset(100), spec, 5) for _ in range(2))
    for name in scene.Scene._fields:
      np.testing.assert_array_equal(getattr(first, name), getattr(again, name))

  def test_other_seed_other_labels_and_owners(self):
    first, other = (scene.build(_dataset(300), _spec(), seed) for seed in (5, 6))
    self.assertGreater((first.noisy_label != other.noisy_label).mean(), 0.2)
    self.assertGreater((first.client_of != other.client_of).mean(), 0.3)

  def test_labels_do_not_depend_on_the_split_nor_an_iid_split_on_the_noise(self):
    # Two streams: comparing partitions under the same wrong labels, and the other way round.
    dataset = _dataset(300)
    base = scene.build(dataset, _spec(), 5)
    more_clients = scene.build(dataset, _spec(num_clients=9, partition='openset_uniform'), 5)
    np.testing.assert_array_equal(base.noisy_label, more_clients.noisy_label)
    more_noise = scene.build(dataset, _spec(noise_rate=0.8), 5)
    np.testing.assert_array_equal(base.client_of, more_noise.client_of)

  def test_more_noise_changes_more_labels(self):
    dataset = _dataset(300)
    less, more = (scene.build(dataset, _spec(noise_rate=r), 5).flipped for r in (0.2, 0.6))
    self.assertLess(less.sum(), more.sum())


class SaveAndLoadTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir().full_path
    self.path = os.path.join(self.folder, 'scene.npz')

  @parameterized.parameters(_scene(), _scene(notes=()), _scene(notes=('é ∞',)))
  def test_round_trip_keeps_values_and_types(self, *fields):
    saved = scene.Scene(*fields)
    scene.save(saved, self.path)
    loaded = scene.load(self.path, _dataset())
    self.assertIsInstance(loaded, scene.Scene)
    self.assertEqual(loaded.notes, saved.notes)
    for name in scene.Scene._fields[:-1]:
      expected, found = getattr(saved, name), getattr(loaded, name)
      np.testing.assert_array_equal(found, expected)
      self.assertEqual(found.dtype, expected.dtype)

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
    arrays = _scene(notes=np.array(['note']))._asdict() | changes
    np.savez(self.path, **{k: v for k, v in arrays.items() if k not in without})

  @parameterized.parameters(*((name,) for name in scene.Scene._fields))
  def test_missing_field(self, name):
    self._save_arrays(without=(name,))
    self._assert_refused(f'cannot be read .*{name}')

  def test_pickles_are_not_opened(self):
    # A scene may come from somebody else, and a pickle runs code.
    self._save_arrays(notes=np.array([{'a': 1}], object))
    self._assert_refused('cannot be read .*allow_pickle=False')

  @parameterized.parameters('client_of', 'noisy_label', 'clean_label')
  def test_wrong_length(self, name):
    self._save_arrays(**{name: np.zeros(5, np.int32)})
    self._assert_refused(': its labels and clients differ in length')

  def test_scene_of_a_larger_data_set(self):
    scene.save(_scene(), self.path)
    self._assert_refused(
        r': client_of has shape \(6,\), toy has 9 training examples', _dataset(9)
    )

  def test_negative_label(self):
    self._save_arrays(noisy_label=np.array([2, 1, 2, 0, -1, 2]))
    self._assert_refused(': noisy_label has a negative label')

  @parameterized.parameters(3, 2**31 - 1)
  def test_label_out_of_range(self, label):
    self._save_arrays(noisy_label=np.array([2, 1, 2, 0, label, 2]))
    self._assert_refused(f': label {label} of example 4 is out of range, toy has labels 0 to 2')

  def test_clean_labels_of_another_data_set(self):
    self._save_arrays(clean_label=np.array([0, 1, 2, 0, 1, 1]))
    self._assert_refused(': its clean labels are not those of toy')

  @parameterized.parameters(2, -1)
  def test_client_id_out_of_range(self, client):
    self._save_arrays(client_of=np.array([1, 0, client, 0, 1, 1]))
    self._assert_refused(': client_of is not within 0 to 1')

  @parameterized.parameters(0, 1)
  def test_client_without_examples(self, client):
    self._save_arrays(client_of=np.full(6, 1 - client))
    self._assert_refused(f': client {client} has no examples')

  def test_no_clients(self):
    self._save_arrays(nominal_rate=np.zeros(0), is_noisy_client=np.zeros(0, bool))
    self._assert_refused(': client_of is not within')


class FederationTest(absltest.TestCase):

  def test_clients_partition_the_examples(self):
    dataset = _dataset(50)
    built = scene.build(dataset, _spec(num_clients=7), 2)
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
