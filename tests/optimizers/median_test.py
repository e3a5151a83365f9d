"""Tests of the coordinate-wise median: the models' middle, by hand and against their mean."""

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests.optimizers import rounds
from tff_noise.optimizers import catalog
from tff_noise.uplink import uplink

_TRAINING = rounds.full_batch(3)
_W = np.array([[0.3, -0.2], [0.1, 0.4]])
# Of different sizes, which must not count.
_CLIENTS = (*rounds.DISAGREEING, ([[1, 2], [-1, 1]], [1, 0]))
_FOURTH = ([[0, 1], [3, 1], [1, 1]], [0, 0, 1])


def _local_models(clients, start=_W):
  return [rounds.train(start, client, 3) for client in clients]


def _absurd(scale):
  """A client whose one example pulls with a strength of `scale`."""
  return ([[scale, -scale]], [1])


class MedianTest(federated_test_case.FederatedTestCase):

  def _federation(self, clients, name='median'):
    return rounds.Federation(name, clients, _TRAINING, weights=_W)

  @parameterized.named_parameters(('odd', _CLIENTS), ('even', (*_CLIENTS, _FOURTH)))
  def test_is_the_middle_of_the_local_models_in_each_coordinate(self, clients):
    federation = self._federation(clients)
    expected = _W
    for _ in range(2):
      federation.round()
      models = _local_models(clients, expected)
      expected = np.median(models, axis=0)
      np.testing.assert_allclose(federation.w, expected, atol=1e-5)
      # It is nobody's model, nor the mean: the coordinates have different owners.
      for model in (*models, np.mean(models, axis=0)):
        self.assertGreater(np.abs(model - expected).max(), 1e-3)

  def test_of_one_client_it_is_its_model(self):
    federation = self._federation(_CLIENTS)
    federation.round(1)
    np.testing.assert_allclose(federation.w, _local_models(_CLIENTS)[1], atol=1e-5)

  def test_number_of_examples_does_not_count(self):
    federation = self._federation(_CLIENTS)
    # Everything five times: the same gradients of a full batch.
    x, y = _CLIENTS[0]
    repeated = self._federation(((x * 5, y * 5), *_CLIENTS[1:]))
    federation.round()
    repeated.round()
    np.testing.assert_allclose(federation.w, repeated.w, atol=1e-5)

  def test_one_absurd_client_of_three_does_not_move_it(self):
    found = {}
    for name in ('median', 'fedavg'):
      for scale in (1e3, 1e4):
        federation = self._federation((*_CLIENTS[:2], _absurd(scale)), name)
        federation.round()
        found[name, scale] = federation.w
    honest = np.array(_local_models(_CLIENTS[:2]))
    median_ = found['median', 1e3]
    # Between the other two in every coordinate, and the same however absurd it is.
    self.assertTrue((honest.min(axis=0) - 1e-5 <= median_).all())
    self.assertTrue((median_ <= honest.max(axis=0) + 1e-5).all())
    np.testing.assert_array_equal(median_, found['median', 1e4])
    # One of 16 examples: .5 * 500 / 16 at least of the mean.
    self.assertGreater(np.abs(found['fedavg', 1e3] - honest.mean(axis=0)).max(), 10)
    self.assertGreater(
        np.abs(found['fedavg', 1e4]).max(), 5 * np.abs(found['fedavg', 1e3]).max()
    )

  def test_client_that_diverged_or_holds_nothing_is_none_of_the_row(self):
    expected = self._federation(_CLIENTS)
    expected.round()
    federation = self._federation((*_CLIENTS, ([[3e38, 0.0]], [1]), ([], [])))
    metrics = federation.round()
    self.assertEqual(metrics['rejected'], 1)
    np.testing.assert_array_equal(federation.w, expected.w)

  def test_nobody_left_leaves_the_model_as_it_is(self):
    federation = self._federation((([[3e38, 0.0]], [1]),))
    federation.round()
    np.testing.assert_array_equal(federation.w, np.float32(_W))

  def test_is_declared_to_show_single_clients(self):
    fields = self._federation(_CLIENTS).built.fields
    shown = {f.name: f.type_spec for f in fields if f.disclosure is uplink.Disclosure.PER_CLIENT}
    # The client's number, its update of 4 weights, and its number of examples.
    self.assertEqual(
        shown,
        {'model updates of single clients': '<client=int32,update=float32[4],weight=float32>'},
    )
    self.assertNotEmpty(catalog.OPTIMIZERS['median'].per_client)


if __name__ == '__main__':
  absltest.main()
