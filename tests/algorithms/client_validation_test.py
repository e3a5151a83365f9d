"""Tests of validation by clients: of the right models, on the right examples, by sums alone."""

import csv
import io
import os
import shutil

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests.algorithms import contract_runs
from tests.program import runs
from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.algorithms import averaged_model
from tff_noise.federated import aggregation
from tff_noise.models import keras_model
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.privacy import protection
from tff_noise.program import client_validation
from tff_noise.program import private_labels
from tff_noise.selection import availability
from tff_noise.uplink import uplink

_ACCURACY, _LOSS = 'client_validation_accuracy', 'client_validation_loss'


def _federation():
  """The contract's clients; the second withholds nothing."""
  draw = np.random.default_rng(1)
  withheld = tuple(
      types.ClientExamples(
          draw.normal(size=(n, 2)).astype(np.float32), draw.integers(0, 2, n).astype(np.int32),
          np.arange(100 * i, 100 * i + n),
      )
      for i, n in enumerate((2, 0, 9, 1))
  )
  return contract_runs.federation()._replace(withheld=withheld)


def _measured(model, weights, clients):
  """Accuracy and cross-entropy in NumPy, of a model on what some clients withhold."""
  network = keras_model.build_zeros(model)
  keras_model.assign(network, weights)
  x, y = (np.concatenate(parts) for parts in zip(*((c.x, c.y) for c in clients), strict=True))
  logits = keras_model.evaluated_logits(model, network(x, training=False)).numpy()
  log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
  return (logits.argmax(1) == y).mean(), -log_p[np.arange(len(y)), y].mean()


def _rows(text):
  return list(csv.DictReader(io.StringIO(text)))


