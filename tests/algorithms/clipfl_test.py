"""ClipFL: candidacies by hand, who is pruned, and what the change of phase keeps."""

import functools
import itertools
import os
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.algorithms import plans
from tests.optimizers import rounds
from tests.program import runs
from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.algorithms import catalog as algorithms
from tff_noise.algorithms import clipfl
from tff_noise.algorithms import parameters
from tff_noise.algorithms import plain
from tff_noise.data import sources
from tff_noise.federated import evaluation
from tff_noise.federated import task as task_lib
from tff_noise.models import architectures
from tff_noise.models import keras_model
from tff_noise.optimizers import catalog
from tff_noise.privacy import costs as costs_lib
from tff_noise.privacy import ledger as ledger_lib
from tff_noise.privacy import protection
from tff_noise.program import clients as clients_lib
from tff_noise.program import training
from tff_noise.selection import availability
from tff_noise.selection import candidacy
from tff_noise.selection import policies
from tff_noise.uplink import disclosure
from tff_noise.uplink import uplink

# Clients of the toy federation whose labels are wrong.
_NOISY = (1, 4, 6)
_SIZES = (5, 8, 4, 6, 7, 4, 9, 10)


def _params(**changes):
  return parameters.ClipFLParams(**{'keep': 2, 'prune': 0.5, 'lid_neighbours': 2, **changes})


def _points(draw, count):
  """Noisy points of which a linear model can tell most: the larger coordinate's class."""
  y = draw.integers(0, 2, count).astype(np.int32)
  x = (np.eye(2)[y] + draw.normal(0, 0.5, (count, 2))).astype(np.float32)
  return x, y


def _federation(sizes=_SIZES, noisy=_NOISY):
  draw, clients = np.random.default_rng(0), []
  for i, n in enumerate(sizes):
    x, y = _points(draw, n)
    clients.append(types.ClientExamples(x, 1 - y if i in noisy else y, np.arange(n)))
  return types.Federation(tuple(clients), 2, 3)


_VALIDATION = types.Examples(*_points(np.random.default_rng(1), 211))


def _task(sizes=_SIZES, **changes):
  return task_lib.Task(**{
      'model': None,
      'training': rounds.full_batch(3),
      'rounds': 6,
      'clients_per_round': 4,
      'client_sizes': np.array(sizes, np.int64),
      'seed': 3,
      'validation': _VALIDATION,
      **changes,
  })


def _base(name, model, training_=None, sizes=_SIZES, **params):
  entry = catalog.OPTIMIZERS[name]
  task = _task(sizes, model=model, training=training_ or rounds.full_batch(3))
  return entry.build(task, entry.params(**params))


def _task_on(base, rounds_=6):
  model = toy.linear_model()
  return _task(model=model, rounds=rounds_, optimizer=base and _base(base, model))


@functools.cache
def _algorithm(base=None, prune=0.5, selector='validation', keep=2, rounds_=6):
  """Of the toy federation; has no state, so tests share it."""
  return clipfl.build(
      _task_on(base, rounds_), _params(prune=prune, selector=selector, keep=keep)
  )


def _states(algorithm, task, federation):
  """The state before the first round and after each."""
  return runs.states(algorithm, task, federation)


def _weights(state):
  return [np.asarray(w) for w in tf.nest.flatten(state.state.weights)]


class ParamsTest(parameterized.TestCase):

  @parameterized.parameters(
      {'keep': 0}, {'keep': -1}, {'prune': 1.0}, {'prune': 1.5}, {'prune': -0.1},
      {'prune': float('nan')}, {'score': 'sum'}, {'selector': 'loss'}, {'lid_neighbours': 1},
      {'lid_neighbours': -3},
  )
  def test_out_of_range(self, **change):
    [name] = change
    with self.assertRaisesRegex(ValueError, f'^{name} must'):
      parameters.ClipFLParams(**change)

  def test_ends_of_the_ranges_are_allowed(self):
    parameters.ClipFLParams(keep=1, prune=0.0, lid_neighbours=2)
    parameters.ClipFLParams(prune=0.999)

  def test_paper_is_the_default(self):
    params = parameters.ClipFLParams()
    self.assertEqual(
        (params.keep, params.prune, params.score, params.selector), (5, 0.5, 'count', 'validation')
    )


