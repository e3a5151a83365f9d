"""Tests of what a finished run leaves."""

import collections
import json
import os
from unittest import mock

import numpy as np
from absl.testing import absltest

from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.data import scene as scene_lib
from tff_noise.federated import computation
from tff_noise.privacy import costs
from tff_noise.privacy import ledger
from tff_noise.privacy import protection
from tff_noise.program import ground_truth
from tff_noise.program import ledger_seal
from tff_noise.program import results
from tff_noise.program import run_directory
from tff_noise.program import summary
from tff_noise.uplink import uplink

_Config = collections.namedtuple(
    '_Config',
    ['method', 'seed', 'target_client_epsilon', 'early_stopping', 'training_labels',
     'label_epsilon'],
    defaults=[0, 'local', '0.5'],
)
_State = collections.namedtuple(
    '_State', ['round_num', 'participations', 'records', 'own', 'own_of_clients', 'state']
)
# What clients send in a round, and besides it.
_UPDATE, _ONCE, _ONCE_MORE = 'update', 'once', 'once more'


def _scene():
  """Three clients of two examples; client 2 has both labels wrong."""
  return scene_lib.Scene(
      client_of=np.array([0, 0, 1, 1, 2, 2], np.int32),
      noisy_label=np.array([0, 1, 1, 0, 1, 0], np.int32),
      clean_label=np.array([0, 1, 1, 0, 0, 1], np.int32),
      nominal_rate=np.array([0.0, 0.0, 0.9]),
      is_noisy_client=np.array([False, False, True]),
      notes=(),
  )


def _field(name, num_bytes):
  return uplink.UplinkField(
      name, 'float32', 'federated_sum', uplink.Disclosure.SUM, None, None, 'a test', num_bytes
  )


def _state(**changes):
  state = _State(
      round_num=3,
      participations=np.array([1, 2, 3]),
      records={'seen': np.array([0.5, np.nan, 2.0]), 'noisy': np.array([False, False, True])},
      own={
          'labels': [np.array(labels, np.int32) for labels in ([0, 1], [1, 1], [0, 0])],
          'posterior': [np.array(p, np.float32) for p in ([0.9, 0.6], [0.7, np.nan], [0.5, 0.6])],
      },
      own_of_clients=[{'kept': np.ones(2)}, {'kept': np.ones(2)}, {'kept': np.full(2, 4.0)}],
      state='the state',
  )
  return state._replace(**changes)


def _algorithm(**report):
  train = computation.Computation('train', None, (_field(_UPDATE, 100),))
  asking = computation.Computation('asking', None, (_field(_ONCE, 7), _field(_ONCE_MORE, 5)))
  return algorithm_lib.Algorithm(
      None, (asking, train), {'train': 3}, report=algorithm_lib.Report(**report)
  )


def _judging():
  return _algorithm(
      summary=lambda records: {'mine': {'seen': float(np.nansum(records['seen']))}},
      labels='labels',
      noisy_clients=lambda records: records['noisy'],
      client_columns=lambda records: {'score': records['seen'], 'constant': np.ones(3)},
      client_scores=('score', 'constant'),
  )


class WriteTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.run_ = run_directory.locate(self.create_tempdir().full_path, 'run')

    def start(folder):
      for name, text in (
          (
              'metrics.csv',
              'round,stage,test_accuracy,rejected,bytes_up,bytes_down\n1,t,0.5,0,3,4\n',
          ),
          ('timing.csv', 'round,seconds\n1,2.0\n'),
          ('config.json', '{"code": "abc"}'),
          ('scene.npz', ''),
      ):
        with open(os.path.join(folder, name), 'w', encoding='utf-8') as file:
          file.write(text)
      ledger_seal.write_key(folder)

    run_directory.create(self.run_, start)

  def _record(self, algorithm, *sent):
    """Declares what may be sent, and records what was: (round, names, clients)."""
    declared = uplink.to_json(algorithm.fields)
    run_directory.write_json(self.run_.file('uplink.json'), declared)
    opened = ledger.Ledger(
        algorithm.fields, declared, self.run_.file('ledger.jsonl'), ledger_seal.of_run(self.run_)
    )
    fields = {field.name: field for field in algorithm.fields}
    for round_num, names, clients in sent:
      opened.record(round_num, 'train', [fields[name] for name in names], np.array(clients))

  def _write(self, algorithm, scene=None, state=None, own_models=None, target=None, **flags):
    if not os.path.exists(self.run_.file('uplink.json')):
      self._record(algorithm)
    results.write(
        self.run_, _Config('mine', 7, target, **flags), scene or _scene(), algorithm,
        state or _state(), np.array([[3, 1], [0, 4]]), own_models or {}, None,
    )
    with open(self.run_.file('summary.json'), encoding='utf-8') as file:
      # JSON has no nan.
      return json.load(file, parse_constant=self.fail)

  def test_run_that_a_budget_ended(self):
    self.assertNotIn('status', self._write(_algorithm()))
    os.remove(self.run_.file('summary.json'))
    found = self._write(_algorithm()._replace(ends_after=1), target=2.5)
    self.assertEqual(
        (found['status'], found['rounds'], found['planned_rounds'], found['target_client_epsilon']),
        ('ended by budget', 1, 3, 2.5),
    )

  def test_delta_is_compared_with_the_clients_of_the_scene(self):
    noisy = _field(_UPDATE, 100)._replace(protection=protection.NoisySum(1.0, 1.0, 2, 3))
    train = computation.Computation('train', None, (noisy,))
    algorithm = algorithm_lib.Algorithm(None, (train,), {'train': 1})
    self._record(algorithm, (1, [_UPDATE], [0, 1]))
    for clients, warned in ((3, False), (100_000, True)):
      units = {**summary.units(_scene()), protection.Unit.CLIENT: clients}
      with mock.patch.object(summary, 'units', lambda scene, units=units: units):
        self._write(algorithm)
      statement = run_directory.read_json(self.run_.file('privacy.json'))['statement']
      self.assertEqual('WARNING: delta 1e-05 is not below one over' in statement, warned)

  def test_algorithm_that_judges_nothing(self):
    found = self._write(_algorithm())
    self.assertEqual((found['method'], found['seed'], found['rounds']), ('mine', 7, 1))
    self.assertEqual((found['clients'], found['noisy_clients']), (3, 1))
    self.assertFalse(os.path.exists(self.run_.file('labels.npz')))
    self.assertEmpty([k for k in found if 'label_accuracy' in k or 'precision' in k])
    self.assertEqual(
        list(summary.read_rows(self.run_.file('clients.csv'))[0])[-1], 'test_accuracy'
    )

  def test_accuracy_of_clients_is_by_the_classes_that_they_hold(self):
    found = self._write(_algorithm())  # Three of four and all of class 1 are right.
    rows = summary.read_rows(self.run_.file('clients.csv'))
    self.assertEqual([float(r['test_accuracy']) for r in rows], [0.875] * 3)
    self.assertEqual(found['worst_tenth_client_accuracy'], 0.875)
    with open(self.run_.file('confusion.csv'), encoding='utf-8') as file:
      self.assertEqual(file.read(), '3,1\n0,4\n')

  def test_own_models_of_clients_are_told_where_there_are_some(self):
    self.assertNotIn('own_models', self._write(_algorithm()))
    own = {'own_models': {'clients': 2, 'mean_test_accuracy': 0.625}}
    found = self._write(_algorithm(), own_models=own)
    self.assertEqual(found['own_models'], own['own_models'])
    self.assertIn('0.6250 on average of the own models of 2 clients', summary.text(self.run_))

  def test_bytes_are_those_of_the_rounds_which_count_everything(self):
    self._record(
        _algorithm(), (1, (_ONCE, _ONCE_MORE), (0, 1, 2)), (1, (_UPDATE,), (0, 2)),
        (2, (_ONCE, _ONCE_MORE), (1,)),
    )
    found = self._write(_algorithm())
    # Those of metrics.csv, and nothing beside them.
    self.assertEqual((found['bytes_up'], found['bytes_down']), (3, 4))
    self.assertEqual([name for name in found if 'bytes' in name], ['bytes_up', 'bytes_down'])

  def test_lines_of_the_closing_summary_are_of_all_that_is_known(self):
    algorithm = _judging()
    self.assertEqual(self._write(algorithm)['lines'], [])
    report = algorithm.report._replace(
        lines=lambda found: [
            f'  mine            {found["mine"]["seen"]} of {found["clients"]}, '
            f'{found["noisy_client_f1"]}'
        ]
    )
    found = self._write(algorithm._replace(report=report))
    self.assertEqual(found['lines'], ['  mine            2.5 of 3, 1.0'])
    self.assertIn('\n  mine            2.5 of 3, 1.0\n', summary.text(self.run_))

  def test_releases_are_those_of_the_ledger(self):
    self._record(
        _algorithm(), (1, (_ONCE, _ONCE_MORE), (0, 1, 2)),
        *((round_num, (_UPDATE,), (0, 2)) for round_num in range(1, 42)),
    )
    self._write(_algorithm())
    with open(self.run_.file('privacy.json'), encoding='utf-8') as file:
      privacy = json.load(file)
    self.assertEqual(
        {r['name']: r['times'] for r in privacy['releases']},
        {_UPDATE: 41, _ONCE: 1, _ONCE_MORE: 1},
    )
    self.assertLen(privacy['totals'], 3)

  def test_changed_ledger_is_refused(self):
    algorithm = _algorithm()
    self._record(algorithm, (1, (_UPDATE,), (0, 2)), (2, (_UPDATE,), (0, 1)))
    path = self.run_.file('ledger.jsonl')
    with open(path, encoding='utf-8') as file:
      lines = file.readlines()
    with open(path, 'w', encoding='utf-8') as file:
      file.write(lines[1])
    with self.assertRaisesRegex(ledger.LedgerError, 'line 1 does not follow'):
      self._write(algorithm)
    self.assertFalse(os.path.exists(self.run_.file('summary.json')))

  def test_algorithm_that_corrects_labels_and_judges_clients(self):
    found = self._write(_judging())
    self.assertEqual(found['mine'], {'seen': 2.5})
    # 4 of 6 right before; now 3 is wrong (it was right), 4 is right, 5 is wrong as before.
    self.assertAlmostEqual(found['label_accuracy_before'], 4 / 6)
    self.assertAlmostEqual(found['label_accuracy_after'], 4 / 6)
    self.assertEqual(
        (found['labels_changed'], found['labels_changed_to_the_true_one'],
         found['labels_changed_that_were_right']),
        (2, 1, 1),
    )
    self.assertEqual(found['noisy_client_f1'], 1)
    # Of clients 0 and 2, the only ones with a score.
    self.assertAlmostEqual(found['score_correlation'], 1)
    self.assertEqual(found['score_auc'], 1)
    # Of the last of its scores, which is constant.
    self.assertEqual(found['noisy_client_auc'], 0.5)
    self.assertIsNone(found['noisy_client_rank_correlation'])
    labels = np.load(self.run_.file('labels.npz'))
    self.assertEqual(labels['label'].tolist(), [0, 1, 1, 1, 0, 0])
    self.assertEqual(labels['corrected'].tolist(), [False] * 3 + [True] * 2 + [False])
    rows = summary.read_rows(self.run_.file('clients.csv'))
    self.assertEqual([r['score'] for r in rows], ['0.5', 'nan', '2.0'])

  def test_posteriors(self):
    found = self._write(_algorithm(posterior='posterior'))
    kept = np.load(self.run_.file('posteriors.npz'))['posterior']
    self.assertEqual(kept.dtype, np.float32)
    np.testing.assert_allclose(kept, [0.9, 0.6, 0.7, np.nan, 0.5, 0.6], atol=1e-6)
    # Of the pairs of .5 and .6, wrong, with .9, .6 and .7 five are right, and one is a tie.
    self.assertAlmostEqual(found['wrong_label_auc'], 5.5 / 6)

  def test_posteriors_of_reports(self):
    # Of what clients hold: all that is known of each label is its report.
    scene = _scene()
    judged = ground_truth.reported(scene, '0.5', 2, 7)
    self.assertTrue((judged.flipped != scene.flipped).any())
    found = self._write(_algorithm(posterior='posterior'), training_labels='private')
    kept = np.load(self.run_.file('posteriors.npz'))['posterior']
    self.assertEqual(found['wrong_label_auc'], ground_truth.wrong_label_auc(judged, kept))
    self.assertNotAlmostEqual(found['wrong_label_auc'], ground_truth.wrong_label_auc(scene, kept))

  def test_posteriors_without_a_judgement(self):
    state = _state()
    nothing = [np.full(2, np.nan, np.float32)] * 3
    found = self._write(
        _algorithm(posterior='posterior'), state=state._replace(own={'posterior': nothing})
    )
    self.assertIsNone(found['wrong_label_auc'])

  def test_summary_of_what_clients_keep(self):
    def kept(state, own):
      return {'mine': {'state': state, 'sum': float(sum(o['kept'].sum() for o in own))}}

    found = self._write(_algorithm(kept_summary=kept))
    self.assertEqual(found['mine'], {'state': 'the state', 'sum': 12.0})
    self.assertFalse(os.path.exists(self.run_.file('posteriors.npz')))
    self.assertNotIn('wrong_label_auc', found)

  def test_what_a_method_says_is_not_taken_for_something_else(self):
    own = {'planned_rounds': 9, 'wrong_label_auc': 0.5, 'seconds': 3, 'transition': [1]}
    found = self._write(_algorithm(
        summary=lambda records: own,
        # It finds what it said, and the run's in the file, by the names that each has.
        lines=lambda said: [f'{said["planned_rounds"]} {said["clients"]}'],
    ))
    self.assertEqual(found['lines'], ['9 3'])
    self.assertEqual(
        [found[f'own_{name}'] for name in ('planned_rounds', 'wrong_label_auc', 'seconds')],
        [9, 0.5, 3],
    )
    self.assertEqual(found['transition'], [1])
    self.assertNotIn('planned_rounds', found)

  def test_what_is_undefined_is_null(self):
    found = self._write(_judging())
    self.assertIsNone(found['constant_correlation'])
    self.assertEqual(found['constant_auc'], 0.5)
    state = _state()
    nobody = state._replace(records={**state.records, 'noisy': np.zeros(3, bool)})
    found = self._write(_judging(), state=nobody)
    self.assertIsNone(found['noisy_client_precision'])
    self.assertEqual(found['noisy_client_recall'], 0)

  def test_where_nobody_knows_the_truth(self):
    scene = _scene()._replace(
        clean_label=np.full(6, -1, np.int32), nominal_rate=np.full(3, np.nan),
        is_noisy_client=np.zeros(3, bool),
    )
    found = self._write(_judging(), scene=scene)
    self.assertEqual(found['labels_changed'], 2)
    self.assertNotIn('label_accuracy_after', found)
    self.assertIsNone(found['score_correlation'])
    self.assertIsNone(found['noisy_client_recall'])
    # The labels are there all the same.
    self.assertEqual(np.load(self.run_.file('labels.npz'))['corrected'].sum(), 2)

  def test_summary_is_written_last(self):
    # A run with a summary is complete: nothing may be missing then.
    def fail(*_, **__):
      raise OSError('the disk is full')

    for module, part in (
        (summary, 'write_clients'), (ground_truth, 'save_labels'), (costs, 'to_json'),
    ):
      with mock.patch.object(module, part, fail), self.assertRaises(OSError):
        self._write(_judging())
      self.assertFalse(os.path.exists(self.run_.file('summary.json')), part)



class PlainTest(absltest.TestCase):

  def test_what_a_report_may_hold_is_json(self):
    given = {
        'a': np.float32(0.5), 'b': np.int64(3), 'c': np.array([1.0, np.nan]), 4: (1, 'x'),
        'e': {'f': float('inf'), 'g': None, 'h': True},
    }
    self.assertEqual(summary.plain(given), {
        'a': 0.5, 'b': 3, 'c': [1.0, None], '4': [1, 'x'], 'e': {'f': None, 'g': None, 'h': True},
    })


if __name__ == '__main__':
  absltest.main()
