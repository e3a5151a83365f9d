"""Tests of what a run is summed up to."""

import os

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.algorithms import summary_lines
from tff_noise.data import scene
from tff_noise.privacy import costs as costs_lib
from tff_noise.privacy import ledger
from tff_noise.privacy import protection
from tff_noise.program import run_directory
from tff_noise.program import summary
from tff_noise.uplink import uplink


def _scene():
  """Three clients; the second is noisy and has two of its four labels wrong."""
  return scene.Scene(
      client_of=np.array([0, 1, 1, 1, 1, 2, 2], np.int32),
      noisy_label=np.array([0, 1, 1, 0, 0, 1, 0], np.int32),
      clean_label=np.array([0, 1, 0, 0, 1, 1, 0], np.int32),
      nominal_rate=np.array([0.0, 0.4, 0.25]),
      is_noisy_client=np.array([False, True, True]),
      notes=(),
  )


def _unknown():
  """The same clients and labels, where nobody knows the truth."""
  return _scene()._replace(
      clean_label=np.full(7, -1, np.int32), nominal_rate=np.full(3, np.nan),
      is_noisy_client=np.zeros(3, bool),
  )


_ACCURACY = np.array([0.5, np.nan, 1.0])


class SummaryTestCase(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    root = self.create_tempdir().full_path
    self.run_ = run_directory.locate(root, 'run')
    run_directory.create(self.run_, lambda folder: None)

  def write(self, name, text):
    with open(self.run_.file(name), 'w', encoding='utf-8') as file:
      file.write(text)

  def write_rounds(
      self, accuracies, *, rejected=0, seconds=None, validation=None, client_validation=None
  ):
    header = 'round,stage,test_accuracy,rejected,bytes_up,bytes_down'
    rows = [f'{i},train,{a},{rejected},30,40' for i, a in enumerate(accuracies, 1)]
    if validation is not None:
      header += ',validation_accuracy,validation_loss'
      rows = [f'{row},{a},1.5' for row, a in zip(rows, validation, strict=True)]
    if client_validation is not None:
      header += ',client_validation_accuracy,client_validation_loss'
      rows = [f'{row},{a},1.5' for row, a in zip(rows, client_validation, strict=True)]
    self.write('metrics.csv', '\n'.join([header, *rows]) + '\n')
    seconds = seconds or [1.0] * len(accuracies)
    rows = [f'{i},{s}' for i, s in enumerate(seconds, 1)]
    self.write('timing.csv', '\n'.join(['round,seconds', *rows]) + '\n')


class SummarizeTest(SummaryTestCase):

  def test_rounds_without_evaluation_are_left_out(self):
    # Evaluated every third round: .5, .7, .6, and the last.
    self.write_rounds(
        ['nan', 'nan', 0.5, 'nan', 'nan', 0.7, 'nan', 'nan', 0.6, 0.4],
        seconds=[10, 1, 1, 1, 1, 2, 1, 1, 2, 1],
    )
    result = summary.summarize(self.run_)
    self.assertEqual((result['best_test_accuracy'], result['best_round']), (0.7, 6))
    self.assertAlmostEqual(result['last10_test_accuracy'], (0.5 + 0.7 + 0.6 + 0.4) / 4)
    self.assertEqual(result['final_test_accuracy'], 0.4)
    self.assertEqual(result['rounds'], 10)
    # The first round compiles; the median does not care, the sum does.
    self.assertEqual((result['seconds_per_round'], result['seconds']), (1, 21))

  def test_first_of_equal_bests(self):
    self.write_rounds([0.1, 0.9, 0.3, 0.9, 0.9])
    result = summary.summarize(self.run_)
    self.assertEqual((result['best_test_accuracy'], result['best_round']), (0.9, 2))

  def test_mean_is_over_the_last_ten_evaluations(self):
    accuracies = [round(0.01 * i, 2) for i in range(1, 14)]
    self.write_rounds(accuracies)
    # Of .04 to .13.
    self.assertAlmostEqual(summary.summarize(self.run_)['last10_test_accuracy'], 0.085)

  def test_single_round(self):
    self.write_rounds([0.25])
    result = summary.summarize(self.run_)
    self.assertEqual(
        (result['best_round'], result['last10_test_accuracy'], result['final_test_accuracy']),
        (1, 0.25, 0.25),
    )

  def test_bytes_add_up(self):
    self.write_rounds([0.1, 0.2, 0.3])
    summarized = summary.summarize(self.run_)
    self.assertEqual((summarized['bytes_up'], summarized['bytes_down']), (90, 120))

  def test_rejected_updates_add_up(self):
    self.write_rounds([0.1, 0.2, 0.3], rejected=2)
    self.assertEqual(summary.summarize(self.run_)['rejected_updates'], 6)

  def test_result_is_json(self):
    for validation in (None, ['nan', 0.25]):
      self.write_rounds(['nan', 0.5], validation=validation)
      run_directory.write_json(self.run_.file('summary.json'), summary.summarize(self.run_))

  def test_round_is_chosen_on_the_servers_validation_set(self):
    # Evaluated every second round; the round of the best test accuracy is another one.
    self.write_rounds(
        ['nan', 0.7, 'nan', 0.9, 'nan', 0.6], validation=['nan', 0.75, 'nan', 0.7, 'nan', 0.5]
    )
    result = summary.summarize(self.run_)
    self.assertEqual(
        (result['validation_chosen_round'], result['validation_chosen_test_accuracy']), (2, 0.7)
    )
    self.assertEqual((result['best_round'], result['best_test_accuracy']), (4, 0.9))

  def test_round_is_chosen_by_clients_where_the_server_has_no_set(self):
    by_clients = ['nan', 0.4, 'nan', 0.5]
    self.write_rounds(['nan', 0.7, 'nan', 0.6], client_validation=by_clients)
    result = summary.summarize(self.run_)
    self.assertEqual(result['validation_chosen_by'], 'client_validation_accuracy')
    self.assertEqual(
        (result['validation_chosen_round'], result['validation_chosen_test_accuracy']), (4, 0.6)
    )
    self.assertAlmostEqual(result['last10_validation_accuracy'], 0.45)
    self.write_rounds(
        ['nan', 0.7, 'nan', 0.6], validation=['nan', 0.9, 'nan', 0.8], client_validation=by_clients
    )
    result = summary.summarize(self.run_)
    self.assertEqual(result['validation_chosen_by'], 'validation_accuracy')
    self.assertEqual(result['validation_chosen_round'], 2)

  def test_nothing_is_chosen_where_nobody_who_withholds_was_there(self):
    self.write_rounds([0.1, 0.2], client_validation=['nan', 'nan'])
    self.assertEmpty([name for name in summary.summarize(self.run_) if 'validation' in name])

  def test_first_of_equals_on_the_validation_set(self):
    self.write_rounds([0.1, 0.2, 0.3], validation=[0.5, 0.75, 0.75])
    result = summary.summarize(self.run_)
    self.assertEqual(
        (result['validation_chosen_round'], result['validation_chosen_test_accuracy']), (2, 0.2)
    )

  def test_nothing_is_chosen_without_a_validation_set(self):
    self.write_rounds([0.1, 0.2])
    self.assertEmpty([name for name in summary.summarize(self.run_) if 'validation' in name])


class ReadRowsTest(SummaryTestCase):

  def test_rows_by_column_as_text(self):
    self.write('a.csv', 'round,stage\n1,"a, b"\n2,\n')
    self.assertEqual(
        summary.read_rows(self.run_.file('a.csv')),
        [{'round': '1', 'stage': 'a, b'}, {'round': '2', 'stage': ''}],
    )


class ClientsTest(SummaryTestCase):

  def test_one_row_a_client(self):
    path = self.run_.file('clients.csv')
    summary.write_clients(path, _scene(), np.array([3, 0, 7]), _ACCURACY, {})
    with open(path, encoding='utf-8') as file:
      self.assertEqual(
          file.read().splitlines(),
          [
              'client,examples,nominal_noise_rate,realised_noise_rate,is_noisy,participations,'
              'test_accuracy',
              '0,1,0.0,0.0,0,3,0.5',
              '1,4,0.4,0.5,1,0,nan',
              '2,2,0.25,0.0,1,7,1.0',
          ],
      )

  def test_names_of_clients_stand_beside_their_numbers(self):
    path = self.run_.file('clients.csv')
    scene_ = _scene()._replace(client_names=('ward 3', 'a,b', 'é'))
    summary.write_clients(path, scene_, np.array([3, 0, 7]), _ACCURACY, {})
    rows = summary.read_rows(path)
    self.assertEqual(list(rows[0])[:3], ['client', 'name', 'examples'])
    self.assertEqual([r['name'] for r in rows], ['ward 3', 'a,b', 'é'])

  def test_columns_of_the_algorithm_follow(self):
    path = self.run_.file('clients.csv')
    own = {'lid': np.array([1.5, np.nan, 2.0]), 'taken_for_noisy': np.array([False, False, True])}
    summary.write_clients(path, _scene(), np.array([3, 0, 7]), _ACCURACY, own)
    rows = summary.read_rows(path)
    self.assertEqual(list(rows[0])[-3:], ['test_accuracy', 'lid', 'taken_for_noisy'])
    self.assertEqual(
        [(r['lid'], r['taken_for_noisy']) for r in rows],
        [('1.5', '0'), ('nan', '0'), ('2.0', '1')],
    )

  def test_columns_of_the_algorithm_are_in_the_place_of_no_other(self):
    path = self.run_.file('clients.csv')
    own = {'test_accuracy': np.zeros(3), 'examples': np.zeros(3)}
    summary.write_clients(path, _scene(), np.array([3, 0, 7]), _ACCURACY, own)
    rows = summary.read_rows(path)
    self.assertEqual([r['test_accuracy'] for r in rows], ['0.5', 'nan', '1.0'])
    self.assertEqual(list(rows[0])[-2:], ['own_test_accuracy', 'own_examples'])

  def test_participations_must_be_of_the_same_clients(self):
    with self.assertRaises(ValueError):
      summary.write_clients(
          self.run_.file('clients.csv'), _scene(), np.array([1, 2]), _ACCURACY, {}
      )

  def test_description(self):
    self.assertEqual(
        summary.describe(_scene()),
        {'clients': 3, 'noisy_clients': 2, 'clean_client_rate': 0, 'label_noise_rate': 2 / 7},
    )

  def test_description_is_of_what_clients_hold_and_is_known(self):
    held = _scene()._replace(
        client_of=np.array([0, -1, 1, 1, 1, 2, 2], np.int32),
        clean_label=np.array([0, 1, 0, 0, -1, 1, 0], np.int32),
    )
    self.assertEqual(summary.describe(held)['label_noise_rate'], 1 / 5)

  def test_description_where_nobody_knows_is_json(self):
    described = summary.describe(_unknown())
    self.assertEqual(
        described,
        {'clients': 3, 'noisy_clients': 0, 'clean_client_rate': 0, 'label_noise_rate': None},
    )
    run_directory.write_json(self.run_.file('summary.json'), described)

  def test_rows_of_clients_of_unknown_noise(self):
    path = self.run_.file('clients.csv')
    summary.write_clients(path, _unknown(), np.array([3, 0, 7]), _ACCURACY, {})
    self.assertEqual(
        [(r['nominal_noise_rate'], r['realised_noise_rate'], r['is_noisy'])
         for r in summary.read_rows(path)],
        [('nan', 'nan', '0')] * 3,
    )


def _released(*shields):
  """Twelve rounds' entries of a ledger, and the declaration of a value for each protection."""
  fields = tuple(
      uplink.UplinkField(
          f'value {i}', 'float32', 'federated_sum', uplink.Disclosure.SUM, None, None, 'a test', 4,
          shield,
      )
      for i, shield in enumerate(shields)
  )
  declared = uplink.to_json(fields)
  opened = ledger.Ledger(fields, declared)
  for round_num in range(1, 13):
    opened.record(round_num, 'train', fields, np.arange(2))
  return opened.entries, declared


class TextTest(SummaryTestCase):

  def _text(self, *, shields=(None,), lines=lambda content: (), **changes):
    """The text of a run of twelve releases of values that these protect, with an algorithm's lines.
    """
    content = {
        'rounds': 12,
        'seconds_per_round': 1.234,
        'best_test_accuracy': 0.91234,
        'best_round': 8,
        'last10_test_accuracy': 0.85,
        'final_test_accuracy': 0.8,
        'rejected_updates': 0,
        **summary.describe(_scene()),
        **changes,
    }
    content['lines'] = list(lines(content))
    run_directory.write_json(self.run_.file('summary.json'), content)
    cost = costs_lib.to_json(*_released(*shields))
    run_directory.write_json(self.run_.file('privacy.json'), cost)
    return summary.text(self.run_)

  def _sharing(self, **changes):
    """The text of a run in which labels were communicated."""
    found = {
        'prior': 'shrinkage', 'epsilon': '0.81', 'num_labels': 1400, 'raw': [0.1] * 10,
        'standard_error': [0.01, 0.072], 'signal': 0.66, 'informative': True, **changes,
    }
    return self._text(label_communication=found, lines=summary_lines.label_sharing)

  def test_numbers_of_the_run(self):
    text = self._text()
    self.assertIn('Run run: 12 rounds, 1.23 s a round', text)
    self.assertIn('best 0.9123 (round 8)', text)
    self.assertIn('last 10 evaluations 0.8500, final 0.8000', text)
    self.assertIn('last 6 evaluations 0.8500', self._text(evaluations=6))
    self.assertIn('last 10 evaluations 0.8500', self._text(evaluations=12))
    self.assertIn('28.6% of the training labels are wrong, 2 of 3 clients are noisy', text)
    self.assertIn(f'written to      {self.run_.path}', text)

  def test_budget_that_ended_it(self):
    self.assertNotIn('  budget  ', self._text())
    text = self._text(status='ended by budget', planned_rounds=30, target_client_epsilon=2.5)
    self.assertIn(
        '  budget          ended by budget: round 13 of 30 would pass epsilon 2.5 for one client\n',
        text,
    )

  def test_early_stopping_that_ended_it(self):
    text = self._text(status='ended early', planned_rounds=30)
    self.assertIn('  early stopping  ended after round 12 of 30\n', text)
    self.assertNotIn('  budget  ', text)

  def test_units(self):
    self.assertEqual(
        summary.units(_scene()),
        {
            protection.Unit.LABEL: 7, protection.Unit.EXAMPLE: 7, protection.Unit.CLIENT: 3,
        },
    )

  def test_what_clients_withhold_counts_among_the_units(self):
    withheld = np.zeros(len(_scene().client_of), bool)
    withheld[np.flatnonzero(_scene().client_of >= 0)[:2]] = True
    self.assertEqual(
        summary.units(_scene()._replace(is_withheld=withheld)), summary.units(_scene())
    )

  def test_unknown_noise(self):
    text = self._text(**summary.describe(_unknown()))
    self.assertIn('label noise     unknown: nobody knows the true labels', text)
    self.assertNotIn('%', text)

  def test_round_that_validation_chose(self):
    self.assertNotIn('validation set', self._text())
    text = self._text(validation_chosen_round=5, validation_chosen_test_accuracy=0.87654)
    self.assertIn("0.8765 in round 5, the best on the server's validation set", text)
    text = self._text(
        validation_chosen_round=5, validation_chosen_test_accuracy=0.87654,
        validation_chosen_by='client_validation_accuracy',
    )
    self.assertIn('0.8765 in round 5, the best on the examples that clients withhold', text)

  def test_own_models_of_clients(self):
    self.assertNotIn('own models', self._text())
    text = self._text(own_models={'clients': 17, 'mean_test_accuracy': 0.76543})
    self.assertIn('0.7654 on average of the own models of 17 clients', text)
    # Beside the other accuracies.
    lines = text.splitlines()
    (line,) = [i for i, text in enumerate(lines) if 'own models' in text]
    self.assertIn('test accuracy', lines[line - 1])

  @parameterized.parameters(
      ((0.5, 0.75), '10 of 20 pruned (precision 0.50, recall 0.75)'),
      ((0.0, None), '10 of 20 pruned, though none is'),
      ((None, None), '10 of 20 pruned'),
  )
  def test_pruned_clients(self, measures, expected):
    precision, recall = measures
    text = self._text(
        clients=20, clipfl={'pruned_clients': 10}, noisy_client_precision=precision,
        noisy_client_recall=recall,
        lines=lambda c: [
            summary_lines.noisy_clients(c, c['clipfl']['pruned_clients'], 'pruned')
        ],
    )
    self.assertIn(f'  noisy clients   {expected}\n', text)

  def test_privacy_statement_is_there_in_full(self):
    text = ' '.join(self._text().split())  # It is wrapped.
    entries, declared = _released(None)
    statement = costs_lib.statement(
        costs_lib.releases(entries, declared), costs_lib.totals(entries, declared)
    )
    self.assertIn('simulation', statement)
    self.assertIn(statement, text)
    self.assertIn('whole run: no finite epsilon for the label of one example', text)

  def test_finite_epsilon_is_printed(self):
    reports = protection.LabelReports(10, '0.81')
    text = self._text(shields=[reports, protection.Counts()])
    self.assertIn('whole run: epsilon 0.81 for the label of one example\n', text)
    self.assertNotIn('finite epsilon', text)
    self.assertNotIn('for one client', text)

  def test_units_that_have_a_finite_epsilon_are_printed(self):
    noisy = protection.NoisySum(5.0, 1.0, cohort=2, population=20)
    text = self._text(shields=[noisy])
    for unit in protection.Unit:
      self.assertRegex(text, f'whole run: epsilon [0-9.]+ for {unit.value}, delta 1e-05')

  def test_warning_where_updates_were_rejected_only(self):
    self.assertNotIn('WARNING', self._text())
    self.assertRegex(self._text(rejected_updates=3), 'WARNING .*3 updates were not finite')

  def test_informative_estimate(self):
    text = self._sharing()
    self.assertIn('epsilon 0.81 for each label; the estimate from 1400 labels is informative', text)
    self.assertIn('largest standard error 0.072, a class has 0.100 on average', text)
    self.assertIn('prior shrinkage keeps 66% of its signal', text)

  def test_a_precise_estimate_that_the_prior_does_not_use_is_not_called_informative(self):
    text = self._sharing(signal=0.02)
    self.assertNotIn('is informative', text)
    self.assertIn('is precise enough, but the prior hardly uses it', text)

  def test_uninformative_estimate(self):
    text = self._sharing(informative=False)
    self.assertIn('NOT informative', text)

  def test_unflipped_labels(self):
    text = self._sharing(epsilon=None)
    self.assertIn('unflipped histogram: no privacy', text)

  def test_without_label_communication(self):
    self.assertNotIn('label sharing', self._text())

  def test_lines_of_the_algorithm_are_between_those_of_noise_and_labels(self):
    text = self._text(
        lines=lambda content: [
            '  mine            first', f'  second          {content["clients"]}'
        ],
        labels_changed=0,
    )
    lines = text.splitlines()
    (first,) = [i for i, line in enumerate(lines) if 'mine' in line]
    self.assertStartsWith(lines[first - 1], '  label noise')
    self.assertEqual(
        lines[first : first + 3],
        ['  mine            first', '  second          3', '  labels          none was changed'],
    )

  def test_run_from_before_algorithms_had_lines(self):
    self._text()
    content = run_directory.read_json(self.run_.file('summary.json'))
    del content['lines']
    run_directory.write_json(self.run_.file('summary.json'), content)
    self.assertIn('label noise', summary.text(self.run_))

  @parameterized.parameters('summary.json', 'privacy.json')
  def test_unfinished_run(self, name):
    self._text()
    os.remove(self.run_.file(name))
    with self.assertRaisesRegex(ValueError, f'{name} cannot be read'):
      summary.text(self.run_)


if __name__ == '__main__':
  absltest.main()