class TaskTest(parameterized.TestCase):
  """What does not fit is told before anything is built: tasks have no model here."""

  def _refused(self, message, params=None, **changes):
    with self.assertRaisesRegex(types.UsageError, message):
      clipfl.build(_task(**changes), params or _params())

  def test_more_kept_than_are_drawn(self):
    self._refused(r'--param=keep=5 .* --clients_per_round=4', _params(keep=5))
    self._refused(r'--param=keep=4 keeps all of .* would be random', _params(keep=4))
    # As many are there while candidates are counted, and more later.
    late = availability.Availability(
        np.where(np.arange(len(_SIZES)) < 2, 1, 5), np.full(len(_SIZES), availability.NEVER)
    )
    self._refused(r'keeps all of the 2 clients that are there .*would be random', availability=late)

  def test_selector_without_what_it_compares_models_on(self):
    for part in ('--validation_fraction', '--param=selector=agreement'):
      self._refused(part, validation=None)

  def test_images_cannot_be_generated_for_a_model_of_features(self):
    self._refused(
        r'takes \[2\]: give --validation_fraction, or --param=selector=lid$',
        _params(selector='agreement'), validation=None, model=toy.linear_model(),
    )

  def test_too_many_neighbours(self):
    for neighbours in (4, 20):
      self._refused(
          f'--param=lid_neighbours={neighbours} .* one has 4',
          _params(selector='lid', lid_neighbours=neighbours),
      )

  @parameterized.parameters('validation', 'agreement', 'lid')
  def test_base_that_never_sends_a_whole_model(self, selector):
    model = toy.linear_model()
    base = _base('fedavg', model)._replace(client_model=None)
    self._refused('^--base: ', _params(selector=selector), optimizer=base)

  def test_base_fed_bn(self):
    base = _base('fedbn', toy.linear_model('batch'))
    self._refused('^--base: ', optimizer=base)

  def test_stages_that_leave_nothing(self):
    self._refused('--stages leaves no round', stages={'identify': 0, 'train': 0})
    self._refused('nobody knows whom to prune', stages={'identify': 0})

  @parameterized.parameters(
      (120, {}, [80, 40]), (6, {}, [4, 2]), (1, {}, [1, 0]), (2, {}, [1, 1]), (10, {}, [7, 3]),
      (9, {'identify': 5}, [5, 3]), (9, {'train': 0}, [6, 0]), (9, {'identify': 0}, [0, 3]),
      (9, {'identify': 2, 'train': 7}, [2, 7]),
  )
  def test_lengths_of_stages(self, num_rounds, stages, expected):
    task = _task(model=toy.linear_model(), rounds=num_rounds, stages=stages)
    with plans.with_computations_of(_algorithm(selector='lid')):
      stages = clipfl.build(task, _params(selector='lid', prune=0.0)).stages
    self.assertEqual(list(stages.values()), expected)
    self.assertEqual(list(stages), ['identify', 'train'])


class GeneratedImagesTest(parameterized.TestCase):

  @parameterized.parameters(((8, 8, 1),), ((32, 32, 3),))
  def test_shape_and_range(self, shape):
    x = clipfl.generated_images(shape, 0)
    self.assertEqual((x.shape, x.dtype), ((500, *shape), np.uint8))
    flat = x.reshape(500, -1)
    np.testing.assert_array_equal(flat.min(axis=1), np.zeros(500))
    np.testing.assert_array_equal(flat.max(axis=1), np.full(500, 255))
    self.assertLen(np.unique(flat, axis=0), 500)

  def test_is_a_function_of_the_seed(self):
    first = clipfl.generated_images((8, 8, 1), 5)
    np.testing.assert_array_equal(first, clipfl.generated_images((8, 8, 1), 5))
    self.assertGreater((first != clipfl.generated_images((8, 8, 1), 6)).mean(), 0.9)

  def test_clouds_are_smooth_and_coloured(self):
    x = clipfl.generated_images((32, 32, 3), 0).astype(np.float64)
    neighbours = np.abs(np.diff(x, axis=1)).mean()
    self.assertLess(neighbours, np.abs(np.diff(x[:, ::16], axis=1)).mean() / 4)
    # Colours are drawn each by itself.
    centred = x - x.mean(axis=(1, 2), keepdims=True)
    red, green = centred[..., 0].ravel(), centred[..., 1].ravel()
    self.assertLess(abs(np.corrcoef(red, green)[0, 1]), 0.1)


