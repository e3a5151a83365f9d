"""Tests of what only a simulation knows."""

import collections
import os

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.data import scene as scene_lib
from tff_noise.program import ground_truth

_NAN = np.nan


def _scene():
  """Ten examples: three clients in turns, the server's one at 3, one of unknown class at 9.

  Client 0 holds 0, 4, 7; client 1 holds 1, 5, 8; client 2 holds 2, 6, 9. Wrong: 1, 5 and 6.
  """
  return scene_lib.Scene(
      client_of=np.array([0, 1, 2, -1, 0, 1, 2, 0, 1, 2], np.int32),
      noisy_label=np.array([0, 0, 2, 1, 1, 0, 0, 2, 1, 2], np.int32),
      clean_label=np.array([0, 1, 2, 1, 1, 2, 1, 2, 1, -1], np.int32),
      nominal_rate=np.array([0.0, 0.6, 0.5]),
      is_noisy_client=np.array([False, True, True]),
      notes=(),
  )


def _algorithm(**report):
  return algorithm_lib.Algorithm(None, (), {}, report=algorithm_lib.Report(**report))


def _correcting(**report):
  return _algorithm(labels='labels', **report)


def _own(*labels):
  """What clients keep: two things, of which one is their labels."""
  return {'losses': [None] * len(labels), 'labels': [np.array(own, np.int32) for own in labels]}


_State = collections.namedtuple('_State', ['own', 'records'])


class PosteriorsTest(parameterized.TestCase):

  def test_posteriors_of_each_client_go_to_its_examples(self):
    own = {'right': [np.array(p, np.float32) for p in ([0, 1, 2], [3, 4, 5], [6, 7, _NAN])]}
    found = ground_truth.current_posteriors(_algorithm(posterior='right'), _scene(), own)
    np.testing.assert_array_equal(found, np.array([0, 3, 6, _NAN, 1, 4, 7, 2, 5, _NAN], np.float32))

  @parameterized.parameters(
      ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6, 0.7, 0.8], 1.0),
      ([0.4, 0.5, 0.6], [0.1, 0.1, 0.2, 0.2, 0.3], 0.0),
      ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5, 0.5], 0.5),
      ([0.2, _NAN, _NAN], [0.1, 0.2, 0.3, _NAN, _NAN], 0.5),
      ([_NAN, _NAN, _NAN], [0.1, 0.2, 0.3, 0.4, 0.5], _NAN),
  )
  def test_auc(self, wrong, right, expected):
    posteriors = np.full(10, 0.9, np.float32)
    posteriors[[1, 5, 6]] = wrong
    posteriors[[0, 2, 4, 7, 8]] = right
    # Those of the server, and of unknown truth, do not count.
    np.testing.assert_equal(ground_truth.wrong_label_auc(_scene(), posteriors), expected)

  def test_auc_is_the_share_of_pairs(self):
    rng = np.random.default_rng(0)
    scene = _scene()._replace(
        client_of=np.zeros(60, np.int32), noisy_label=rng.integers(2, size=60),
        clean_label=rng.integers(2, size=60), nominal_rate=np.full(1, 0.5),
    )
    posteriors = rng.integers(9, size=60).astype(np.float32) / 8
    wrong, right = posteriors[scene.flipped], posteriors[~scene.flipped]
    pairs = (right > wrong[:, np.newaxis]) + (right == wrong[:, np.newaxis]) / 2
    self.assertAlmostEqual(ground_truth.wrong_label_auc(scene, posteriors), pairs.mean())


