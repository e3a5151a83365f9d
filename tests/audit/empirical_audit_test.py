"""Tests of the audit: numbers of its reference, a zoo of broken mechanisms, its false alarms."""

import math

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from scipy import stats

from tff_noise.audit import black_box
from tff_noise.audit import declared_table
from tff_noise.audit import empirical_audit as audit_lib
from tff_noise.audit import lower_bounds
from tff_noise.audit import queries
from tff_noise.audit import shared_draws
from tff_noise.privacy import mechanism

# ln 2.25: keeps a label of 10 with .2.
_LN_225 = '0.81093021621632876396'
_TABLE = mechanism.randomized_response(_LN_225, 10)
_SMALL = mechanism.randomized_response('0.69314718055994530942', 3)  # ln 2.
_LAGS = (1, 32, 500)
_ALPHA = 1e-6
_PASSED, _FAILED, _NO_EVIDENCE = (
    black_box.Verdict.PASSED, black_box.Verdict.FAILED, black_box.Verdict.NO_EVIDENCE
)
_NAMES = (
    'two worlds', 'one run', 'keep rate', 'transition', 'support', 'scan', 'independence',
    'memoisation',
)


def _hash_uniform(seed, client, ids):
  """Uniform numbers in [0, 1) keyed by all three: the finalizer of splitmix64, twice."""
  with np.errstate(over='ignore'):
    x = np.asarray(ids).astype(np.uint64)
    for word in (client, seed):
      x = x + np.uint64((0x9E3779B97F4A7C15 * (word + 1)) % 2**64)
      x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
      x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
      x = x ^ (x >> np.uint64(31))
  return (x >> np.uint64(11)) / 2**53