def _numpy_run(federation, cohorts, identify, keep, prune):
  """The whole of ClipFL in NumPy, given the cohorts; yields records and weights by round."""
  num_clients = len(federation.clients)
  w = np.zeros((2, 2))
  candidacies, participations = np.zeros((2, num_clients), np.int64)
  pruned = np.zeros(num_clients, bool)
  for round_num, cohort in enumerate(cohorts, 1):
    if round_num == identify + 1:
      pruned = candidacy.prune(candidacies.astype(float), prune, 3)
    # A uniform draw of the same share of those that are left.
    rest = np.flatnonzero(~pruned)
    size = 4 * len(rest) // num_clients
    np.testing.assert_array_equal(cohort, policies.uniform(3, round_num, rest, size))
    models = {
        c: rounds.train(w, (federation.clients[c].x, federation.clients[c].y), 3) for c in cohort
    }
    used = cohort
    if round_num <= identify:
      right = {
          c: (np.argmax(_VALIDATION.x @ m, axis=1) == _VALIDATION.y).sum()
          for c, m in models.items()
      }
      best = sorted(cohort, key=lambda c: -right[c])
      # Or who is kept would be drawn.
      assert right[best[keep - 1]] > right[best[keep]], (round_num, right)
      used = best[:keep]
      participations[cohort] += 1
      candidacies[best[keep:]] += 1
    sizes = [len(federation.clients[c].y) for c in used]
    w = np.average([models[c] for c in used], axis=0, weights=sizes)
    yield cohort, w, candidacies.copy(), participations.copy(), pruned