class ClientValidationTest(federated_test_case.FederatedTestCase, parameterized.TestCase):

  def _run(self, built, task, eval_every=1, federation=None, **more):
    federation = federation or _federation()
    validated = client_validation.of(built, task, federation.withheld, eval_every)
    folder = more.pop('folder', None) or self.create_tempdir().full_path
    state, text = runs.run(validated, task, federation, folder, eval_every=eval_every, **more)
    return validated, state, _rows(text)

  @parameterized.parameters('fedavg', 'coteaching', 'dividemix', 'fedcorr', 'fedtally')
  def test_numbers_are_those_of_what_is_evaluated_on_what_is_withheld(self, name):
    built, task = contract_runs.build(name)
    models = {}

    def keep(round_num, evaluated, shown):
      models[round_num] = shown
      del evaluated  # Compared with the row.

    _, _, rows = self._run(
        built, task, evaluations={'test': lambda _: {'accuracy': 0, 'loss': 0}}, on_evaluated=keep
    )
    self.assertLen(rows, built.rounds)
    checked = 0
    for row in rows:
      number = int(row['round'])
      if number not in models:
        self.assertEqual((row[_ACCURACY], row[_LOSS]), ('nan', 'nan'))
        continue
      ((model, weights),) = models[number]
      accuracy, loss = _measured(model or task.model, weights, _federation().withheld)
      self.assertAlmostEqual(float(row[_ACCURACY]), accuracy, places=6)
      self.assertAlmostEqual(float(row[_LOSS]), loss, delta=1e-5 * max(1, loss))
      checked += 1
    self.assertGreater(checked, 1)

  def test_training_and_its_traffic_are_as_without(self):
    built, task = contract_runs.build('fedavg')
    _, plain = runs.run(built, task, _federation(), self.create_tempdir().full_path)
    validated, state, rows = self._run(built, task, eval_every=2)
    without, _ = runs.run(built, task, _federation(), self.create_tempdir().full_path)
    tf.nest.map_structure(
        np.testing.assert_array_equal, state.state.weights, without.state.weights
    )
    np.testing.assert_array_equal(state.participations, without.participations)
    computation = validated.computations[-1]
    self.assertEqual(computation.uplink_bytes, 3 * 4)
    for row, other in zip(rows, _rows(plain), strict=True):
      asked = 3 * (row[_ACCURACY] != 'nan')  # The fourth withholds nothing.
      for column, size in (
          ('bytes_up', computation.uplink_bytes), ('bytes_down', computation.broadcast_bytes)
      ):
        self.assertEqual(int(row[column]), int(other[column]) + asked * size)
      self.assertEqual(row['train_loss'], other['train_loss'])
    # Of three rounds the second and the last.
    self.assertEqual([row[_ACCURACY] != 'nan' for row in rows], [False, True, True])
    self.assertEqual(validated.times[client_validation.NAME], 2)

  def test_it_is_of_the_mean_of_models_where_that_is_evaluated(self):
    built, task = contract_runs.build('fedavg')
    built = averaged_model.of(built, task.model, 0.8)
    _, state, rows = self._run(built, task)
    mean = state.state.models[averaged_model.AVERAGED]
    _, loss = _measured(task.model, mean, _federation().withheld)
    _, of_last = _measured(task.model, state.state.weights, _federation().withheld)
    self.assertAlmostEqual(float(rows[-1][_LOSS]), loss, places=5)
    self.assertNotAlmostEqual(loss, of_last, places=3)

  def test_whoever_is_there_is_asked_and_nobody_else(self):
    # Round by round 0, 1 and 2; 1 and 3; 1 alone, who withholds nothing.
    there = availability.Availability(
        np.array([1, 1, 1, 2]), np.array([2, availability.NEVER, 2, 3])
    )
    built, task = contract_runs.build('fedavg', availability=there, clients_per_round=1)
    _, _, rows = self._run(built, task)
    self.assertIn(float(rows[1][_ACCURACY]), (0.0, 1.0))
    self.assertEqual(rows[2][_ACCURACY], 'nan')
    other = _federation()
    other = other._replace(withheld=tuple(
        c._replace(x=c.x + 1) if i == 3 else c for i, c in enumerate(other.withheld)
    ))
    _, _, others = self._run(built, task, federation=other)
    self.assertEqual(others[0][_LOSS], rows[0][_LOSS])
    self.assertNotEqual(others[1][_LOSS], rows[1][_LOSS])

  def test_secure_sums_come_to_the_same(self):
    built, task = contract_runs.build('fedavg')
    validated, _, rows = self._run(built, task)
    secure, secure_task = contract_runs.build(
        'fedavg', aggregation=aggregation.secure_weighted_mean(update_bound=10.0, max_examples=27)
    )
    computation = client_validation.of(
        secure, secure_task, _federation().withheld, 1
    ).computations[-1]
    self.assertEqual(
        {f.disclosure for f in computation.fields}, {uplink.Disclosure.SECURE_SUM}
    )
    self.assertEqual(
        {f.disclosure for f in validated.computations[-1].fields}, {uplink.Disclosure.SUM}
    )
    _, _, others = self._run(secure, secure_task)
    for row, other in zip(rows, others, strict=True):
      # The models differ by what sums are rounded to.
      self.assertAlmostEqual(float(other[_LOSS]), float(row[_LOSS]), delta=1e-2)

  def test_a_model_that_is_sure_and_wrong_counts_as_the_bound(self):
    task = contract_runs.build('fedavg').task
    federation = _federation()
    far = federation._replace(withheld=tuple(
        c._replace(x=np.full_like(c.x, 1e6)) for c in federation.withheld
    ))
    computation = client_validation.build(task, task.model, 9)
    built = algorithm_lib.Algorithm(lambda s, c: s, (computation,), {'look': 1})
    clients = runs.clients_of(built, task, far)
    sure = np.array([[0, 100], [0, 100]], np.float32)  # Of class 1, where both numbers are large.
    weights = tf.nest.map_structure(
        lambda w: sure if np.shape(w) == sure.shape else w,
        contract_runs.build('fedavg').algorithm.init().weights,
    )
    state = algorithm_lib.State({algorithm_lib.MODEL: weights}, {}, {}, {})
    sums = clients.view.run(computation, state, np.arange(4)).sums
    self.assertEqual(int(sums['withheld']), 12)
    wrong = 12 - int(sums['withheld_correct'])
    self.assertGreater(wrong, 0)
    self.assertAlmostEqual(float(sums['withheld_loss']), 100.0 * wrong, delta=1e-3)

  def test_a_model_that_is_not_finite_is_as_wrong_as_can_be_by_secure_sums_too(self):
    for aggregate in (
        aggregation.weighted_mean(),
        aggregation.secure_weighted_mean(update_bound=10.0, max_examples=27),
    ):
      built, task = contract_runs.build('fedavg', aggregation=aggregate)
      computation = client_validation.build(task, task.model, 9)
      looks = algorithm_lib.Algorithm(lambda s, c: s, (computation,), {'look': 1})
      weights = tf.nest.map_structure(lambda w: np.full_like(w, np.nan), built.init().weights)
      state = algorithm_lib.State({algorithm_lib.MODEL: weights}, {}, {}, {})
      sums = runs.clients_of(looks, task, _federation()).view.run(
          computation, state, np.arange(4)
      ).sums
      self.assertEqual((int(sums['withheld']), int(sums['withheld_correct'])), (12, 0))
      self.assertAlmostEqual(float(sums['withheld_loss']), 1200.0, delta=1.0)

  def test_who_withholds_nothing_is_not_asked(self):
    built, task = contract_runs.build('fedavg')
    validated = client_validation.of(built, task, _federation().withheld, 1)
    _, clients, ledger = runs.all_rounds(validated, task, _federation())
    fields = len(built.fields)
    asked = [e.clients for e in ledger.entries if e.fields[-1] >= fields]
    self.assertEqual(asked, [3, 3, 3])  # Of four.
    computation = validated.computations[-1]
    self.assertEqual(
        clients.traffic.bytes_up, 2 * built.computations[0].uplink_bytes
        + 3 * computation.uplink_bytes,
    )
    self.assertEqual(validated.smallest_cohorts(task)[client_validation.NAME], 3)

  def test_where_nobody_who_withholds_is_ever_there_no_number_is_known(self):
    there = availability.Availability(
        np.array([9, 1, 9, 9]), np.full(4, availability.NEVER)
    )
    built, task = contract_runs.build('fedavg', availability=there, clients_per_round=1)
    _, _, rows = self._run(built, task)
    self.assertEqual([row[_ACCURACY] for row in rows], ['nan'] * built.rounds)

  def test_a_secure_sum_over_the_only_one_that_withholds_is_refused(self):
    built, task = contract_runs.build(
        'fedavg', aggregation=aggregation.secure_weighted_mean(update_bound=1.0, max_examples=27)
    )
    federation = _federation()
    alone = tuple(
        c if i == 2 else c._replace(x=c.x[:0], y=c.y[:0]) for i, c in enumerate(federation.withheld)
    )
    validated = client_validation.of(built, task, alone, 1)
    cohort = validated.smallest_cohorts(task)[client_validation.NAME]
    with self.assertRaisesRegex(types.UsageError, "'client validation' may be over one client"):
      validated.computations[-1].require_company(cohort)

  def test_a_run_that_was_stopped_goes_on_to_the_bit(self):
    built, task = contract_runs.build('fedavg')
    copies = self.create_tempdir().full_path
    folder = os.path.join(copies, 'whole')
    os.mkdir(folder)
    _, last, rows = self._run(built, task, eval_every=2, folder=folder, copies=copies)
    for number in (1, 2):
      again = os.path.join(copies, f'again{number}')
      shutil.copytree(os.path.join(copies, str(number)), again)
      _, state, repeated = self._run(built, task, eval_every=2, folder=again)
      self.assertEqual(repeated, rows)
      self.assertEqual(state.digest, last.digest)
      with open(os.path.join(again, 'ledger.jsonl'), encoding='utf-8') as file:
        ledger = file.read()
      with open(os.path.join(folder, 'ledger.jsonl'), encoding='utf-8') as file:
        self.assertEqual(file.read(), ledger)

  def test_of_reports_in_place_of_labels_it_costs_no_more(self):
    built, task = contract_runs.build('fedavg')
    federation = private_labels.flip(_federation(), '1.0', 2)
    mechanism = mechanism_lib.randomized_response('1.0', 2)
    for i, (before, after) in enumerate(
        zip(_federation().withheld, federation.withheld, strict=True)
    ):
      secret = mechanism_lib.simulation_secret(federation.seed, i)
      (expected,) = mechanism_lib.flip_all([(before.y, before.example_id, secret)], mechanism)
      np.testing.assert_array_equal(after.y, expected)
    pairs = zip(_federation().withheld, federation.withheld, strict=True)
    self.assertTrue(any((before.y != after.y).any() for before, after in pairs))
    validated = client_validation.of(built, task, federation.withheld, 1)
    declared = private_labels.declare(validated, task)
    for field in declared.computations[-1].fields:
      self.assertIsInstance(field.protection, (protection.LabelReports, protection.Counts))

  @parameterized.parameters('rhfl', 'fedbn')
  def test_what_is_evaluated_by_what_clients_keep_is_refused(self, name):
    built, task = contract_runs.build(name)
    with self.assertRaisesRegex(
        types.UsageError, '^--client_validation_fraction, or a --scene that was drawn with it, is '
        'for methods that are evaluated by a model of the server'
    ):
      client_validation.of(built, task, _federation().withheld, 1)

  def test_several_models_are_refused(self):
    built, task = contract_runs.build('fedavg')
    built = built._replace(
        evaluate=lambda state, own: [algorithm_lib.Evaluated(None, state.weights)] * 2
    )
    with self.assertRaisesRegex(types.UsageError, 'evaluated by one model of the server'):
      client_validation.of(built, task, _federation().withheld, 1)

  def test_beside_noise_on_updates_it_is_refused(self):
    task = contract_runs.build('fedavg').task
    noisy = task._replace(aggregation=task.aggregation._replace(scalar=None))
    with self.assertRaisesRegex(types.UsageError, '--client_dp_noise protects updates alone'):
      client_validation.build(noisy, task.model, 9)


if __name__ == '__main__':
  absltest.main()
