"""Training on flipped labels alone: what clients use, declare and send."""

import functools

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests.program import runs
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.algorithms import feddpcont
from tff_noise.algorithms import parameters
from tff_noise.data import noise
from tff_noise.data import partition
from tff_noise.data import scene as scene_lib
from tff_noise.data import sources
from tff_noise.federated import aggregation
from tff_noise.federated import task as task_lib
from tff_noise.models import keras_model
from tff_noise.privacy import costs as costs_lib
from tff_noise.privacy import estimator
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.privacy import protection
from tff_noise.program import ground_truth
from tff_noise.program import private_labels
from tff_noise.uplink import uplink

_EPSILON = '1.5'
_CLASSES = 3
_SIZES = (40, 60, 50)
# For cohorts of two, of three clients.
_PARAMS = {
    'clipfl': {'keep': 1}, 'poc': {'candidates': 3},
    # As long as it replaces no label.
    'rofl': {'pseudo_labels_from': 2},
    'feddiv': {'confidence': 1.0, 'warm_up_iterations': 0},
    'fedlsr': {'view': 'training'},  # These clients hold no images.
}
# As long as they replace no label, too.
_STAGES = {'dividemix': {'warm_up': 2, 'divide': 0}}
_ABLE = tuple((n, n) for n, m in catalog.ALGORITHMS.items() if not m.corrects_labels)
_REPORTS = protection.LabelReports(_CLASSES, _EPSILON)


@functools.cache
def _federation():
  """Labels that are mostly 0, on points around three corners."""
  draw, clients, first = np.random.default_rng(0), [], 0
  for n in _SIZES:
    y = draw.choice(_CLASSES, n, p=[0.7, 0.2, 0.1]).astype(np.int32)
    x = (np.array([[1, 0], [0, 1], [-1, -1]])[y] + draw.normal(0, 0.2, (n, 2))).astype(np.float32)
    clients.append(types.ClientExamples(x, y, np.arange(first, first + n)))
    first += n
  return types.Federation(tuple(clients), _CLASSES, 7)


@functools.cache
def _model():
  x = tf.keras.Input((2,), name='x')
  features = tf.keras.layers.GroupNormalization(groups=1, name='norm')(x)
  logits = tf.keras.layers.Dense(_CLASSES, kernel_initializer='zeros', name='logits')(features)
  return keras_model.from_keras(tf.keras.Model(x, [logits, features]))


def _task(prior='shrinkage', loss=None, **changes):
  draw = np.random.default_rng(1)
  return task_lib.Task(**{
      'model': _model(),
      'training': types.LocalTraining(2, 20, 0.2, loss=loss or types.CrossEntropy()),
      'label_privacy': task_lib.LabelPrivacy(_EPSILON, prior),
      'rounds': 2,
      'clients_per_round': 3,
      'public': draw.normal(size=(5, 2)).astype(np.float32),
      'client_sizes': np.array(_SIZES, np.int64),
      'seed': 7,
      'validation': types.Examples(
          draw.normal(size=(9, 2)).astype(np.float32), np.arange(9, dtype=np.int32) % _CLASSES
      ),
      **changes,
  })


@functools.cache
def _algorithm(name):
  """What a run with --training_labels=private builds; it has no state, and takes seconds."""
  return _algorithm_of(name, _task(stages=_STAGES.get(name, {})))


def _algorithm_of(name, task):
  task = private_labels.train_on_reports(task)
  entry = catalog.ALGORITHMS[name]
  params = entry.params(**_PARAMS.get(name, {}))
  return private_labels.declare(entry.build(task, params), task)


def _run(algorithm, federation):
  """The last state, and the ledger."""
  state, _, opened = runs.all_rounds(algorithm, _task(), federation)
  return state, opened


def _other_labels(federation):
  """Other true labels, whose reports are the same, wherever an example has such a label."""
  mechanism = mechanism_lib.randomized_response(_EPSILON, _CLASSES)
  clients = []
  for i, examples in enumerate(federation.clients):
    secret = mechanism_lib.simulation_secret(federation.seed, i)
    # What each example would report if its label were k.
    reports = np.stack([
        mechanism_lib.flip(np.full_like(examples.y, k), examples.example_id, secret, mechanism)
        for k in range(_CLASSES)
    ])
    rows = np.arange(len(examples.y))
    same = reports == reports[examples.y, rows]
    same[examples.y, rows] = False
    y = np.where(same.any(axis=0), same.argmax(axis=0), examples.y).astype(np.int32)
    clients.append(examples._replace(y=y))
  return federation._replace(clients=tuple(clients))