class RunTest(federated_test_case.FederatedTestCase):

  def test_whole_run_is_numpys(self):
    federation = _federation()
    states = _states(_algorithm(rounds_=9), _task_on(None, 9), federation)
    cohorts = [
        np.flatnonzero(b.participations - a.participations) for a, b in itertools.pairwise(states)
    ]
    expected = list(_numpy_run(federation, cohorts, 6, 2, 0.5))
    self.assertLen(states, 1 + len(expected))
    took_part = np.zeros(8, np.int64)
    for state, (cohort, w, candidacies, participations, pruned) in zip(
        states[1:], expected, strict=True
    ):
      took_part[cohort] += 1
      np.testing.assert_array_equal(state.records['candidacies'], candidacies)
      np.testing.assert_array_equal(state.records['participations'], participations)
      np.testing.assert_array_equal(state.records['pruned'], pruned)
      np.testing.assert_array_equal(state.participations, took_part)
      np.testing.assert_allclose(_weights(state)[0], w, atol=1e-4)
    # Two of four in each of six rounds, and half of the rest's cohorts.
    self.assertEqual(candidacies.sum(), 12)
    self.assertEqual(pruned.sum(), 4)
    self.assertEqual([len(cohort) for cohort, *_ in expected], [4] * 6 + [2] * 3)

  def test_what_is_shown_of_clients(self):
    report = _algorithm(rounds_=9).report
    records = {
        'candidacies': np.array([2, 4, 0, 0, 3, 0, 3, 0]),
        'participations': np.array([4, 4, 3, 2, 3, 4, 4, 0]),
        'pruned': np.array([True, True, False, False, True, False, True, False]),
    }
    columns = report.client_columns(records)
    self.assertEqual(list(columns), ['candidacies', 'candidacy_score', 'taken_for_noisy'])
    np.testing.assert_array_equal(columns['candidacy_score'], records['candidacies'])
    np.testing.assert_array_equal(columns['taken_for_noisy'], [1, 1, 0, 0, 1, 0, 1, 0])
    np.testing.assert_array_equal(report.noisy_clients(records), records['pruned'])
    self.assertEqual(report.summary(records), {'clipfl': {'pruned_clients': 4}})
    state = algorithm_lib.State({}, {}, {}, records)
    self.assertEqual(report.columns(state), {'pruned_clients': 4})

  @parameterized.parameters(None, 'fedadam', 'fednova', 'feddyn', 'scaffold', 'median')
  def test_who_keeps_and_prunes_nobody_runs_the_base_alone(self, base):
    # Up to rounding, as sums are taken in another order: not bit for bit.
    federation = _federation()
    own = _states(_algorithm(base, 0.0, 'validation', 4), _task_on(base), federation)
    alone = algorithms.ALGORITHMS[base or 'fedavg']
    task = _task_on(None)
    expected = _states(alone.build(task, alone.params()), task, federation)
    self.assertLen(own, len(expected))
    for mine, others in zip(own, expected, strict=True):
      np.testing.assert_array_equal(mine.participations, others.participations)
      for part in (lambda s: s.state.models, lambda s: s.state.optimizers, lambda s: s.own):
        for a, b in zip(
            tf.nest.flatten(part(mine)), tf.nest.flatten(part(others)), strict=True
        ):
          np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6)
    self.assertEqual(own[-1].records['candidacies'].sum(), 0)
    # Something moved.
    self.assertGreater(np.abs(_weights(own[-1])[0]).max(), 0.01)

  def _prune(self, base, late=()):
    """All of a run right before the change of phase and after the round that begins with it.

    In that round nobody trains: what it changes is the change of phase alone.
    """
    federation, task = _federation(), _task_on(base)
    there = availability.always(len(_SIZES))
    there.joins[list(late)] = 6
    task = task._replace(availability=there)
    algorithm = clipfl.build(task, _params()) if late else _algorithm(base)
    opened = runs.open_ledger(algorithm)
    clients = runs.clients_of(algorithm, task, federation, opened)
    state = algorithm.init()
    for _ in range(4):
      state = training.run_round(algorithm, state, clients)
    before = training.program_state(state, clients, opened)
    with mock.patch.object(
        clients_lib.SimulatedClients, 'train',
        lambda self, computation, state, cohort, **_: algorithm_lib.Output(state, cohort, {}, {}),
    ):
      clients = runs.clients_of(algorithm, task, federation, opened)
      clients.resume(before.own, before.participations, before.aggregators)
      state = training.run_round(algorithm, state, clients)
    after = training.program_state(state, clients, opened)
    self.assertEqual(after.records['pruned'].sum(), 4)
    np.testing.assert_array_equal(
        after.records['pruned'], candidacy.prune(after.records['candidacies'] * 1.0, 0.5, 3)
    )
    return before, after, opened

  def test_who_has_left_takes_the_place_of_nobody_that_is_pruned(self):
    federation, task = _federation(), _task_on(None)
    there = availability.always(len(_SIZES))
    there.leaves[:4] = 5  # The first round of the last phase.
    task = task._replace(availability=there)
    algorithm = clipfl.build(task, _params())
    found = runs.states(algorithm, task, federation)[5].records
    # Half of those that go on, whatever the scores of the others are.
    expected = candidacy.prune(found['candidacies'][4:] * 1.0, 0.5, 3)
    np.testing.assert_array_equal(found['pruned'], [*np.zeros(4, bool), *expected])
    self.assertEqual(expected.sum(), 2)

  def test_server_optimizer_survives_the_change_of_phase(self):
    before, after, _ = self._prune('fedadam')
    moments = before.state.optimizers['fedadam']
    self.assertGreater(np.abs(moments['m'][0]).max(), 0)
    tf.nest.map_structure(
        np.testing.assert_array_equal, moments, after.state.optimizers['fedadam']
    )
    np.testing.assert_array_equal(_weights(before)[0], _weights(after)[0])

  @parameterized.parameters('scaffold', 'feddyn')
  def test_states_of_pruned_clients_are_dropped_and_others_kept(self, base):
    before, after, _ = self._prune(base)
    [name] = before.own
    changed = 0
    for client, gone in enumerate(after.records['pruned']):
      [mine], [others] = before.own[name][client], after.own[name][client]
      if gone:
        np.testing.assert_array_equal(others, np.zeros((2, 2)))
        changed += np.abs(mine).max() > 0
      else:
        np.testing.assert_array_equal(others, mine)
    self.assertGreater(changed, 0)
    self.assertGreater(max(np.abs(v[0]).max() for v in after.own[name]), 0)

  @parameterized.parameters('scaffold', 'feddyn')
  def test_server_goes_on_with_the_mean_of_what_the_rest_keeps(self, base):
    _, after, opened = self._prune(base)
    rest = ~after.records['pruned']
    [kept] = after.own.values()
    kept = np.array([v[0] for v in kept])
    sizes = np.array(_SIZES)
    expected = np.average(kept[rest], axis=0, weights=sizes[rest])
    state = after.state.optimizers[base]
    found = state['variate' if base == 'scaffold' else 'h'][0]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    self.assertEqual(state['population'], sizes[rest].sum())
    # The clients that go on were asked for it, in one sum that is in the ledger.
    self.assertEqual((opened.entries[-1].round_num, opened.entries[-1].clients), (5, 4))
    names = [_algorithm(base).fields[i].name for i in opened.entries[-1].fields]
    self.assertEqual(
        names, ['what clients keep, averaged', 'what clients keep, averaged weight']
    )

  @parameterized.parameters('scaffold', 'feddyn')
  def test_who_comes_later_is_among_those_whose_mean_the_server_has(self, base):
    _, after, _ = self._prune(base, late=(0,))
    rest = ~after.records['pruned']
    self.assertTrue(rest[0])
    [kept] = after.own.values()
    kept, sizes = np.array([v[0] for v in kept]), np.array(_SIZES)
    np.testing.assert_array_equal(kept[0], 0)
    state = after.state.optimizers[base]
    np.testing.assert_allclose(
        state['variate' if base == 'scaffold' else 'h'][0],
        np.average(kept[rest], axis=0, weights=sizes[rest]), atol=1e-6,
    )
    self.assertEqual(state['population'], sizes[rest].sum())

  @parameterized.parameters(None, 'scaffold', 'fedadam')
  def test_without_a_phase_of_its_own_nobody_is_a_candidate(self, base):
    task = _task_on(base)._replace(stages={'identify': 0})
    final = _states(clipfl.build(task, _params(prune=0.0)), task, _federation())[-1]
    self.assertEqual(final.records['candidacies'].sum(), 0)
    self.assertFalse(final.records['pruned'].any())
    self.assertTrue(np.isfinite(_weights(final)[0]).all())


