"""Tests of the static check of what leaves clients."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.privacy import protection
from tff_noise.uplink import disclosure
from tff_noise.uplink import uplink

_HISTOGRAM = tff.FederatedType(tff.TensorType(np.int64, (4,)), tff.CLIENTS)
_LOSS = tff.FederatedType(np.float32, tff.CLIENTS)


def _field(intrinsic, type_spec, bitwidth=None):
  return uplink.UplinkField(
      'field', type_spec, intrinsic, uplink.Disclosure.SUM, None, None, 'a test', 4,
      bitwidth=bitwidth,
  )


_SECURE = _field('federated_secure_sum_bitwidth', 'int64[4]', 20)
_SUM = _field('federated_sum', 'float32')


def _computation(body):
  return tff.federated_computation(body, [_HISTOGRAM, _LOSS])


def _good(histogram, loss):
  return tff.federated_secure_sum_bitwidth(histogram, 20), tff.federated_sum(loss)


class EdgesTest(parameterized.TestCase):

  def test_lists_intrinsics_and_types(self):
    edges = disclosure.client_to_server_edges(_computation(_good))
    self.assertCountEqual(
        edges,
        [('federated_secure_sum_bitwidth', 'int64[4]', '20'), ('federated_sum', 'float32', '')],
    )

  def test_broadcast_and_client_results_are_no_releases(self):
    @tff.tensorflow.computation(np.float32, np.float32)
    def add(a, b):
      return tf.add(a, b)

    @tff.federated_computation(tff.FederatedType(np.float32, tff.SERVER), _LOSS)
    def stays(server, client):
      return tff.federated_map(add, (tff.federated_broadcast(server), client))

    self.assertEmpty(disclosure.client_to_server_edges(stays))

  def test_finds_edges_inside_a_called_computation(self):
    @tff.federated_computation(_LOSS)
    def inner(loss):
      return tff.federated_mean(loss)

    @tff.federated_computation(_LOSS)
    def outer(loss):
      return inner(loss)

    self.assertEqual(
        disclosure.client_to_server_edges(outer), (('federated_mean', 'float32', ''),)
    )

  def test_bit_widths_of_a_structure(self):
    def secure(bitwidth):
      return _computation(
          lambda h, x: tff.federated_secure_sum_bitwidth(tff.federated_zip((h, h)), bitwidth)
      )

    for bitwidth, expected in (((20, 20), '20'), ((20, 8), '20,8')):
      [edge] = disclosure.client_to_server_edges(secure(bitwidth))
      self.assertEqual(edge.bitwidth, expected)

  def test_edges_of_the_stock_fed_avg(self):
    # The walk is not made for our own processes alone.
    model = tff.learning.models.functional_model_from_keras(
        tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))]),
        tf.keras.losses.MeanSquaredError(),
        (tf.TensorSpec((None, 2)), tf.TensorSpec((None, 1))),
        lambda: collections.OrderedDict(mse=tf.keras.metrics.MeanSquaredError()),
    )
    process = tff.learning.algorithms.build_weighted_fed_avg(
        model, client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1)
    )
    edges = disclosure.client_to_server_edges(process.next)
    self.assertContainsSubset({'federated_sum'}, {e.intrinsic for e in edges})
    self.assertIn('<float32[2,1],float32[1]>', {e.type_spec for e in edges})


class CheckTest(parameterized.TestCase):

  def test_declared_computation_passes(self):
    disclosure.check(_computation(_good), [_SECURE, _SUM])

  @parameterized.named_parameters(
      ('raw histogram too', lambda h, x: (*_good(h, x), tff.federated_sum(h)), 'federated_sum'),
      ('same type twice', lambda h, x: (*_good(h, x), tff.federated_sum(_scaled(x))), 'float32'),
      ('mean', lambda h, x: (*_good(h, x), tff.federated_mean(_scaled(x))), 'federated_mean'),
      ('max', lambda h, x: (*_good(h, x), tff.federated_max(x)), 'federated_max'),
      ('min', lambda h, x: (*_good(h, x), tff.federated_min(x)), 'federated_min'),
  )
  def test_undeclared_release_is_refused(self, body, message):
    with self.assertRaisesRegex(
        disclosure.UndeclaredUplinkError, f'sent, not declared: .*{message}'
    ):
      disclosure.check(_computation(body), [_SECURE, _SUM])

  def test_what_clients_keep_is_all_of_them_that_is_returned(self):
    server = tff.FederatedType(np.float32, tff.SERVER)

    @tff.tensorflow.computation(np.float32)
    def kept(loss):
      return uplink.ReturnedState(tf.constant(3), {'loss': loss})

    def returning(**more):
      @tff.federated_computation(server, _LOSS)
      def returns(value, loss):
        result = {'sum': tff.federated_sum(loss), 'local': tff.federated_map(kept, loss)}
        at_clients = tff.federated_broadcast(value)
        result.update((name, make(loss, at_clients)) for name, make in more.items())
        return collections.OrderedDict(result)

      return returns

    plain_sum = [_SUM]
    disclosure.check(returning(), plain_sum)
    for more in (
        {'mean': lambda loss, _: loss},
        {'mean': lambda _, same: same},
        {'mean': lambda loss, _: {'deeper': [loss]}},
    ):
      with self.assertRaisesRegex(disclosure.UndeclaredUplinkError, 'values of single clients'):
        disclosure.check(returning(**more), plain_sum)
    for local in (lambda loss, _: loss, lambda loss, _: tff.federated_sum(loss)):
      with self.assertRaisesRegex(disclosure.UndeclaredUplinkError, '`local` has to be what'):
        disclosure.check(returning(local=local), plain_sum)
    for result, fields in (
        (lambda loss: loss, ()),
        # Parts without names.
        (lambda loss: (loss, tff.federated_sum(loss)), plain_sum),
        (lambda loss: (tff.federated_sum(loss), loss), plain_sum),
    ):
      with self.assertRaisesRegex(disclosure.UndeclaredUplinkError, 'values of single clients'):
        disclosure.check(tff.federated_computation(result, _LOSS), fields)

  def test_aggregate_counts_as_a_release(self):
    @tff.tensorflow.computation(np.float32, np.float32)
    def add(a, b):
      return tf.add(a, b)

    @tff.tensorflow.computation(np.float32)
    def same(a):
      return tf.identity(a)

    @tff.federated_computation(_LOSS)
    def collects(loss):
      return tff.federated_aggregate(loss, np.float32(0), add, add, same)

    with self.assertRaisesRegex(disclosure.UndeclaredUplinkError, 'federated_aggregate'):
      disclosure.check(collects, [])

  def test_declared_and_not_sent_is_refused(self):
    with self.assertRaisesRegex(
        disclosure.UndeclaredUplinkError, 'declared, not sent: federated_sum float32'
    ):
      disclosure.check(_computation(_good), [_SECURE, _SUM, _SUM])

  @parameterized.parameters(8, 62)
  def test_another_bit_width_is_refused(self, bitwidth):
    def wider(histogram, loss):
      return tff.federated_secure_sum_bitwidth(histogram, bitwidth), tff.federated_sum(loss)

    with self.assertRaisesRegex(disclosure.UndeclaredUplinkError, f'in {bitwidth} bits'):
      disclosure.check(_computation(wider), [_SECURE, _SUM])

  def test_plain_sum_instead_of_secure_sum_is_refused(self):
    with self.assertRaises(disclosure.UndeclaredUplinkError):
      disclosure.check(
          _computation(lambda h, x: (tff.federated_sum(h), tff.federated_sum(x))), [_SECURE, _SUM]
      )

  @parameterized.product(
      intrinsic=('federated_sum', 'federated_aggregate', 'federated_collect', 'message'),
      shown=tuple(uplink.Disclosure),
  )
  def test_nobody_is_said_to_see_less_than_it_shows(self, intrinsic, shown):
    allowed = shown.shows_single_clients or (
        intrinsic == 'federated_sum' and shown is uplink.Disclosure.SUM
    )
    self._assert_shown(_SUM._replace(intrinsic=intrinsic, disclosure=shown), allowed)

  @parameterized.product(
      intrinsic=('federated_secure_sum_bitwidth', 'federated_secure_modular_sum'),
      shown=tuple(uplink.Disclosure), protected=(False, True),
  )
  def test_a_secure_sum_shows_no_single_clients(self, intrinsic, shown, protected):
    shield = protection.Counts() if protected else None
    field = _SECURE._replace(intrinsic=intrinsic, disclosure=shown, protection=shield)
    self._assert_shown(field, protected or shown is not uplink.Disclosure.DP_SECURE_SUM)

  def _assert_shown(self, field, allowed):
    # What is compared before is another test's matter.
    edge = disclosure.Edge(field.intrinsic, field.type_spec, str(field.bitwidth or ''))
    self.enter_context(absltest.mock.patch.object(disclosure, '_edges', lambda _: (edge,)))
    computation = _computation(_good)
    if allowed:
      disclosure.check(computation, [field])
      return
    with self.assertRaisesRegex(disclosure.UndeclaredUplinkError, "'field' is declared as"):
      disclosure.check(computation, [field])


def _scaled(value):
  # A different value of the same type: the compiler would merge two sums of the same one.
  return tff.federated_map(tff.tensorflow.computation(lambda v: 2 * v), value)


if __name__ == '__main__':
  absltest.main()