class FlipTest(absltest.TestCase):

  def test_labels_are_the_memoised_reports(self):
    federation = _federation()
    flipped = private_labels.flip(federation, _EPSILON, _CLASSES)
    mechanism = mechanism_lib.randomized_response(_EPSILON, _CLASSES)
    changed = 0
    for i, (before, after) in enumerate(zip(federation.clients, flipped.clients, strict=True)):
      expected = mechanism_lib.flip(
          before.y, before.example_id, mechanism_lib.simulation_secret(7, i), mechanism
      )
      np.testing.assert_array_equal(after.y, expected)
      self.assertEqual(after.y.dtype, np.int32)
      np.testing.assert_array_equal(after.x, before.x)
      np.testing.assert_array_equal(after.example_id, before.example_id)
      changed += (after.y != before.y).sum()
    self.assertEqual((flipped.num_classes, flipped.seed), (_CLASSES, 7))
    # A label is kept with probability e^1.5 / (e^1.5 + 2) = .69: of 150, 46 change, give or take 6.
    self.assertBetween(changed, 46 - 18, 46 + 18)
    again = private_labels.flip(federation, _EPSILON, _CLASSES)
    for one, other in zip(flipped.clients, again.clients, strict=True):
      np.testing.assert_array_equal(one.y, other.y)

  def test_a_report_knows_the_same_labels(self):
    dataset = sources.load(sources.DataSpec('digits'))
    scene = scene_lib.build(
        dataset,
        scene_lib.SceneSpec(
            partition.PartitionSpec('dirichlet', 5, alpha=0.5), noise.NoiseSpec('symmetric', 0.4),
            validation_fraction=0.1, client_validation_fraction=0.2,
        ),
        3,
    )
    federation = private_labels.flip(scene_lib.federation(dataset, scene, 3), _EPSILON, 10)
    reported = ground_truth.reported(scene, _EPSILON, 10, 3)
    others = np.ones(len(scene.noisy_label), bool)
    for client in federation.clients:
      np.testing.assert_array_equal(reported.noisy_label[client.example_id], client.y)
      others[client.example_id] = False
    np.testing.assert_array_equal(reported.noisy_label[others], scene.noisy_label[others])
    self.assertGreater(reported.noise_rate, scene.noise_rate + 0.1)

  def test_other_labels_with_the_same_reports_exist(self):
    # Or the tests of what is never used would say nothing.
    federation = _federation()
    others = _other_labels(federation)
    changed = sum(
        (a.y != b.y).sum() for a, b in zip(federation.clients, others.clients, strict=True)
    )
    self.assertGreater(changed, 5)
    for a, b in zip(
        private_labels.flip(federation, _EPSILON, _CLASSES).clients,
        private_labels.flip(others, _EPSILON, _CLASSES).clients, strict=True,
    ):
      np.testing.assert_array_equal(a.y, b.y)


class TaskTest(absltest.TestCase):

  def test_loss_knows_the_flips_and_keeps_its_form(self):
    before = _task(loss=types.CrossEntropy(0.1, 2.0, 'rescale'))
    after = private_labels.train_on_reports(before)
    keep = mechanism_lib.randomized_response(_EPSILON, _CLASSES).keep_probability
    self.assertEqual(after.training.loss, types.CrossEntropy(0.1, 2.0, 'rescale', keep))
    self.assertTrue(after.label_privacy.in_training)
    self.assertFalse(before.label_privacy.in_training)
    # Nothing else is changed.
    self.assertEqual(
        after._replace(training=before.training, label_privacy=before.label_privacy), before
    )