class _Asked:
  """In place of clients: draws, and remembers who was to train."""

  def __init__(self, task):
    self.task, self.round_num, self.cohorts = task, 0, []

  def sample(self, computation, state, among=None, size=None):
    """Returns the draw of `SimulatedClients`."""
    clients = runs.clients_of(
        algorithm_lib.Algorithm(None, (), {}), self.task,
        types.Federation((None,) * self.task.num_clients, 2, 3),
        ledger_lib.Ledger((), ()),
    )
    clients.begin_round(self.round_num, '')
    return clients.view.sample(computation, state, among, size)

  def train(self, computation, state, cohort):
    """Trains nobody."""
    del computation  # Unused.
    self.cohorts.append(cohort)
    return algorithm_lib.Output(state, cohort, {}, {})


class SelectionTest(parameterized.TestCase):

  def _cohorts(self, num_clients, per_round, pruned, round_nums, **changes):
    """Who takes part in rounds of the last phase, with these clients pruned."""
    task = _task(
        [9] * num_clients, model=toy.linear_model(), clients_per_round=per_round,
        stages={'identify': 0}, **changes,
    )
    with plans.with_computations_of(_algorithm(selector='lid')):
      built = clipfl.build(task, _params(keep=1, selector='lid', prune=0.0))
    asked = _Asked(task)
    for round_num in round_nums:
      asked.round_num = round_num
      # The first round of the phase would prune anew.
      state = algorithm_lib.State({}, {}, {}, {'pruned': pruned}, round_num)
      built.round(state, asked)
    return asked.cohorts

  @parameterized.parameters(
      (100, 10, 50, 5), (100, 10, 71, 7), (100, 10, 100, 10), (100, 10, 5, 1), (100, 10, 20, 2),
      (20, 7, 10, 3), (10, 10, 7, 7), (30, 1, 3, 1), (10, 3, 10, 3), (49, 7, 42, 6),
  )
  def test_cohort_shrinks_in_proportion_and_has_no_pruned_client(
      self, num_clients, per_round, rest, expected
  ):
    pruned = np.random.default_rng(0).permutation(num_clients) >= rest
    seen = set()
    for cohort in self._cohorts(num_clients, per_round, pruned, range(1, 200)):
      self.assertLen(set(cohort.tolist()), expected)
      self.assertTrue((np.diff(cohort) > 0).all())
      self.assertFalse(pruned[cohort].any())
      seen.update(cohort.tolist())
    if rest <= 20:
      self.assertEqual(seen, set(np.flatnonzero(~pruned).tolist()))

  def test_who_is_not_there_is_not_drawn(self):
    there = availability.always(6)
    there.joins[1], there.leaves[2] = 5, 3
    pruned = np.array([True, False, False, False, True, True])
    found = self._cohorts(6, 6, pruned, (1, 3, 5), availability=there)
    self.assertEqual([cohort.tolist() for cohort in found], [[2, 3], [3], [1, 3]])
    # Who left before the last phase is none of those of whom a share takes part.
    gone = availability.always(6)
    gone.leaves[:2] = 1
    [cohort] = self._cohorts(6, 3, np.zeros(6, bool), (1,), availability=gone)
    self.assertLen(cohort, 2)
    with self.assertRaisesRegex(types.UsageError, 'no client can take part in round 4'):
      self._cohorts(6, 6, np.arange(6) != 1, (4,), availability=there)