class LabelsTest(parameterized.TestCase):

  def test_labels_of_each_client_go_to_its_examples(self):
    found = ground_truth.current_labels(
        _correcting(), _scene(), _own([10, 11, 12], [20, 21, 22], [30, 31, 32])
    )
    self.assertEqual(found.tolist(), [10, 20, 30, 1, 11, 21, 31, 12, 22, 32])
    self.assertEqual(found.dtype, np.int32)

  def test_scene_is_not_changed(self):
    scene = _scene()
    ground_truth.current_labels(_correcting(), scene, _own([9] * 3, [9] * 3, [9] * 3))
    np.testing.assert_array_equal(scene.noisy_label, _scene().noisy_label)

  @parameterized.parameters(
      (_own([9] * 3, [9] * 3),), (_own([9] * 3, [9] * 3, [9] * 4),)
  )
  def test_other_clients_are_a_mistake(self, own):
    with self.assertRaises(ValueError):
      ground_truth.current_labels(_correcting(), _scene(), own)

  def test_accuracy_is_of_what_clients_hold_and_is_known(self):
    scene = _scene()
    # Eight examples, of which 1, 5 and 6 are wrong.
    self.assertEqual(ground_truth.label_accuracy(scene, scene.noisy_label), 5 / 8)
    labels = scene.noisy_label.copy()
    labels[[1, 3, 9]] = [1, 0, 0]  # Corrected; the server's; the unknown one.
    self.assertEqual(ground_truth.label_accuracy(scene, labels), 6 / 8)

  def test_accuracy_where_nobody_knows(self):
    scene = _scene()._replace(clean_label=np.full(10, -1, np.int32))
    self.assertTrue(np.isnan(ground_truth.label_accuracy(scene, scene.noisy_label)))

  def test_where_nobody_knows_only_changes_are_counted(self):
    scene = _scene()._replace(clean_label=np.full(10, -1, np.int32))
    labels = scene.noisy_label.copy()
    labels[[0, 5]] = [2, 1]
    self.assertEqual(ground_truth.correction_summary(scene, labels), {'labels_changed': 2})

  def test_summary_of_corrections_by_hand(self):
    scene = _scene()
    labels = scene.noisy_label.copy()
    # 1 corrected, 5 changed to another wrong one, 0 was right, of 9 nobody knows; the server's does
    # not count.
    labels[[1, 5, 0, 3, 9]] = [1, 1, 1, 0, 0]
    self.assertEqual(
        ground_truth.correction_summary(scene, labels),
        {
            'label_accuracy_before': 5 / 8,
            'label_accuracy_after': 5 / 8,
            'labels_changed': 4,
            'labels_changed_to_the_true_one': 1,
            'labels_changed_that_were_right': 1,
            'labels_changed_of_unknown_truth': 1,
        },
    )

  def test_file_of_labels(self):
    path = os.path.join(self.create_tempdir().full_path, 'labels.npz')
    scene = _scene()
    own = _own([0, 1, 2], [1, 0, 1], [2, 0, 2])
    rows = 2 * np.arange(len(scene.noisy_label))
    for given in (rows, None):
      ground_truth.save_labels(path, _correcting(), scene, own, given)
      found = np.load(path)
      expected = range(len(rows)) if given is None else rows
      self.assertEqual(found['row'].tolist(), list(expected))
    self.assertCountEqual(found.files, ['label', 'corrected', 'row'])
    self.assertEqual(found['label'].tolist(), [0, 1, 2, 1, 1, 0, 0, 2, 1, 2])
    self.assertEqual(np.flatnonzero(found['corrected']).tolist(), [1])