class RunTest(federated_test_case.FederatedTestCase):

  @parameterized.named_parameters(*_ABLE)
  def test_every_field_depends_on_reports_alone(self, name):
    fields = _algorithm(name).fields
    self.assertNotEmpty(fields)
    for field in fields:
      shield = field.protection
      self.assertIsInstance(shield, protection.Counts | protection.LabelReports, field.name)
      if isinstance(shield, protection.LabelReports):
        self.assertEqual((shield.num_classes, shield.epsilon), (_CLASSES, _EPSILON))
    # What has no protection of its own is what training sends.
    self.assertIn(_REPORTS, {field.protection for field in fields})

  @parameterized.named_parameters(*_ABLE)
  def test_label_epsilon_holds_for_the_whole_run(self, name):
    algorithm = _algorithm(name)
    flipped = private_labels.flip(_federation(), _EPSILON, _CLASSES)
    state, opened = _run(algorithm, flipped)
    for weights in tf.nest.flatten(state.models):
      self.assertTrue(np.isfinite(weights).all())
    costs = costs_lib.totals(opened.entries, uplink.to_json(algorithm.fields))
    actual = mechanism_lib.randomized_response(_EPSILON, _CLASSES).actual_epsilon
    self.assertEqual(
        costs[protection.Unit.LABEL], protection.Cost(actual, 0.0, protection.Status.PROVED)
    )
    # Inputs are as open as ever.
    for unit in (protection.Unit.EXAMPLE, protection.Unit.CLIENT):
      self.assertIs(costs[unit].status, protection.Status.NONE)

  @parameterized.named_parameters(('fedavg', 'fedavg'), ('feddpcont', 'feddpcont'))
  def test_true_labels_are_never_used(self, name):
    algorithm = _algorithm(name)
    states = [
        _run(algorithm, private_labels.flip(federation, _EPSILON, _CLASSES))[0]
        for federation in (_federation(), _other_labels(_federation()))
    ]
    for a, b in zip(*map(tf.nest.flatten, states), strict=True):
      np.testing.assert_array_equal(a, b)
    # While a run on the true labels sees the difference.
    entry = catalog.ALGORITHMS[name]
    local = entry.build(_task(), entry.params())
    first, second = (
        _run(local, federation)[0] for federation in (_federation(), _other_labels(_federation()))
    )
    self.assertGreater(
        np.abs(
            first.weights.trainable[0]
            - second.weights.trainable[0]
        ).max(),
        1e-4,
    )

  @parameterized.parameters('shrinkage', 'inverse')
  def test_histogram_is_that_of_the_reports_that_clients_train_on(self, prior):
    flipped = private_labels.flip(_federation(), _EPSILON, _CLASSES)
    state, _ = _run(_algorithm_of('feddpcont', _task(prior)), flipped)
    labels = np.concatenate([c.y for c in flipped.clients])
    expected = np.bincount(labels, minlength=_CLASSES)
    np.testing.assert_array_equal(state.records['label_histogram'], expected)
    # Those that are shared where clients train on their true labels: one report, not two.
    local = feddpcont.build(_task(prior), parameters.FedDPContParams())
    shared, _ = _run(local, _federation())
    np.testing.assert_array_equal(shared.records['label_histogram'], expected)

  def test_contrastive_labels_are_distributed_as_reports_are(self):
    mechanism = mechanism_lib.randomized_response(_EPSILON, _CLASSES)
    algorithm = _algorithm('feddpcont')
    flipped = private_labels.flip(_federation(), _EPSILON, _CLASSES)
    state, _ = _run(algorithm, flipped)
    found = state.received['label_prior']
    clean = estimator.estimate(state.records['label_histogram'], 'shrinkage', mechanism).prior
    a, b = mechanism.keep_probability, mechanism.other_probability
    np.testing.assert_allclose(found, (a - b) * clean + b, atol=1e-6)
    summary = algorithm.report.summary(state.records)['label_communication']
    np.testing.assert_allclose(summary['estimate'], clean)

  def test_noise_on_updates_stays_declared_beside_the_reports(self):
    shield = protection.NoisySum(1.0, 1.0, cohort=2, population=3)
    algorithm = _algorithm_of(
        'fedavg', _task(aggregation=aggregation.dp_mean(shield, noise_key=bytes(32), secure=False))
    )
    [field] = algorithm.fields
    self.assertIsNotNone(field.protection.reports)
    self.assertEqual(field.protection._replace(reports=None), shield)


class RefusalTest(absltest.TestCase):

  def test_methods_that_correct_labels_say_so(self):
    # What changes labels cannot train on reports, see run_config.
    self.assertEqual(
        [name for name, entry in catalog.ALGORITHMS.items() if entry.corrects_labels],
        ['fedcorr', 'fedelc', 'jointopt'],
    )


if __name__ == '__main__':
  absltest.main()