class UplinkTest(parameterized.TestCase):

  @parameterized.parameters(
      ('validation', ''), ('agreement', ''), ('lid', ',lid=float32')
  )
  def test_models_of_single_clients_are_declared(self, selector, reported):
    algorithm = _algorithm(selector=selector)
    compared, process = algorithm.computations
    for built in (compared, process):
      disclosure.check(built.next, built.fields)
      self.assertContainsSubset(built.fields, algorithm.fields)
    [row] = [f for f in algorithm.fields if f.disclosure is uplink.Disclosure.PER_CLIENT]
    self.assertEqual(
        row.type_spec, f'<client=int32,update=float32[4],weight=float32{reported}>'
    )
    self.assertIn('lid: mean local' if reported else 'the server', row.reason)
    self.assertIn(row, compared.fields)
    self.assertNotIn(row, process.fields)
    self.assertLen(set(algorithm.fields), len(algorithm.fields))

  def test_five_of_ten_in_a_third_of_the_rounds_save_a_sixth(self):
    task = _task(
        [9] * 100, rounds=120, clients_per_round=10,
        model=keras_model.from_keras(architectures.mlp((8, 8, 1), 10, pixel_scale=1 / 16)),
    )
    built = clipfl.build(task, parameters.ClipFLParams(selector='lid', lid_neighbours=2))
    asked, state = _Asked(task), algorithm_lib.State({}, {}, {}, built.records)
    reports = {'kept': np.ones(10, bool)}
    with mock.patch.object(
        asked, 'train',
        lambda computation, state, cohort: algorithm_lib.Output(
            state._replace(round_num=state.round_num + 1), cohort, {},
            sent.append((computation, len(cohort))) or reports,
        ),
    ), mock.patch.object(_Asked, 'forget', lambda *_: None, create=True):
      sent = []
      while state.round_num < 120:
        asked.round_num = state.round_num + 1
        state = built.round(state, asked)
    up = sum(k * computation.uplink_bytes for computation, k in sent)
    down = sum(k * computation.broadcast_bytes for computation, k in sent)
    self.assertLen(sent, 120)
    alone = plain.build_process(task)
    # A client's id and its LID are nothing beside a model.
    self.assertAlmostEqual(1 - up / (120 * 10 * alone.uplink_bytes), 1 / 6, delta=0.001)
    self.assertAlmostEqual(1 - down / (120 * 10 * alone.broadcast_bytes), 1 / 6, places=9)


class LedgerTest(federated_test_case.FederatedTestCase):

  def test_counts_the_rounds_in_which_models_are_compared(self):
    algorithm = _algorithm()
    _, _, opened = runs.all_rounds(algorithm, _task_on(None), _federation())
    declared = uplink.to_json(algorithm.fields)
    times = {}
    for found in costs_lib.releases(opened.entries, declared):
      times.setdefault(found.field['disclosure'], set()).add(found.times)
    # Four of six rounds; what is summed in both phases is released in all.
    self.assertEqual(times[uplink.Disclosure.PER_CLIENT.value], {4})
    self.assertEqual(max(times[uplink.Disclosure.SUM.value]), 6)
    for done, seen in ((1, 1), (4, 4), (5, 4)):
      entries = [entry for entry in opened.entries if entry.round_num <= done]
      found = costs_lib.releases(entries, declared)
      [row] = [r for r in found if r.field['disclosure'] == uplink.Disclosure.PER_CLIENT.value]
      self.assertEqual(row.times, seen)
    cost = costs_lib.totals(opened.entries, declared)[protection.Unit.LABEL]
    self.assertEqual(cost.epsilon, np.inf)