def _respond(labels, uniform, keep, num_classes=10):
  """Vectorised K-ary randomised response: kept where `uniform` is below `keep`."""
  if num_classes == 1:
    return labels
  step = (1 - keep) / (num_classes - 1)
  other = np.clip((uniform - keep) // step, 0, num_classes - 2).astype(np.int32)
  return np.where(uniform < keep, labels, other + (other >= labels)).astype(np.int32)


def _rr(seed=0, keep=None, table=_TABLE):
  """The correct mechanism, memoised by a hash; with another `keep` a wrong one."""
  keep = table.keep_probability if keep is None else keep
  return lambda labels, ids, client: _respond(
      labels, _hash_uniform(seed, client, ids), keep, table.num_classes
  )


def _fresh(seed=0, keep=_TABLE.keep_probability, num_classes=10):
  """The correct mechanism, drawing anew each time."""
  draws = np.random.default_rng(seed)
  return lambda labels, ids, client: _respond(labels, draws.random(len(ids)), keep, num_classes)


def _keep(epsilon, num_classes=10):
  return math.exp(epsilon) / (math.exp(epsilon) + num_classes - 1)


def _flip(seed, table=_TABLE):
  """What is declared and runs."""
  return lambda labels, ids, client: mechanism.flip(
      labels, ids, mechanism.simulation_secret(seed, client), table
  )


# The zoo: the mechanisms below are broken, each in one way.


def _identity(labels, ids, client):
  return labels


def _keep_else_uniform(labels, ids, client):
  """'Otherwise uniform' over all classes, the true one included: keeps with .2 + .8 / 10."""
  uniform = np.floor(10 * _hash_uniform(1, client, ids)).astype(np.int32)
  return np.where(_hash_uniform(0, client, ids) < _TABLE.keep_probability, labels, uniform)


def _present_classes(labels, ids, client):
  """Flips to the classes that the client holds, and no other."""
  present, position = np.unique(labels, return_inverse=True)
  uniform = _hash_uniform(0, client, ids)
  return present[_respond(position, uniform, _TABLE.keep_probability, len(present))]


def _constant_seed(labels, ids, client):
  return _respond(labels, np.random.default_rng(0).random(len(ids)), _TABLE.keep_probability)


def _seed_of_client(labels, ids, client):
  """The stream is the client's, but an example's number is that of its place in the list."""
  draws = np.random.default_rng(client)
  return _respond(labels, draws.random(len(ids)), _TABLE.keep_probability)


def _shared_seed(labels, ids, client):
  return _rr()(labels, ids, client=0)


def _draw_of_client(labels, ids, client):
  return _rr()(labels, np.zeros_like(ids), client)


def _seed_of_batch(labels, ids, client):
  """One seed for two batches of 32 each: examples 32 apart share their number."""
  return _rr()(labels, ids // 64 * 32 + ids % 32, client)


def _third_class_tells(labels, ids, client):
  """Keeps as declared, but label 0 is never reported as 9: its reports of 9 become 8."""
  reports = _rr()(labels, ids, client)
  return np.where((labels == 0) & (reports == 9), 8, reports)


def _nan_keep(labels, ids, client):
  # e^20 overflows float16, and inf / inf is NaN: no label is ever kept.
  with np.errstate(over='ignore', invalid='ignore'):
    e = np.exp(np.float16(20))
    keep = e / (e + np.float16(9))
  uniform = _hash_uniform(0, client, ids)
  other = np.floor(9 * uniform).astype(np.int32)
  return np.where(uniform < keep, labels, other + (other >= labels)).astype(np.int32)


def _flip_after_histogram(labels, ids, client):
  """What is counted are the raw labels: their order is gone, their histogram is the true one."""
  return np.random.default_rng(client).permutation(labels)


def _raises(labels, ids, client):
  raise RuntimeError('no entropy')


def _in_place(labels, ids, client):
  labels[:] = _rr()(labels, ids, client)
  return labels


def _run(report, table=_TABLE, trials=1000, seed=0, **kwargs):
  findings = audit_lib.audit(report, table, trials=trials, seed=seed, **kwargs)
  return {f.name: f for f in findings}


def _separately(report, table=_TABLE):
  """The tests that look at reports of their own, without the many of a whole audit."""
  level, claim = _ALPHA / 6, float(table.epsilon)
  findings = (
      lower_bounds.two_worlds(report, table.num_classes, claim, 20_000, level),
      lower_bounds.one_run(report, table.num_classes, claim, 20_000, level),
      declared_table.transition(report, table.transition_matrix(), 60_000, level),
      declared_table.support(report, table, 20_000, level),
      audit_lib.independence(report, table, 2000, level),
      audit_lib.memoisation(report, table, 1000, level, True),
  )
  return {f.name: f for f in findings}


def _failed(findings):
  return [name for name, f in findings.items() if f.verdict is _FAILED]


class CorrectMechanismTest(parameterized.TestCase):

  def test_flip(self):
    findings = _run(_flip(0), trials=4000)
    self.assertEqual(
        {name: f.verdict for name, f in findings.items()}, dict.fromkeys(_NAMES, _PASSED), findings
    )

  @parameterized.parameters(1, 2, 3)
  def test_flip_under_other_secrets(self, seed):
    findings = _run(_flip(seed))
    self.assertEqual([f.verdict for f in findings.values()], [_PASSED] * 8, findings)

  @parameterized.parameters(*[(s, 10, '0.81') for s in range(5)], (5, 2, '1'), (6, 3, '0.5'),
                            (7, 14, '1.18'), (8, 100, '3.21'), (9, 4, '0.05'))
  def test_memoised_and_fresh(self, seed, num_classes, epsilon):
    table = mechanism.randomized_response(epsilon, num_classes)
    fresh = _fresh(seed, table.keep_probability, num_classes)
    for report, memoised in ((_rr(seed, table=table), True), (fresh, False)):
      # Of 100 classes, one that is never reported is missed after thousands of reports only.
      trials = 4000 if num_classes == 100 else 1000
      findings = _run(report, table, trials, declared_memoised=memoised)
      self.assertEqual(
          [f.verdict for f in findings.values()], [_PASSED] * 8, (memoised, findings)
      )

  def test_lower_bounds_are_below_and_near_the_claim(self):
    findings = _separately(_rr())
    for name in ('two worlds', 'one run'):
      self.assertAlmostEqual(findings[name].claim, math.log(2.25))
      self.assertBetween(findings[name].value, 0.6, findings[name].claim)

  def test_same_findings_again(self):
    self.assertEqual(_run(_rr()), _run(_rr()))

  def test_another_seed_asks_others(self):
    asked = []
    for seed in (0, 1, None):
      pairs = set()

      def report(labels, example_ids, client, pairs=pairs):
        pairs.update((client, i) for i in example_ids[:1].tolist())
        return _rr()(labels, example_ids, client)

      _run(report, seed=seed, trials=100)
      asked.append(pairs)
      # Of all magnitudes.
      for seen, bits in zip(zip(*pairs, strict=True), (25, 50), strict=True):
        self.assertLess(min(seen), 50)
        self.assertGreater(max(seen), 2**bits)
    self.assertLess(len(asked[0] & asked[1]), len(asked[0]) / 4)
    self.assertLess(len(asked[0] & asked[2]), len(asked[0]) / 4)

  def test_nobody_is_asked_twice_about_an_example_of_the_record(self):
    draw = np.random.default_rng(0)
    answers = queries.record(_rr(), queries.Examples(draw), 10, 100)
    pairs = [(a.client, i) for a in answers for i in a.ids.tolist()]
    self.assertLen(set(pairs), len(pairs))
    self.assertGreater(len(pairs), 600 * 100)

  def test_mechanism_that_flips_in_place(self):
    self.assertEqual(_run(_in_place), _run(_rr()))

  def test_false_alarms_are_as_rare_as_declared(self):
    # 25 of the 2,000 seeds of the benchmark.
    runs = [
        _run(_fresh(seed), trials=60, alpha=0.2, declared_memoised=False, seed=seed)
        for seed in range(25)
    ]
    alarms = sum(bool(_failed(findings)) for findings in runs)
    self.assertLessEqual(alarms, stats.binom.ppf(1 - 1e-4, 25, 0.2))
    # Nor is it silent because it cannot find anything, but for a class that is never reported.
    silent = {
        name for findings in runs for name, f in findings.items() if f.verdict is _NO_EVIDENCE
    }
    self.assertEqual(silent, {'support'})

  @parameterized.named_parameters(
      ('two_worlds', lambda r: lower_bounds.two_worlds(r, 3, math.log(2), 500, 0.2)),
      ('one_run', lambda r: lower_bounds.one_run(r, 3, math.log(2), 500, 0.2)),
      # Expects 1000 of each, so that chi-square takes part.
      ('transition', lambda r: declared_table.transition(r, _SMALL.transition_matrix(), 4100, 0.2)),
      ('support', lambda r: declared_table.support(r, _SMALL, 500, 0.2)),
      ('independence', lambda r: audit_lib.independence(r, _SMALL, 500, 0.2)),
      ('memoisation', lambda r: audit_lib.memoisation(r, _SMALL, 500, 0.2, False)),
  )
  def test_false_alarms_of_one_test(self, test):
    reports = [_fresh(seed, _SMALL.keep_probability, 3) for seed in range(200)]
    alarms = sum(test(report).verdict is _FAILED for report in reports)
    self.assertLessEqual(alarms, stats.binom.ppf(1 - 1e-4, 200, 0.2))


class BrokenMechanismTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('identity', _identity, 'two worlds, one run, transition, support, independence'),
      ('swapped_keep', _rr(keep=0.8), 'two worlds, one run, transition, support, independence'),
      ('keep_else_uniform_over_all', _keep_else_uniform,
       'two worlds, one run, transition, support'),
      ('epsilon_doubled', _rr(keep=_keep(2 * math.log(2.25))),
       'two worlds, one run, transition, support, independence'),
      ('epsilon_a_quarter_larger', _rr(keep=_keep(1.25 * math.log(2.25))),
       'two worlds, one run, transition'),
      ('epsilon_a_tenth_larger', _rr(keep=_keep(0.9)), 'transition'),
      ('too_much_noise', _rr(keep=_keep(0.7)), 'transition'),
      ('only_noise', _rr(keep=0.1), 'transition, support'),
      # Its matrix and its guesses are right, as clients hold all classes there.
      ('present_classes', _present_classes, 'two worlds, support, independence, memoisation'),
      ('constant_seed', _constant_seed, 'transition, independence, memoisation'),
      ('constant_draw', lambda y, i, c: _rr()(y, 0 * i, 0), 'transition, support, independence'),
      ('draw_of_client', _draw_of_client, 'transition, support, independence'),
      # Every test of single reports passes.
      ('shared_seed', _shared_seed, 'independence'),
      ('seed_of_batch', _seed_of_batch, 'independence'),
      ('seed_of_client', _seed_of_client, 'memoisation'),
      ('fresh_declared_memoised', _fresh(), 'memoisation'),
      ('flip_after_histogram', _flip_after_histogram,
       'two worlds, transition, support, independence, memoisation'),
      ('fewer_classes', lambda y, i, c: _respond(y % 8, _hash_uniform(0, c, i), 0.2, 8),
       'transition, support'),
      ('third_class_tells', _third_class_tells,
       'two worlds, transition, support'),
  )
  def test_rejected(self, report, expected):
    findings = _separately(report)
    self.assertContainsSubset(expected.split(', '), _failed(findings), str(findings))

  def test_memoised_declared_fresh(self):
    findings = _run(_rr(), declared_memoised=False)
    self.assertEqual(_failed(findings), ['memoisation'])
    self.assertEqual(findings['memoisation'].value, 1)
    self.assertAlmostEqual(findings['memoisation'].claim, 1 / 9)

  @parameterized.parameters(
      ('20', 'transition, support, independence'), ('0.81', 'two worlds, transition, support')
  )
  def test_probability_that_is_nan(self, epsilon, expected):
    findings = _separately(_nan_keep, mechanism.randomized_response(epsilon, 10))
    self.assertContainsSubset(expected.split(', '), _failed(findings), str(findings))

  def test_table_of_another_epsilon_than_it_says(self):
    # The table is realised exactly, and is not that of the claim.
    table = mechanism.randomized_response('2', 10)._replace(epsilon='0.81')
    findings = _run(_rr(table=table), table, trials=4000)
    self.assertEqual(_failed(findings), ['two worlds', 'one run'])

  def test_power_of_the_reference(self):
    # 1.25 epsilon at 20 000 trials and alpha .001, as its table of rejection rates.
    report = _rr(keep=_keep(1.25 * math.log(2.25)))
    finding = lower_bounds.two_worlds(report, 10, math.log(2.25), 20_000, 1e-3)
    self.assertIs(finding.verdict, _FAILED, finding)
    self.assertBetween(finding.value, math.log(2.25), 1.25 * math.log(2.25))

  def test_leak_is_found_with_few_reports(self):
    finding = declared_table.support(_present_classes, _TABLE, 500, _ALPHA)
    self.assertEqual((finding.verdict, finding.value), (_FAILED, 0), finding)

  @parameterized.parameters(*_LAGS)
  def test_examples_that_share_their_draw(self, lag):
    finding = audit_lib.independence(
        lambda y, i, c: _rr()(y, i // (2 * lag) * lag + i % lag, c), _TABLE, 20_000, _ALPHA
    )
    self.assertIs(finding.verdict, _FAILED, finding)
    # Wherever a block starts: half of all pairs so far apart share their draw.
    self.assertGreater(finding.value, 0.5)
    self.assertRegex(finding.detail, f'(examples|positions) {lag} apart agree in')


class NoAnswerTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('raises', _raises, 'the mechanism raised RuntimeError: no entropy'),
      ('of_fewer_classes',
       _flip(0, mechanism.randomized_response('0.81', 5)),
       'the mechanism raised ValueError: labels must be in 0 to 4, found'),
      ('of_more_classes', _rr(table=mechanism.randomized_response('0.81', 14)),
       'reports must be in 0 to 9, found 0 to 13'),
      ('negative', lambda y, i, c: y - 10, 'reports must be in 0 to 9, found -[0-9]+ to'),
      ('float', lambda y, i, c: y * 1.0, 'expected [0-9]+ whole reports, found float64'),
      ('nan', lambda y, i, c: y * math.nan, 'expected [0-9]+ whole reports, found float64'),
      ('bool', lambda y, i, c: y > 3, 'expected [0-9]+ whole reports, found bool'),
      ('none', lambda y, i, c: None, r'expected [0-9]+ whole reports, found object of shape \(\)'),
      ('too_few', lambda y, i, c: y[1:], 'expected [0-9]+ whole reports, found int32 of shape'),
      ('one_hot', lambda y, i, c: np.eye(10, dtype=int)[y], r'of shape \([0-9]+, 10\)'),
      ('one_number', lambda y, i, c: 3, 'expected [0-9]+ whole reports'),
  )
  def test_every_test_fails_and_says_why(self, report, message):
    findings = _run(report, trials=1000)
    self.assertEqual(tuple(findings), _NAMES)
    for name, finding in findings.items():
      self.assertIs(finding.verdict, _FAILED, finding)
      self.assertRegex(finding.detail, message, name)
      self.assertTrue(math.isnan(finding.value) and math.isnan(finding.claim), name)

  def test_an_interrupt_is_not_a_finding(self):
    def interrupted(labels, ids, client):
      raise KeyboardInterrupt

    with self.assertRaises(KeyboardInterrupt):
      audit_lib.audit(interrupted, _TABLE)


class NoEvidenceTest(parameterized.TestCase):

  @parameterized.parameters(_rr(), _identity, _raises)
  def test_no_trials(self, report):
    findings = _run(report, trials=0)
    self.assertEqual(tuple(findings), _NAMES)
    self.assertEqual({f.verdict for f in findings.values()}, {_NO_EVIDENCE}, findings)

  def test_too_few_trials_are_not_a_pass(self):
    findings = _run(_rr(), trials=3)
    for name in ('two worlds', 'one run', 'support', 'independence'):
      self.assertIs(findings[name].verdict, _NO_EVIDENCE, findings[name])

  def test_an_epsilon_so_large_that_labels_as_they_are_keep_it(self):
    table = mechanism.randomized_response('20', 10)
    findings = _run(_rr(table=table), table)
    # A flip is one in 5e7 reports.
    self.assertEqual({f.verdict for f in findings.values()}, {_NO_EVIDENCE}, findings)

  def test_no_pairs(self):
    finding = lower_bounds.two_worlds(_identity, 10, 1.0, 100, _ALPHA, pairs=())
    self.assertIs(finding.verdict, _NO_EVIDENCE)

  def test_nothing_guessed(self):
    # Always another label than the two in question.
    finding = lower_bounds.one_run(lambda y, i, c: (y + 5) % 10, 10, 0.8, 1000, _ALPHA)
    self.assertEqual((finding.verdict, finding.value), (_NO_EVIDENCE, 0))


class ArgumentTest(parameterized.TestCase):

  @parameterized.parameters(
      (2, ((0, 1),)), (3, ((0, 1), (2, 0))), (10, ((0, 1), (9, 0), (5, 4)))
  )
  def test_label_pairs(self, num_classes, expected):
    self.assertEqual(lower_bounds.label_pairs(num_classes), expected)

  def test_agreement_of_the_reference(self):
    self.assertAlmostEqual(shared_draws.agreement(_TABLE), 1 / 9)

  @parameterized.parameters(
      ({'alpha': 0.0}, 'alpha must be between 0 and 1, got 0.0'),
      ({'alpha': 1.0}, 'alpha must be between 0 and 1'),
      ({'trials': -1}, 'trials must be a whole number of at least 0, got -1'),
      ({'trials': 1e3}, 'trials must be a whole number'),
  )
  def test_audit(self, kwargs, message):
    with self.assertRaisesRegex(ValueError, message):
      audit_lib.audit(_rr(), _TABLE, **kwargs)

  def test_epsilon_that_is_no_number(self):
    with self.assertRaisesRegex(ValueError, "expected a decimal epsilon, got 'ln 2.25'"):
      audit_lib.audit(_rr(), _TABLE._replace(epsilon='ln 2.25'))

  @parameterized.parameters(math.nan, math.inf, -1.0)
  def test_claim(self, claim):
    for test in (lower_bounds.two_worlds, lower_bounds.one_run):
      with self.assertRaisesRegex(ValueError, f'claim must be a finite epsilon.*got {claim}'):
        test(_rr(), 10, claim, 100, _ALPHA)

  @parameterized.parameters(1, 0, 2.5)
  def test_classes(self, num_classes):
    for test in (lower_bounds.two_worlds, lower_bounds.one_run):
      with self.assertRaisesRegex(ValueError, f'num_classes must be .*got {num_classes}'):
        test(_rr(), num_classes, 1.0, 100, _ALPHA)

  @parameterized.parameters((0, 0), (0, 10), (-1, 3))
  def test_pairs(self, *pair):
    with self.assertRaisesRegex(ValueError, 'pairs must be of different labels in 0 to 9'):
      lower_bounds.two_worlds(_rr(), 10, 1.0, 100, _ALPHA, pairs=[pair])


if __name__ == '__main__':
  absltest.main()