class ClientsTest(parameterized.TestCase):

  @parameterized.parameters(
      # Noisy are 1 and 2.
      ([0, 1, 1], 1.0, 1.0, 1.0),
      ([0, 1, 0], 1.0, 0.5, 2 / 3),
      ([1, 1, 1], 2 / 3, 1.0, 0.8),
      ([1, 0, 0], 0.0, 0.0, 0.0),
      ([0, 0, 0], _NAN, 0.0, 0.0),
  )
  def test_precision_recall_and_f1(self, judged, precision, recall, f1):
    found = ground_truth.identification(_scene(), np.array(judged, bool))
    self.assertEqual(
        list(found), ['noisy_client_precision', 'noisy_client_recall', 'noisy_client_f1']
    )
    np.testing.assert_allclose(list(found.values()), [precision, recall, f1])

  def test_where_there_is_nothing_to_find(self):
    scene = _scene()._replace(is_noisy_client=np.zeros(3, bool))
    found = ground_truth.identification(scene, np.array([False, True, False]))
    np.testing.assert_allclose(list(found.values()), [0, _NAN, 0])
    found = ground_truth.identification(scene, np.zeros(3, bool))
    np.testing.assert_allclose(list(found.values()), [_NAN] * 3)

  def test_clients_of_whom_nobody_knows_whether_they_are_noisy_do_not_count(self):
    # Client 0 may be noisy or not; client 1 is found, client 2 is not.
    scene = _scene()._replace(nominal_rate=np.array([_NAN, 0.6, 0.5]))
    found = ground_truth.identification(scene, np.array([True, True, False]))
    np.testing.assert_allclose(list(found.values()), [1, 0.5, 2 / 3])
    # No clean client is known: the noisy ones cannot be told from them.
    found = ground_truth.rate_correlation(scene, scene.realised_rate)
    self.assertAlmostEqual(found['correlation'], 1)
    self.assertTrue(np.isnan(found['auc']))

  def test_correlation_and_area_by_hand(self):
    # Realised rates: 0, 2/3 and 1/2 (of client 2, one of two known).
    scene = _scene()
    rate = scene.realised_rate
    np.testing.assert_allclose(rate, [0, 2 / 3, 1 / 2])
    found = ground_truth.rate_correlation(scene, 3 * rate + 7)
    self.assertAlmostEqual(found['correlation'], 1)
    self.assertEqual(found['auc'], 1)
    found = ground_truth.rate_correlation(scene, -rate)
    self.assertAlmostEqual(found['correlation'], -1)
    self.assertEqual(found['auc'], 0)
    # One of two pairs is in order, the other is a draw.
    self.assertEqual(ground_truth.rate_correlation(scene, np.array([2.0, 3, 2]))['auc'], 0.75)

  def test_rank_correlation_by_hand(self):
    # By rank the rates are 1, 3, 2: the score's ranks 1, 2, 3 differ by 0, 1 and 1.
    found = ground_truth.rate_correlation(_scene(), np.array([1.0, 2, 9]))
    self.assertAlmostEqual(found['rank_correlation'], 1 - 6 * 2 / (3 * 8))

  def test_graded_noise_is_compared_by_its_rates(self):
    # Realised rates: 0, 2/3 and 1/2, and nobody drew them.
    scene = _scene()
    scene = scene._replace(nominal_rate=scene.realised_rate, clean_rate=0.1)
    # Of three pairs that of clients 1 and 2 is in the wrong order.
    found = ground_truth.rate_correlation(scene, np.array([1.0, 2, 9]))
    self.assertAlmostEqual(found['auc'], 2 / 3)

  @parameterized.parameters(
      ([_NAN, 1.0, 3.0], -1.0, _NAN),  # Of clients 1 and 2, which both are noisy.
      ([1.0, _NAN, 3.0], 1.0, 1.0),
      ([1.0, np.inf, 3.0], 1.0, 1.0),
      ([1.0, _NAN, _NAN], _NAN, _NAN),
      ([_NAN] * 3, _NAN, _NAN),
      ([2.0, 2.0, 2.0], _NAN, 0.5),
  )
  def test_clients_without_a_score(self, score, correlation, auc):
    found = ground_truth.rate_correlation(_scene(), np.array(score))
    np.testing.assert_allclose([found['correlation'], found['auc']], [correlation, auc])

  def test_clients_of_unknown_noise(self):
    scene = _scene()._replace(
        clean_label=np.full(10, -1, np.int32), is_noisy_client=np.zeros(3, bool)
    )
    found = ground_truth.rate_correlation(scene, np.array([1.0, 2, 3]))
    self.assertTrue(np.isnan(list(found.values())).all())


class ColumnsTest(absltest.TestCase):

  def test_of_an_algorithm_that_judges_nothing(self):
    columns = ground_truth.build_columns(_algorithm(), _scene())
    self.assertEqual(columns(_State({}, {})), {})

  def test_of_one_that_corrects_labels_and_judges_clients(self):
    algorithm = _correcting(noisy_clients=lambda records: records['noisy'])
    columns = ground_truth.build_columns(algorithm, _scene())
    state = _State(
        _own([0, 1, 2], [1, 0, 1], [2, 0, 2]), {'noisy': np.array([False, True, False])}
    )
    found = columns(state)
    self.assertEqual(
        list(found),
        ['label_accuracy', 'noisy_client_precision', 'noisy_client_recall', 'noisy_client_f1'],
    )
    np.testing.assert_allclose(list(found.values()), [6 / 8, 1, 0.5, 2 / 3])


if __name__ == '__main__':
  absltest.main()
