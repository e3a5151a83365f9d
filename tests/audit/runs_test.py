"""Tests of the audit of a run: what was tampered with is found."""

import collections
import csv
import io
import json
import math
import os
import types as namespaces

import dp_accounting
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests.report import run_files
from tff_noise import types
from tff_noise.audit import export
from tff_noise.audit import finding
from tff_noise.audit import page
from tff_noise.audit import runs
from tff_noise.privacy import accountant
from tff_noise.privacy import composition
from tff_noise.privacy import costs as costs_lib
from tff_noise.privacy import events
from tff_noise.privacy import ledger
from tff_noise.privacy import protection
from tff_noise.program import ledger_seal
from tff_noise.program import run_directory
from tff_noise.report import runs as report_runs

_PASSED, _FAILED, _NO_EVIDENCE = finding.Verdict
_ROUNDS = 4
# Of a run whose data are not there.
_WITHOUT_CODE = {'uplink.json': _NO_EVIDENCE, 'replay': _NO_EVIDENCE}


def _field(name, shield, disclosure='sum'):
  return {
      'name': name, 'type_spec': 'float32', 'intrinsic': 'federated_sum', 'disclosure': disclosure,
      'lower': None, 'upper': None, 'reason': 'why', 'num_bytes': 4,
      'protection': protection.to_json(shield),
  }


_REPORTS = protection.LabelReports(10, '0.81', 1000)
_DECLARED = [
    _field('labels', _REPORTS, 'DP, secure sum'),
    _field('update', None),
]


class RunsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.run_ = run_files.write(os.path.join(self.create_tempdir().full_path, 'run'))
    self._dump('uplink.json', _DECLARED)
    self.seal = ledger_seal.of_run(run_directory.RunDirectory(self.run_))
    book = ledger.Ledger(('labels', 'update'), _DECLARED, self._file('ledger.jsonl'), self.seal)
    book.record(1, 'train', ['labels'], np.arange(20))
    for i in range(1, _ROUNDS + 1):
      book.record(i, 'train', ['update'], np.arange(i, i + 4))
    self._dump('privacy.json', costs_lib.to_json(book.entries, _DECLARED))

  def _file(self, name):
    return os.path.join(self.run_, name)

  def _dump(self, name, content):
    with open(self._file(name), 'w', encoding='utf-8') as file:
      json.dump(content, file)

  def _audit(self, code=None, why_not='no data', delta=1e-5):
    by_code = code and runs.ByCode(code, ())
    return runs.audit(report_runs.read_run(self.run_), self.seal, delta, by_code, why_not)

  def _verdicts(self, audit):
    return {f.name.split(':')[0]: f.verdict for f in audit.findings if f.verdict is not _PASSED}

  def _change(self, name, old, new):
    with open(self._file(name), encoding='utf-8') as file:
      text = file.read()
    self.assertIn(old, text)
    with open(self._file(name), 'w', encoding='utf-8') as file:
      file.write(text.replace(old, new, 1))

  def test_a_run_as_it_was_written_passes(self):
    audit = self._audit()
    self.assertFalse(audit.failed)
    # Without the code nobody knows what it sends: that is no pass.
    self.assertEqual(self._verdicts(audit), _WITHOUT_CODE)
    self.assertEqual(audit.status, 3)
    self.assertIn('no data', audit.text())
    json.loads(audit.json())

  def test_says_what_left_when_and_what_it_cost(self):
    text = self._audit().text()
    for expected in ('labels', '1 to 4', 'no finite epsilon', '0.81', 'privacy blanket'):
      self.assertIn(expected, text)

  def test_says_what_it_costs_at_another_delta(self):
    audit = self._audit(delta=1e-3)
    self.assertEqual(audit.content['privacy']['releases'][0]['central_epsilon']['delta'], 1e-3)
    self.assertIn('at delta 0.001', ' '.join(audit.text().split()))
    self.assertNotIn('1e-05', audit.text())
    # The run's own totals are still checked at the delta it wrote them with.
    self.assertEqual(self._verdicts(audit), _WITHOUT_CODE)

  @parameterized.parameters(
      ('ledger.jsonl', '"clients": 20', '"clients": 21', 'line 1'),
      ('uplink.json', '"reason": "why"', '"reason": "because"', 'line 1'),
      ('privacy.json', '"epsilon": "inf"', '"epsilon": 0.81', 'releases'),
      ('privacy.json', 'simulation', 'deployment', 'statement'),
      ('privacy.json', '"statement"', '"certificate": "proved", "statement"', 'certificate'),
  )
  def test_what_was_changed_is_found(self, name, old, new, detail):
    self._change(name, old, new)
    audit = self._audit()
    self.assertTrue(audit.failed)
    [failed] = [f for f in audit.findings if f.verdict is _FAILED]
    self.assertIn(detail, failed.detail)

  def test_a_round_that_was_not_recorded_is_found(self):
    with open(self._file('ledger.jsonl'), encoding='utf-8') as file:
      lines = file.readlines()
    with open(self._file('ledger.jsonl'), 'w', encoding='utf-8') as file:
      file.writelines(lines[:-1])
    audit = self._audit()
    self.assertIn('round 4 has none', ' '.join(f.detail for f in audit.findings))
    self.assertTrue(audit.failed)
    # Unless nobody was asked for anything.
    columns = run_files.metrics(clients=[4, 4, 4, 0], bytes_up=[9, 9, 9, 0])
    run_files.write_csv(self._file('metrics.csv'), columns)
    (found,) = [f for f in self._audit().findings if 'has its releases' in f.name]
    self.assertIs(found.verdict, _NO_EVIDENCE)
    self.assertEqual(found.detail, 'nobody was asked in 1 rounds, as metrics.csv has it')

  def test_declaration_that_cannot_be_read_is_refused(self):
    os.remove(self._file('ledger.jsonl'))
    self._dump('uplink.json', [{'name': 'labels', 'disclosure': 'sum'}])
    with self.assertRaisesRegex(types.UsageError, 'does not say what protects'):
      self._audit()
    for name in ('uplink.json', 'summary.json', 'privacy.json'):
      os.remove(self._file(name))
    with self.assertRaisesRegex(types.UsageError, 'has no uplink.json'):
      self._audit()

  def test_noise_times_100_where_data_are_absent_is_no_pass(self):
    self._release_noise(protection.NoisySum(100.0, 1.0, 4, 20))
    self.assertEqual(self._audit().status, 3)

  def test_delta_is_compared_with_the_clients_of_the_scene(self):
    declared = [_DECLARED[0], _field('update', protection.NoisySum(5.0, 1.0, 4, 20))]
    self._dump('uplink.json', declared)
    os.remove(self._file('ledger.jsonl'))
    book = ledger.Ledger(('labels', 'update'), declared, self._file('ledger.jsonl'), self.seal)
    book.record(1, 'train', ['update'], np.arange(4))
    self._dump('privacy.json', costs_lib.to_json(book.entries, declared))
    clients = report_runs.read_scene(report_runs.read_run(self.run_)).num_clients
    for delta, warned in ((0.99 / clients, False), (1.01 / clients, True)):
      statement = self._audit(delta=delta).content['privacy']['statement']
      self.assertEqual(f'over the number of clients, {clients}:' in statement, warned)

  def test_one_client_with_noise_of_its_own_size_is_no_sum_over_one(self):
    # A Poisson sample of one is hidden by the noise of any; a fixed cohort of one is not allowed in
    # a secure sum, and a plain one claims to hide nothing.
    shield = protection.NoisySum(5.0, 1.0, 1, 20)
    for sampling, shown, failed in (
        ('poisson', 'secure sum', False), ('fixed', 'secure sum', True), ('fixed', 'sum', False)
    ):
      declared = [_DECLARED[0], _field('update', shield._replace(sampling=sampling), shown)]
      self._dump('uplink.json', declared)
      os.remove(self._file('ledger.jsonl'))
      book = ledger.Ledger(('labels', 'update'), declared, self._file('ledger.jsonl'), self.seal)
      for i in range(1, _ROUNDS + 1):
        book.record(i, 'train', ['update'], np.arange(1))
      self._dump('privacy.json', costs_lib.to_json(book.entries, declared))
      found = {f.name: f.verdict for f in self._audit().findings}
      [verdict] = [v for name, v in found.items() if 'no secure sum is over one' in name]
      self.assertIs(verdict, _FAILED if failed else _PASSED)

  def test_a_change_of_code_is_told(self):
    book = ledger.Ledger(
        ('labels', 'update'), _DECLARED, self._file('ledger.jsonl'), self.seal, 'fff'
    )
    book.record(1, 'train', ['update'], np.arange(4))
    self._dump('privacy.json', costs_lib.to_json(book.entries, _DECLARED))
    audit = self._audit()
    self.assertEqual(audit.content['entries'][_ROUNDS + 1], {'code': 'fff'})
    self.assertIn('other code made the run from entry 6 on: fff', audit.text())
    again = ledger.Ledger(
        ('labels', 'update'), _DECLARED, self._file('ledger.jsonl'), self.seal, 'fff', repeats=False
    )
    again.record(1, 'train', ['update'], np.arange(3))
    text = ' '.join(self._audit().text().split())
    self.assertIn('Resumed from entry 8 on, where rounds do not repeat to the bit', text)
    self.assertEqual(text.count('Resumed with other code'), 1)

  def test_reports_by_two_codes_have_no_bound(self):
    declared = [_DECLARED[0]]
    self._dump('uplink.json', declared)
    os.remove(self._file('ledger.jsonl'))
    for i, code in ((1, None), (2, 'fff')):
      book = ledger.Ledger(('labels',), declared, self._file('ledger.jsonl'), self.seal, code)
      for round_num in range(1, i + 1):
        book.record(round_num, 'train', ['labels'], np.arange(20))
    for codes, verdict in ((1, _FAILED), (2, _PASSED)):
      self._dump('privacy.json', costs_lib.to_json(book.entries, declared, codes=codes))
      audit = self._audit()
      [found] = [f for f in audit.findings if 'privacy.json' in f.name]
      self.assertIs(found.verdict, verdict)
    label = audit.content['privacy']['totals'][0]
    self.assertEqual(label['epsilon'], 'inf')

  def test_without_its_key_no_run_is_audited(self):
    os.remove(self._file('ledger.key'))
    with self.assertRaisesRegex(types.UsageError, 'ledger.key cannot be read'):
      ledger_seal.of_run(run_directory.RunDirectory(self.run_))

  def test_a_missing_ledger_is_found(self):
    os.remove(self._file('ledger.jsonl'))
    self.assertTrue(self._audit().failed)

  def _release_noise(self, shield):
    """Puts a noisy sum in the place of the update."""
    declared = [_DECLARED[0], _field('update', shield)]
    self._dump('uplink.json', declared)
    os.remove(self._file('ledger.jsonl'))
    book = ledger.Ledger(('labels', 'update'), declared, self._file('ledger.jsonl'), self.seal)
    book.record(1, 'train', ['labels'], np.arange(20))
    for i in range(1, _ROUNDS + 1):
      book.record(i, 'train', ['update'], np.arange(i, i + 4))
    self._dump('privacy.json', costs_lib.to_json(book.entries, declared))

  def _units(self, files):
    units = json.loads(files['events.json'])['units']
    return {unit['unit']: events.from_json(unit['event']) for unit in units}

  def _curves(self, files):
    curves = collections.defaultdict(list)
    for row in csv.DictReader(io.StringIO(files['delta_epsilon.csv'])):
      curves[row['unit']].append((float(row['epsilon']), float(row['delta'])))
    return {unit: np.array(points).T for unit, points in curves.items()}

  def test_brings_its_ledger_as_events(self):
    self._release_noise(protection.NoisySum(2.0, 1.0, 4, 20))
    units = self._units(self._audit().files)
    noise = dp_accounting.SelfComposedDpEvent(
        dp_accounting.SampledWithoutReplacementDpEvent(20, 4, dp_accounting.GaussianDpEvent(1.0)),
        _ROUNDS,
    )
    nothing = dp_accounting.SelfComposedDpEvent(dp_accounting.NonPrivateDpEvent(), 1)
    self.assertEqual(units, {
        # Reports have no event yet.
        'the label of one example': dp_accounting.ComposedDpEvent(
            [noise, dp_accounting.UnsupportedDpEvent()]
        ),
        'one example': dp_accounting.ComposedDpEvent([nothing, noise]),
        'one client': dp_accounting.ComposedDpEvent([nothing, noise]),
    })

  @parameterized.parameters(4, 20)
  def test_every_point_of_the_curve_is_a_guarantee(self, population):
    shield = protection.NoisySum(2.0, 1.0, 4, population)
    self._release_noise(shield)
    audit = self._audit()
    curves = self._curves(audit.files)
    self.assertEqual(list(curves), ['the label of one example'])
    epsilons, deltas = curves['the label of one example']
    self.assertTrue((np.diff(deltas) <= 0).all())
    self.assertEqual(epsilons[0], 0)
    self.assertLess(deltas[-1], 1e-10)
    for delta in (1e-9, 1e-7, 1e-5, 1e-3, 1e-1):
      added = protection.total({shield: _ROUNDS, _REPORTS: 1}, protection.Unit.LABEL, delta)
      noise = accountant.gaussian_epsilon(
          2.0, population=population, cohort=4, rounds=_ROUNDS, delta=delta
      )
      first = int(np.argmax(deltas <= delta))
      # No more than adding the report; and no less than the noise alone, but for the grid.
      self.assertLessEqual(epsilons[first - 1], added.epsilon)
      self.assertGreaterEqual(epsilons[first], noise * (1 - 1e-4))
    [section] = [s for s in audit.evidence if s.title == 'Delta for every epsilon']
    self.assertEqual([block.kind for block in section.blocks], ['picture', 'table'])

  def test_of_thousands_of_releases_points_lie_where_the_curve_is(self):
    # By then what rounding leaves is more than the smallest delta that is drawn.
    loss = accountant.GaussianLoss(0.5, 0.05)
    exposure = namespaces.SimpleNamespace(losses={loss: 6000})
    client = export.Exposed('a client', exposure, protection.Cost(1.0, 1e-5, None))
    [curve] = export.curves([client], 1e-5)
    shown = np.array([curve.epsilons[curve.deltas <= delta][0] for delta in (1e-2, 1e-4, 1e-6)])
    profile = composition.compose(exposure.losses, 1e-10)
    exact = np.array([profile.epsilon(delta) for delta in (1e-2, 1e-4, 1e-6)])
    self.assertTrue((exact <= shown).all())
    np.testing.assert_allclose(shown, exact, rtol=0.03)

  def test_the_curve_of_reports_alone_is_exact(self):
    self._release_noise(protection.LabelReports(10, '0.81'))
    epsilons, deltas = self._curves(self._audit().files)['the label of one example']
    table = _REPORTS.mechanism
    exact = table.keep_probability - np.exp(epsilons) * table.other_probability
    np.testing.assert_allclose(deltas, np.maximum(exact, 0), rtol=1e-8, atol=1e-15)
    self.assertTrue((deltas >= exact).all())
    # 0 from its epsilon on, which is a point; not before.
    self.assertAlmostEqual(epsilons[np.argmax(deltas == 0)], 0.81, places=12)

  def test_a_page_with_a_curve_needs_nothing_else(self):
    self._release_noise(protection.NoisySum(2.0, 1.0, 4, 20))
    folder = self.create_tempdir().full_path
    page.write(self._audit(), folder)
    self.assertCountEqual(os.listdir(folder), [
        'audit.html', 'audit.json', 'audit.txt', 'delta_epsilon.csv', 'events.json',
    ])
    with open(os.path.join(folder, 'audit.html'), encoding='utf-8') as file:
      text = file.read()
    self.assertIn('id="delta_epsilon-', text)
    self.assertNotRegex(text, r'(src|href)="(?!#|data:)')

  def test_where_nothing_is_promised_there_is_no_curve(self):
    audit = self._audit()
    self.assertEqual(audit.files['delta_epsilon.csv'], 'unit,epsilon,delta\n')
    self.assertLen(self._units(audit.files), 3)
    self.assertIn('No curve is drawn', audit.text())

  def test_a_broken_ledger_brings_neither_events_nor_curves(self):
    # They take the place of those of an earlier audit.
    self._change('ledger.jsonl', '"clients": 20', '"clients": 21')
    audit = self._audit()
    self.assertEmpty(self._units(audit.files))
    self.assertEqual(audit.files['delta_epsilon.csv'], 'unit,epsilon,delta\n')

  def test_neither_seed_nor_paths_of_other_runs_are_shown(self):
    self._dump('config.json', run_files.config(
        seed=987654, scene='runs/x_seed987654/scene.npz', weights='runs/x_seed987654/model.h5',
        arrivals='runs/x_seed987654/a.csv',
    ))
    self.seal = ledger_seal.of_run(run_directory.RunDirectory(self.run_))
    audit = self._audit()
    for text in (audit.text(), audit.json(), *audit.files.values()):
      self.assertNotIn('987654', text)

  def test_errors_do_not_name_the_directory(self):
    run = report_runs.read_run(self.run_)._replace(path='/r/a_seed987654', name='a_seed987654')
    run.flags['scene'] = 's.npz'
    for said, expected in (
        ('/r/a_seed987654/noise.key cannot be read', 'noise.key cannot be read'),
        ('run a_seed987654 was made by code 1', 'the run was made by code 1'),
        ('no such directory: /r/a_seed987654', 'no such directory: the run'),
        ('scene /r/a_seed987654/s.npz is damaged', 'scene s.npz is damaged'),
        ('scene s.npz is damaged', 'scene the file of --scene is damaged'),
    ):
      self.assertEqual(runs.without_name(types.UsageError(said), run), expected)

  def test_a_sum_over_one_client_is_found(self):
    book = ledger.Ledger(('labels', 'update'), _DECLARED, self._file('ledger.jsonl'), self.seal)
    for entry in ledger.read(self._file('ledger.jsonl'), _DECLARED, self.seal)[0]:
      ids = np.arange(20)
      if entry.clients != 20:
        ids = np.arange(entry.round_num, entry.round_num + 4)
      fields = ['labels'] if entry.fields == (0,) else ['update']
      book.record(entry.round_num, 'train', fields, ids)
    book.record(_ROUNDS, 'train', ['labels', 'update'], np.array([7]))
    details = [f.detail for f in self._audit().findings if f.verdict is _FAILED]
    self.assertIn('in round 4 one client sent: labels', details)

  def test_a_sum_of_which_one_update_is_left_is_found(self):
    declared = [_DECLARED[0], _field('update', None, 'secure sum')]
    self._dump('uplink.json', declared)
    os.remove(self._file('ledger.jsonl'))
    book = ledger.Ledger(('labels', 'update'), declared, self._file('ledger.jsonl'), self.seal)
    for i in range(1, _ROUNDS + 1):
      book.record(i, 'train', ['update'], np.arange(i, i + 4))
    self._dump('privacy.json', costs_lib.to_json(book.entries, declared))
    columns = run_files.metrics(rejected=[0, 0, 3, 0], clients=[4, 4, 4, 4])
    run_files.write_csv(self._file('metrics.csv'), columns)
    details = [f.detail for f in self._audit().findings if f.verdict is _FAILED]
    self.assertEqual(details, ['in round 3 the updates of all clients but one were rejected'])
    # One that trains beside others who send something else, and none was rejected.
    columns = run_files.metrics(rejected=[0, 0, 0, 0], clients=[1, 1, 1, 1])
    run_files.write_csv(self._file('metrics.csv'), columns)
    self.assertEmpty([f for f in self._audit().findings if f.verdict is _FAILED])

  @parameterized.parameters(
      # Labels that were communicated in that round are of all who sent them.
      ([(['labels'], 20), (['update'], 2)], 1, 2, _FAILED),
      ([(['labels'], 20)], 1, 2, _PASSED),
      # Of two groups that train in a round, nobody can tell whose update it was.
      ([(['update'], 3), (['update'], 2)], 1, 5, _NO_EVIDENCE),
      ([(['update'], 3), (['update'], 3)], 1, 6, _PASSED),
  )
  def test_whose_update_was_rejected(self, exchanges, rejected, clients, verdict):
    declared = [_field('labels', None, 'secure sum'), _field('update', None, 'secure sum')]
    self._dump('uplink.json', declared)
    os.remove(self._file('ledger.jsonl'))
    book = ledger.Ledger(('labels', 'update'), declared, self._file('ledger.jsonl'), self.seal)
    for fields, count in exchanges:
      book.record(1, 'train', fields, np.arange(count))
    columns = run_files.metrics(rejected=[rejected, 0, 0, 0], clients=[clients, 0, 0, 0])
    run_files.write_csv(self._file('metrics.csv'), columns)
    (found,) = [f for f in self._audit().findings if f.name.startswith('ledger: no secure')]
    self.assertIs(found.verdict, verdict)

  @parameterized.parameters(
      {'noise_multiplier': '1'}, {'noise_multiplier': -1.0}, {'noise_multiplier': math.nan},
      {'clip': 0.0}, {'cohort': 0}, {'cohort': 21}, {'population': 20.0}, {'mechanism': 'laplace'},
      {'sampling': 'none'}, {'noise_source': 'nobody'}, {'reports': {'kind': 'counts'}},
      {'reports': {'kind': 'label reports', 'num_classes': 1, 'epsilon': '1', 'num_labels': 0}},
  )
  def test_a_protection_that_is_none_is_refused(self, **changes):
    shield = {**protection.to_json(protection.NoisySum(2.0, 1.0, 4, 20)), **changes}
    self._dump('uplink.json', [_DECLARED[0], {**_DECLARED[1], 'protection': shield}])
    with self.assertRaisesRegex(types.UsageError, 'uplink.json is damaged: not a protection'):
      report_runs.read_run(self.run_)

  def test_code_that_sends_something_else_is_found(self):
    now = [*_DECLARED[:1], _field('gradients', None)]
    code = finding.Audit('', (finding.passed('a round', 'ok'),), (), {'declared': now})
    audit = self._audit(code)
    [failed] = [f for f in audit.findings if f.verdict is _FAILED]
    self.assertIn('did not declare: gradients', failed.detail)
    self.assertIn('does not send: update', failed.detail)

  def test_code_that_sends_the_same_passes_and_brings_its_own_findings(self):
    own = finding.failed('a round', 'sends labels')
    code = finding.Audit('', (own,), (), {'declared': _DECLARED})
    audit = self._audit(code)
    self.assertIn(own, audit.findings)
    self.assertTrue(audit.failed)

  def test_a_run_that_goes_on_has_no_totals_to_check_yet(self):
    os.remove(self._file('privacy.json'))
    os.remove(self._file('summary.json'))
    self.assertEqual(
        self._verdicts(self._audit()),
        {'privacy.json': _NO_EVIDENCE, **_WITHOUT_CODE},
    )


class FindingTest(absltest.TestCase):

  def test_no_evidence_is_neither_failure_nor_pass(self):
    audit = finding.Audit('t', (finding.no_evidence('a', 'x'),), (), {})
    self.assertFalse(audit.failed)
    self.assertIn('1 no evidence', audit.text())
    self.assertEqual(audit.status, 3)
    both = audit._replace(findings=(*audit.findings, finding.failed('b', 'y')))
    self.assertEqual(both.status, 1)
    self.assertEqual(audit._replace(findings=(finding.passed('a', 'x'),)).status, 0)
    self.assertNotIn('1 passed', audit.text())

  def test_numbers_that_are_none_are_left_out_of_json(self):
    seen = finding.Finding('a', _PASSED, 'x', 0.5, math.nan)
    [content] = json.loads(finding.Audit('t', (seen,), (), {}).json())['findings']
    self.assertEqual(content, {'test': 'a', 'verdict': 'passed', 'detail': 'x', 'value': 0.5})


if __name__ == '__main__':
  absltest.main()
