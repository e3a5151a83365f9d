"""What a method claims without anything that protects it."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.algorithms import catalog
from tff_noise.audit import noisy_sum
from tff_noise.audit import reports
from tff_noise.federated import aggregation
from tff_noise.federated import computation
from tff_noise.federated import label_histogram
from tff_noise.federated import optimizer
from tff_noise.federated import processes
from tff_noise.federated import task as task_lib
from tff_noise.privacy import protection
from tff_noise.program import claims
from tff_noise.uplink import disclosure
from tff_noise.uplink import uplink

_NOISE = protection.NoisySum(1.0, 0.5, cohort=2, population=3)
# So many that flips do not leave the same counts by chance.
_SIZES = (4000, 6001, 5000)
# Those whose clients send noisy updates and nothing else.
_SUMMED = ('fedavg', 'fedprox', 'fedadam', 'fedyogi', 'fedadagrad', 'elr', 'gce')


def _task(noise=_NOISE, key=bytes(32), secure=False, **changes):
  aggregate = aggregation.dp_mean(noise, noise_key=key, secure=secure) if noise else (
      aggregation.weighted_mean()
  )
  return task_lib.Task(
      toy.linear_model(), types.LocalTraining(), aggregation=aggregate,
      client_sizes=np.array(_SIZES), clients_per_round=2, rounds=4, **changes,
  )


def _fed_avg(task):
  entry = catalog.ALGORITHMS['fedavg']
  return entry.build(task, entry.params())


def _with(algorithm, **changes):
  (made,) = algorithm.computations
  return algorithm._replace(computations=(made._replace(**changes),))


class ClaimsTest(parameterized.TestCase):

  def _assert_refused(self, algorithm, task, why):
    with self.assertRaisesRegex(types.UsageError, why):
      claims.check('mine', algorithm, task)

  @parameterized.product(noise=(None, _NOISE), secure=(True, False))
  def test_what_parts_declare_is_allowed(self, noise, secure):
    task = _task(noise, secure=secure)
    claims.check('mine', _fed_avg(task), task)

  def test_label_communication_as_the_task_has_it(self):
    task = _task(None)
    asked = label_histogram.of_task(task)
    algorithm = _fed_avg(task)._replace(computations=(asked,))
    claims.check('mine', algorithm, task)
    self.assertIsInstance(asked.fields[0].protection, protection.LabelReports)
    # A smaller epsilon, for the same flips.
    less = asked.fields[0]._replace(protection=protection.LabelReports(2, '0.01', sum(_SIZES)))
    unprotected = asked.fields[0]._replace(protection=None)
    for field, why in (
        (less, 'is not label_histogram.of_task, the only'),
        (unprotected, "declared as 'DP, secure sum', and nothing protects it"),
        (unprotected._replace(disclosure=uplink.Disclosure.SECURE_SUM),
         'is not label_histogram.of_task, the only'),
    ):
      self._assert_refused(_with(algorithm, fields=(field,)), task, why)

  def test_label_communication_returns_its_histogram_alone(self):
    # All of it is handed to the method.
    task = _task(None)
    asked = label_histogram.of_task(task)
    parameter = asked.next.type_signature.parameter

    @tff.tensorflow.computation(parameter.member)
    def kept(data):
      return computation.uplink.ReturnedState(tf.constant(0), {'y': data['y']})

    @tff.federated_computation(parameter)
    def shows(data):
      return collections.OrderedDict(sum=asked.next(data), local=tff.federated_map(kept, data))

    algorithm = _fed_avg(task)._replace(
        computations=(asked._replace(process=processes.Collection(shows)),)
    )
    disclosure.check(shows, asked.fields)
    self._assert_refused(algorithm, task, 'is not label_histogram.of_task, the only')

  def test_nothing_derived_from_a_part_takes_its_place(self):
    task = _task(None)
    algorithm = _fed_avg(task)
    (made,) = algorithm.computations

    class Quiet(computation.Computation):

      @property
      def released(self):
        return ()

    class Hidden(algorithm_lib.Algorithm):
      pass

    class Field(computation.uplink.UplinkField):

      def __eq__(self, other):
        return True

      __hash__ = computation.uplink.UplinkField.__hash__

    class Awake(optimizer.FederatedOptimizer):

      @property
      def evaluated(self):
        return None

    fields = (Field(*made.fields[0]), *made.fields[1:])
    for what, forged in (
        ('Quiet', algorithm._replace(computations=(Quiet(*made),))),
        ('Hidden', Hidden(*algorithm)),
        ('OrderedDict', algorithm._replace(times=collections.OrderedDict())),
        ('Field', _with(algorithm, fields=fields)),
        ('Awake', _with(algorithm, optimizer=Awake(*made.optimizer))),
    ):
      self._assert_refused(forged, task, f'{what} stands where .* itself and nothing derived')
    self._assert_refused(
        _with(algorithm, fields=(*made.fields, made.fields[0])), task, 'declares a value twice'
    )

  @parameterized.named_parameters(
      ('reports', protection.LabelReports(2, '0.01')), ('noise', _NOISE),
      ('counts', protection.Counts()),
  )
  def test_claims_beside_values_of_ones_own_are_refused(self, claim):
    task = _task(None)
    algorithm = _fed_avg(task)
    fields = [f._replace(protection=claim) for f in algorithm.computations[0].fields]
    self._assert_refused(
        _with(algorithm, fields=tuple(fields)), task, "mine declares that 'update' is protected"
    )

  @parameterized.parameters({'noise_multiplier': 2.0}, {'clip': 0.1}, {'population': 30})
  def test_noise_that_is_not_the_runs_is_refused(self, **changes):
    other = _fed_avg(_task(_NOISE._replace(**changes)))
    self._assert_refused(other, _task(), "'update'.*NoisySum")

  def test_what_is_sent_to_others_is_a_claim_too(self):
    task = _task(None)
    algorithm = _fed_avg(task)
    (made,) = algorithm.computations
    message = computation.uplink.Message(
        'of others', np.float32, 'a test', from_others=True,
        protection=protection.LabelReports(2, '0.01'),
    )
    declared = made.declared._replace(messages=(message,))
    self._assert_refused(_with(algorithm, declared=declared), task, "'of others of other clients'")

  def test_a_one_of_every_client_is_free_beside_its_sum_alone(self):
    task = _task(None)._replace(
        aggregation=aggregation.secure_weighted_mean(update_bound=1.0, max_examples=9)
    )
    algorithm = _fed_avg(task)
    claims.check('mine', algorithm, task)
    fields = algorithm.computations[0].fields
    ones = [f for f in fields if f.protection == protection.Counts()]
    self.assertNotEmpty(ones)
    renamed = ones[0]._replace(name='ones')
    forged = tuple(renamed if f == ones[0] else f for f in fields)
    self._assert_refused(_with(algorithm, fields=forged), task, "'ones'.*Counts")

  def test_with_noise_nothing_looks_at_what_clients_keep(self):
    noisy, plain = _task(), _task(None)
    noisy_algorithm, plain_algorithm = _fed_avg(noisy), _fed_avg(plain)
    (made,) = noisy_algorithm.computations
    for why, changes in (
        ('models that clients keep are evaluated', {'evaluate': lambda state, own: []}),
        ('what clients keep is summarised', {
            'report': algorithm_lib.Report(kept_summary=lambda state, own: {'kept': own})
        }),
        ('labels that clients keep are written', {'report': algorithm_lib.Report(labels='y')}),
        ('labels that clients keep are written', {'report': algorithm_lib.Report(posterior='y')}),
        ('clients are judged by themselves', {
            'report': algorithm_lib.Report(noisy_clients=lambda records: [])
        }),
    ):
      self._assert_refused(noisy_algorithm._replace(**changes), noisy, why)
      claims.check('mine', plain_algorithm._replace(**changes), plain)
    for why, changes in (
        ('models that clients keep are evaluated', {'evaluated': lambda weights, own: weights}),
        ('models that clients keep are evaluated', {'own_models': lambda weights, own: []}),
        ('who takes part is chosen', {'sampler': object()}),
    ):
      chosen = _with(noisy_algorithm, optimizer=made.optimizer._replace(**changes))
      self._assert_refused(chosen, noisy, why)

  def test_values_that_are_not_declared_are_refused_before_a_run(self):
    task = _task(None)
    algorithm = _fed_avg(task)
    fields = algorithm.computations[0].fields[1:]
    self._assert_refused(_with(algorithm, fields=fields), task, 'sent, not declared: federated_sum')


class UsedNoiseTest(federated_test_case.FederatedTestCase):
  """The declaration is right, and so are the operations that send."""

  def _used(self, algorithm, task):
    (made,) = algorithm.computations
    cohort = task.aggregation.protection.cohort
    return noisy_sum.used(made, task, toy.two_corners(_SIZES), cohort).verdict.value

  @parameterized.parameters(*_SUMMED)
  def test_the_noise_of_every_optimizer_is_that_of_the_task(self, name):
    entry, task = catalog.ALGORITHMS[name], _task()
    self.assertEqual(self._used(entry.build(task, entry.params()), task), 'passed')

  @parameterized.parameters(
      {'secure': True}, {'noise': _NOISE._replace(mechanism='tree')},
      {'noise': _NOISE._replace(mechanism=protection.DISCRETE_GAUSSIAN)},
  )
  def test_other_sums(self, **changes):
    task = _task(**changes)
    self.assertEqual(self._used(_fed_avg(task), task), 'passed')

  def test_noise_of_a_key_that_the_method_knows_is_found(self):
    task = _task()
    for other in (_task(key=b'k' * 32), _task(_NOISE._replace(noise_multiplier=1e-9))):
      forged = _with(_fed_avg(other), fields=_fed_avg(task).computations[0].fields)
      claims.check('mine', forged, task)
      self.assertEqual(self._used(forged, task), 'failed')


class CountedTest(federated_test_case.FederatedTestCase):

  @parameterized.named_parameters(
      ('flipped', task_lib.LabelPrivacy('0.81')), ('plain', task_lib.LabelPrivacy('0.81', 'none')),
      ('reports', task_lib.LabelPrivacy('0.81', in_training=True)),
  )
  def test_label_communication_counts_reports(self, label_privacy):
    task = _task(None, label_privacy=label_privacy)
    found = reports.counted(label_histogram.of_task(task), task, toy.two_corners(_SIZES))
    self.assertEqual(found.verdict.value, 'passed', found)

  def test_labels_that_are_counted_as_they_are_under_the_claim_of_flips(self):
    task = _task(None)
    asked = label_histogram.of_task(task)
    plain, _ = label_histogram.build_label_histogram(
        2, max_count=max(_SIZES), max_clients=len(_SIZES), mechanism=None, protection=None
    )
    forged = asked._replace(process=processes.Collection(plain))
    disclosure.check(forged.next, forged.fields)
    found = reports.counted(forged, task, toy.two_corners(_SIZES))
    self.assertEqual(found.verdict.value, 'failed')
    with self.assertRaisesRegex(types.UsageError, 'is not label_histogram.of_task, the only'):
      claims.check('mine', _fed_avg(task)._replace(computations=(forged,)), task)


if __name__ == '__main__':
  absltest.main()