class ResumeTest(federated_test_case.FederatedTestCase):

  @parameterized.parameters((None, 'validation'), (None, 'lid'), ('scaffold', 'validation'),
                            ('feddyn', 'lid'), ('fedadam', 'agreement'))
  def test_from_every_round_to_the_same_numbers(self, base, selector):
    algorithm, task = _algorithm(base, selector=selector), _task_on(base)
    copies = self.create_tempdir().full_path
    whole, metrics = runs.run(
        algorithm, task, _federation(), self.create_tempdir().full_path, copies
    )
    self.assertEqual(whole.round_num, 6)
    self.assertEqual(whole.records['pruned'].sum(), 4)
    for stopped_after in range(1, 6):
      with self.subTest(stopped_after):
        state, resumed = runs.run(
            algorithm, task, _federation(), os.path.join(copies, str(stopped_after))
        )
        self.assertEqual(resumed, metrics)
        for a, b in zip(tf.nest.flatten(state), tf.nest.flatten(whole), strict=True):
          np.testing.assert_array_equal(a, b)


class DigitsTest(federated_test_case.FederatedTestCase):
  """Whole runs on scikit-learn's digits: 12 clients of 80 images, of 5 all labels are random."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.dataset = sources.load(sources.DataSpec('digits'))
    cls.model = keras_model.from_keras(architectures.mlp((8, 8, 1), 10, pixel_scale=1 / 16))

  def _run(self, selector, seed, validation=True, **changes):
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(self.dataset.train_y))
    noisy = np.isin(np.arange(12), draw.permutation(12)[:5])
    clients = []
    for i, ids in enumerate(np.split(order[: 12 * 80], 12)):
      y = self.dataset.train_y[ids]
      if noisy[i]:
        y = draw.integers(0, 10, len(y)).astype(y.dtype)
      clients.append(types.ClientExamples(self.dataset.train_x[ids], y, ids))
    federation = types.Federation(tuple(clients), 10, seed)
    rest = order[12 * 80 :]
    held = types.Examples(self.dataset.train_x[rest], self.dataset.train_y[rest])
    task = _task(
        federation.sizes, model=self.model, clients_per_round=6, seed=seed,
        stages={'identify': 16, 'train': 2}, training=types.LocalTraining(5, 10, 0.05),
        validation=held if validation else None,
    )
    params = parameters.ClipFLParams(
        keep=3, prune=5 / 12, selector=selector, score='rate', lid_neighbours=10, **changes
    )
    state, _, _ = runs.all_rounds(clipfl.build(task, params), task, federation)
    return state, noisy, held

  @parameterized.parameters(
      ('validation', 0), ('validation', 1), ('agreement', 0), ('agreement', 1), ('lid', 0),
      ('lid', 1),
  )
  def test_noisy_clients_are_pruned(self, selector, seed):
    state, noisy, held = self._run(selector, seed)
    np.testing.assert_array_equal(state.records['pruned'], noisy)
    evaluate = evaluation.build_evaluator(evaluation.build_evaluation(self.model), held)
    self.assertGreater(evaluate(state.weights)['accuracy'], 0.85)

  @parameterized.parameters(0, 1)
  def test_without_any_images_of_its_own(self, seed):
    state, noisy, _ = self._run('agreement', seed, validation=False)
    # Clouds are no digits: found are 4 and 5 of 5.
    self.assertGreaterEqual(noisy[state.records['pruned']].sum(), 4)

  def test_generated_images_also_where_clients_hold_files(self):
    folder = self.create_tempdir()
    draw, paths = np.random.default_rng(0), []
    for i in range(6):
      pixels = draw.integers(0, 17, (8, 8, 1)).astype(np.uint8)
      content = tf.io.encode_png(pixels).numpy()
      paths.append(folder.create_file(f'{i}.png', content, mode='wb').full_path.encode())
    client = types.ClientExamples(np.array(paths), np.arange(6, dtype=np.int32), np.arange(6))
    federation = types.Federation((client,) * 4, 10, 0)
    model = keras_model.from_keras(
        architectures.mlp((8, 8, 1), 10, pixel_scale=1 / 16), image_files=True
    )
    task = _task(
        federation.sizes, model=model, validation=None, stages={'identify': 2, 'train': 1}
    )
    built = clipfl.build(task, _params(selector='agreement'))
    final, _, _ = runs.all_rounds(built, task, federation)
    self.assertEqual(final.records['candidacies'].sum(), 4)


if __name__ == '__main__':
  absltest.main()
