"""Tests of values that the server sees by client."""

import collections

import numpy as np
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tff_noise.uplink import disclosure
from tff_noise.uplink import per_client
from tff_noise.uplink import uplink

_REPORTS = (
    uplink.UplinkReport('score', np.float32, -1.0, 50.0, 'a test'),
    uplink.UplinkReport('count', np.int32, 0, 9, 'another test'),
)


def _computation(reports=_REPORTS):
  row_type = tff.FederatedType(per_client.reports_type(reports), tff.CLIENTS)

  @tff.federated_computation(row_type)
  def collect(rows):
    return per_client.collect(rows)

  return collect


def _row(client, score, count):
  return collections.OrderedDict(
      client=np.int32(client), score=np.float32(score), count=np.int32(count)
  )


class CollectTest(federated_test_case.FederatedTestCase):

  def test_type_signature(self):
    self.assertEqual(
        str(_computation().type_signature),
        '({<client=int32,score=float32,count=int32>}@CLIENTS -> '
        '<client=int32[?],score=float32[?],count=int32[?]>@SERVER)',
    )

  @parameterized.parameters(1, 2, 16, 17, 40)
  def test_every_client_is_one_row(self, count):
    ids = np.random.default_rng(0).permutation(1000)[:count]
    rows = [_row(i, i / 8, i % 10) for i in ids.tolist()]
    found = _computation()(rows)
    self.assertEqual({len(v) for v in found.values()}, {count})
    # In whatever order they come, a row is one client's.
    self.assertCountEqual(
        zip(found['client'], found['score'], found['count'], strict=True),
        [(i, i / 8, i % 10) for i in ids.tolist()],
    )
    self.assertEqual(
        [np.asarray(v).dtype for v in found.values()], [np.int32, np.float32, np.int32]
    )

  def test_values_that_are_not_finite_arrive_as_they_are(self):
    found = per_client.in_order(
        _computation()([_row(0, np.nan, 1), _row(1, np.inf, 2)]), np.array([0, 1])
    )
    np.testing.assert_array_equal(found['score'], [np.nan, np.inf])

  def test_same_in_every_run(self):
    rows = [_row(i, i * 1.1, 0) for i in range(9)]
    first, second = (per_client.in_order(_computation()(rows), np.arange(9)) for _ in range(2))
    np.testing.assert_array_equal(first['score'], second['score'])


class FieldsTest(federated_test_case.FederatedTestCase):

  def test_declares_exactly_what_is_sent(self):
    fields = per_client.fields(_REPORTS)
    disclosure.check(_computation(), fields)
    (edge,) = disclosure.client_to_server_edges(_computation())
    self.assertEqual((edge.intrinsic, edge.type_spec), (fields[0].intrinsic, fields[0].type_spec))

  def test_one_struct_of_all_reports_seen_by_client(self):
    (field,) = per_client.fields(_REPORTS)
    self.assertIs(field.disclosure, uplink.Disclosure.PER_CLIENT)
    self.assertEqual(field.name, 'score, count of single clients')
    self.assertEqual(field.type_spec, '<client=int32,score=float32,count=int32>')
    self.assertEqual((field.lower, field.upper, field.num_bytes), (-1.0, 50.0, 12))
    self.assertEqual(field.reason, 'score: a test; count: another test')

  def test_another_report_is_not_declared(self):
    with self.assertRaisesRegex(disclosure.UndeclaredUplinkError, 'sent, not declared: .*count'):
      disclosure.check(_computation(), per_client.fields(_REPORTS[:1]))

  def test_none(self):
    self.assertEqual(per_client.fields(()), ())


class InOrderTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.reports = {
        'client': np.array([7, 2, 5], np.int32), 'score': np.array([0.7, 0.2, 0.5], np.float32)
    }

  @parameterized.parameters(([2, 5, 7], [0.2, 0.5, 0.7]), ([5, 7, 2], [0.5, 0.7, 0.2]))
  def test_order_of_the_clients(self, clients, expected):
    found = per_client.in_order(self.reports, np.array(clients))
    self.assertEqual(list(found), ['score'])
    np.testing.assert_allclose(found['score'], expected)

  @parameterized.parameters(([2, 5],), ([2, 5, 7, 8],), ([2, 5, 8],), ([2, 5, 5],), ([],))
  def test_other_clients_are_a_mistake(self, clients):
    with self.assertRaisesRegex(ValueError, r'^reports of clients .*, expected'):
      per_client.in_order(self.reports, np.array(clients, np.int64))

  def test_client_that_reports_twice_is_a_mistake(self):
    self.reports['client'][0] = 2
    with self.assertRaises(ValueError):
      per_client.in_order(self.reports, np.array([2, 5, 7]))

  def test_nobody(self):
    reports = {'client': np.zeros(0, np.int32), 'score': np.zeros(0, np.float32)}
    found = per_client.in_order(reports, np.zeros(0, np.int64))
    self.assertEqual(found['score'].shape, (0,))


if __name__ == '__main__':
  absltest.main()
