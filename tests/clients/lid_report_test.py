"""The LID that clients report of their local models."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.clients import one_client
from tff_noise import types
from tff_noise.clients import intrinsic_dimension
from tff_noise.clients import lid_report
from tff_noise.clients import program
from tff_noise.federated import computation
from tff_noise.federated import selectors
from tff_noise.federated import task as task_lib
from tff_noise.uplink import disclosure
from tff_noise.uplink import per_client
from tff_noise.uplink import uplink

_NEIGHBOURS = 4
_TEMPERATURE = 2.0


def _examples(seed, count=9):
  draw = np.random.default_rng(seed)
  return draw.normal(size=(count, 2)).astype(np.float32), draw.integers(0, 2, count)


class ValueTest(parameterized.TestCase):

  def test_of_three_predictions_by_hand(self):
    # Both probabilities change alike, so distances are those of the first one: .1, .2 and .3
    # between .2, .3 and .5. The ratios of near to far are 1 / 3, 1 / 2 and 2 / 3.
    first = np.array([0.2, 0.3, 0.5])
    logits = np.log(np.stack([first, 1 - first], axis=1)).astype(np.float32)
    found = lid_report.value(tf.constant(logits), tf.zeros(3), 2)
    expected = np.mean([2 / np.log(3), 2 / np.log(2), 2 / np.log(1.5)])
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    self.assertEqual(found.dtype, tf.float32)

  @parameterized.parameters(np.nan, np.inf)
  def test_is_no_number_where_training_diverged(self, loss):
    logits = tf.constant(np.random.default_rng(0).normal(size=(6, 3)), tf.float32)
    self.assertTrue(np.isfinite(lid_report.value(logits, tf.zeros(6), 2)))
    diverged = tf.constant([0.0] * 5 + [loss])
    self.assertTrue(np.isnan(lid_report.value(logits, diverged, 2)))
    self.assertTrue(np.isnan(lid_report.value(logits * np.nan, diverged, 2)))

  def test_bounds_that_are_declared_hold(self):
    draw = np.random.default_rng(0)
    for scale in (0, 1e-3, 1, 100, 1e4):
      logits = tf.constant(scale * draw.normal(size=(30, 5)), tf.float32)
      found = lid_report.value(logits, tf.zeros(30), _NEIGHBOURS)
      self.assertBetween(found, lid_report.REPORT.lower, lid_report.REPORT.upper)


class ReportingTest(federated_test_case.FederatedTestCase):

  def _build(self, selector=None):
    training = types.LocalTraining(epochs=2, batch_size=3, learning_rate=0.5)
    return computation.train(
        'a round',
        task_lib.Task(toy.linear_model(), training),
        program.ClientProgram(
            one_client.cross_entropy, final=lid_report.final(_NEIGHBOURS, _TEMPERATURE),
            reports=(lid_report.REPORT,),
        ),
        selector=selector,
    )

  def _round(self, process, data):
    return process.next(process.initialize(), [toy.client(i, *c) for i, c in data.items()])

  def test_is_that_of_the_local_model(self):
    process = self._build().process
    for client in range(3):
      x, y = _examples(client)
      output = self._round(process, {client: (x, y)})
      # Of one client, the global model is the local one.
      logits = x @ output.state.global_model_weights.trainable[0] / _TEMPERATURE
      expected = intrinsic_dimension.lid_score(tf.nn.softmax(logits), _NEIGHBOURS)
      self.assertEqual(list(output.metrics['reports']), ['client', 'lid'])
      np.testing.assert_allclose(output.metrics['reports']['lid'], [expected], rtol=1e-3)

  def test_diverged_client_reports_none(self):
    x, y = _examples(0)
    broken = np.full_like(x, np.nan)
    output = self._round(self._build().process, {7: (broken, y), 2: (x, y)})
    reports = per_client.in_order(output.metrics['reports'], np.array([2, 7]))
    self.assertEqual(np.isnan(reports['lid']).tolist(), [False, True])

  def test_is_declared(self):
    result = self._build()
    self.assertEqual(result.fields[-1:], per_client.fields((lid_report.REPORT,)))
    field = result.fields[-1]
    self.assertIs(field.disclosure, uplink.Disclosure.PER_CLIENT)
    self.assertEqual(field.type_spec, '<client=int32,lid=float32>')
    self.assertEqual((field.lower, field.upper, field.num_bytes), (0.0, 100.0, 8))
    self.assertIn('local intrinsic dimension', field.reason)
    with self.assertRaisesRegex(disclosure.UndeclaredUplinkError, 'sent, not declared'):
      disclosure.check(result.process.next, result.fields[:-1])

  def test_selector_by_it_keeps_the_smallest(self):
    result = self._build(selectors.reported(lid_report.NAME, 2))
    self.assertIsInstance(result.process, tff.learning.templates.LearningProcess)
    row = result.fields[-1]
    self.assertEqual(
        row.type_spec, '<client=int32,update=float32[4],weight=float32,lid=float32>'
    )
    self.assertIn('local intrinsic dimension', row.reason)
    data = {i: _examples(i) for i in (3, 1, 4)}
    data[9] = (np.full((5, 2), np.nan), np.zeros(5))
    output = self._round(result.process, data)
    reports = per_client.in_order(output.metrics['reports'], np.array([1, 3, 4, 9]))
    np.testing.assert_array_equal(reports['score'][:3], -reports['lid'][:3])
    self.assertEqual(reports['score'][3], -np.inf)
    expected = np.argsort(reports['lid'])[:2]
    self.assertEqual(np.flatnonzero(reports['kept']).tolist(), sorted(expected.tolist()))


if __name__ == '__main__':
  absltest.main()
