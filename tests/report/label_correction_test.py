"""Tests of FedCorr's section: whom it took for noisy, what became of the labels, and its pictures.

The scene of `run_files` has three noisy labels: of example 2 (client 0), 7 (client 1), 11
(client 2); clients 0 and 2 are noisy.
"""

import os

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests.report import run_files
from tff_noise import types
from tff_noise.algorithms import fedcorr
from tff_noise.algorithms import fedcorr_params
from tff_noise.program import ground_truth
from tff_noise.program import run_directory
from tff_noise.program import summary as summary_lib
from tff_noise.report import blocks
from tff_noise.report import correction_plots
from tff_noise.report import figure_style
from tff_noise.report import label_correction
from tff_noise.report import runs
from tff_noise.report import sections

_FOUND = {
    'judgements': 2, 'noisy_clients': 2, 'mean_estimated_noise': 0.2, 'separated': True,
    'separation': 5.25, 'reliability': None,
}
_UNKNOWN = {
    'clean_label': np.full(12, -1, np.int32), 'nominal_rate': np.full(3, np.nan),
    'is_noisy_client': np.zeros(3, bool),
}


def _labels(**changes):
  """The labels at the end: those of the scene but for `_EXAMPLE=label`."""
  labels = run_files.scene().noisy_label.copy()
  for example, label in changes.items():
    labels[int(example[1:])] = label
  return labels


def _config(**parameters):
  return {
      **run_files.config(method='fedcorr'),
      'method_parameters': {'score': 'centred', 'clean_threshold': 0.1, 'iterations': 2,
                            **parameters},
  }


def _metrics(**changes):
  return run_files.metrics(
      stage=['preprocess', 'preprocess', 'finetune', 'usual'],
      noisy_clients=[1, 2, 2, 2],
      label_accuracy=[0.75, 0.75, 0.75, 0.875],
      noisy_client_precision=['nan', 1, 1, 1],
      noisy_client_recall=[0, 0.5, 0.5, 1],
      noisy_client_f1=[0, 0.667, 0.667, 1],
      **changes,
  )


def _clients(**changes):
  return {
      'client': [0, 1, 2],
      'lid': [2.0, 1.0, 2.5], 'lid_score': [0.0, -1.0, 0.5],
      'estimated_noise_rate': [0.25, 0, 0.5], 'taken_for_noisy': [1, 0, 1],
      'lid_1': [2.0, 1.5, 2.5], 'estimated_noise_rate_1': [0.5, 0, 0],
      'taken_for_noisy_1': [1, 0, 0],
      'lid_2': [2.0, 0.5, 2.5], 'estimated_noise_rate_2': [0.25, 0, 0.5],
      'taken_for_noisy_2': [1, 0, 1], **changes,
  }


class SectionTestCase(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.path = os.path.join(self.create_tempdir().full_path, 'a_run')

  def _run(self, found=_FOUND, **contents):
    summary = run_files.summary(method='fedcorr', fedcorr=found)
    del summary['label_communication']
    if found is None:
      del summary['fedcorr']
    contents = {
        'config': _config(), 'summary': summary, 'metrics': _metrics(), 'clients': _clients(),
        'labels': _labels(_2=2, _11=1, _0=1), **contents,
    }
    return runs.read_run(run_files.write(self.path, **contents))

  def _section(self, **contents):
    run = self._run(**contents)
    return label_correction.SECTION.build(run, runs.read_scene(run))

  def _texts(self, section):
    return [b for b in section if isinstance(b, blocks.Text)]

  def _text(self, section):
    return ' '.join(b.text for b in self._texts(section))

  def _pictures(self, section):
    return {b.name: b for b in section if isinstance(b, blocks.Picture)}

  def _drawn(self, section):
    pictures = self._pictures(section)
    for picture in pictures.values():
      self.assertStartsWith(figure_style.png(picture.figure), b'\x89PNG')
    return pictures


class WhichTest(SectionTestCase):

  def test_is_part_of_the_report(self):
    run = self._run()
    self.assertIn(label_correction.SECTION.title,
                  [s.title for s in sections.build(run, runs.read_scene(run))])

  def test_all_pictures(self):
    self.assertEqual(
        list(self._drawn(self._section())),
        ['client_scores', 'client_noise', 'corrections', 'label_corrections'],
    )

  def test_other_methods_and_runs_without_a_round_have_none(self):
    none = self._run(summary=None, metrics=None, timing=None)
    self.assertFalse(label_correction.SECTION.applies(none))
    other = runs.read_run(run_files.write(self.path))
    self.assertFalse(label_correction.SECTION.applies(other))

  def test_interrupted_run(self):
    section = self._section(summary=None, privacy=None, clients=None, labels=None)
    self.assertIn('So far 2 of 3 clients are taken for noisy', self._text(section))
    self.assertEqual(list(self._drawn(section)), ['corrections'])

  def test_without_preprocessing(self):
    nobody = {**_FOUND, 'judgements': 0, 'noisy_clients': 0, 'separated': False}
    clients = {'client': [0, 1, 2], 'lid': ['nan'] * 3, 'lid_score': ['nan'] * 3,
               'estimated_noise_rate': [0] * 3, 'taken_for_noisy': [0] * 3}
    metrics = {**_metrics(), 'stage': ['finetune'] * 2 + ['usual'] * 2}
    section = self._section(found=nobody, clients=clients, labels=_labels(), metrics=metrics)
    self.assertEqual(
        self._text(section),
        'There was no iteration of pre-processing: the server judged nobody. None of the 12 labels '
        'was changed.',
    )
    pictures = self._drawn(section)
    self.assertEqual(list(pictures), ['corrections'])
    self.assertLen(pictures['corrections'].figure.axes, 1)


class UnknownTest(SectionTestCase):

  def test_nobody_knows(self):
    unknown = ['nan'] * 4
    metrics = {**_metrics(), 'label_accuracy': unknown, 'noisy_client_precision': unknown,
               'noisy_client_recall': unknown, 'noisy_client_f1': unknown}
    section = self._section(scene=run_files.scene(**_UNKNOWN), metrics=metrics)
    text = self._text(section)
    self.assertIn('Which clients really are noisy, nobody knows.', text)
    self.assertIn('3 of 12 labels were changed; whether that was right, nobody knows.', text)
    self.assertNotIn('nan', text)
    pictures = self._drawn(section)
    self.assertEqual(list(pictures), ['client_scores'])
    self.assertLen(pictures['client_scores'].figure.axes, 2)
    self.assertIn('unknown', pictures['client_scores'].figure.axes[0].get_title(loc='left'))

  def test_partly_known(self):
    labels = _labels(_2=2, _5=1)  # Nobody knows the truth of client 1.
    section = self._section(scene=run_files.scene_with_unknowns(), labels=labels)
    self.assertIn(
        '2 of 10 labels were changed: 1 to the true one, 0 from one wrong label to another, 0 were '
        'right before; of 1 nobody knows. Wrong labels: 40.0% before, 20.0% after.',
        self._text(section),
    )
    self.assertLen(self._pictures(section), 4)

  def test_identification_is_over_the_known_clients(self):
    scene = run_files.scene(**_UNKNOWN)
    judged = np.array([True, True, False])
    self.assertTrue(all(np.isnan(v) for v in ground_truth.identification(scene, judged).values()))
    partly = run_files.scene_with_unknowns()._replace(is_noisy_client=np.array([True, False, True]))
    self.assertEqual(
        ground_truth.identification(partly, judged),
        {'noisy_client_precision': 1.0, 'noisy_client_recall': 0.5,
         'noisy_client_f1': 2 / 3},
    )


class WordsTest(SectionTestCase):

  def test_found(self):
    first, second, *_ = self._texts(self._section())
    self.assertEqual(
        first.text,
        '2 of 3 clients were taken for noisy: the part with the larger LID scores (separation 5.2, '
        "Ashman's D; without a guard there always are two parts).",
    )
    self.assertEqual((first.tone, second.tone), ('plain', 'plain'))
    self.assertIn('2 of the 2 noisy clients were found; nobody clean', second.text)

  def test_found_with_the_guard(self):
    first, *_ = self._texts(self._section(found={**_FOUND, 'reliability': 0.93}))
    self.assertEndsWith(
        first.text,
        "(separation 5.2, Ashman's D; iterations agree on a share of 0.93 of LID's variance; the "
        'guard asks for more than 0.5).',
    )

  def test_guard_held(self):
    found = {**_FOUND, 'separated': False, 'reliability': 0.2, 'noisy_clients': 0}
    clients = _clients(taken_for_noisy=[0] * 3, estimated_noise_rate=[0] * 3,
                       taken_for_noisy_2=[0] * 3, estimated_noise_rate_2=[0] * 3)
    first, second, *_ = self._texts(self._section(found=found, clients=clients))
    self.assertEqual(
        first.text,
        "Nobody was taken for noisy: iterations agree on a share of 0.20 of LID's variance; the "
        'guard asks for more than 0.5.',
    )
    self.assertEqual((first.tone, second.tone), ('notice', 'notice'))
    self.assertIn('0 of the 2 noisy clients were found, missed: clients 0, 2', second.text)

  def test_misjudged_clients_are_named(self):
    section = self._section(clients=_clients(taken_for_noisy=[1, 1, 0]))
    self.assertIn(
        '1 of the 2 noisy clients were found, missed: client 2; taken for noisy though clean: '
        'client 1.', self._text(section),
    )
    named = self._section(
        scene=run_files.scene(client_names=('north', 'south', '$west')),
        clients=_clients(taken_for_noisy=[1, 1, 0]),
    )
    self.assertIn(
        'missed: client $west; taken for noisy though clean: client south.', self._text(named)
    )

  @parameterized.parameters(
      ([0, 0, 0], 'no client is noisy, and none was taken for noisy.'),
      ([0, 1, 0], 'no client is noisy; taken for noisy though clean: client 1.'),
  )
  def test_nobody_is_noisy(self, taken, expected):
    clean = run_files.scene(nominal_rate=np.zeros(3), is_noisy_client=np.zeros(3, bool))
    clean = clean._replace(noisy_label=clean.clean_label)
    nothing = ['nan'] * 4
    section = self._section(
        scene=clean, clients=_clients(taken_for_noisy=taken), labels=clean.clean_label,
        metrics={**_metrics(), 'label_accuracy': [1] * 4, 'noisy_client_recall': nothing,
                 'noisy_client_precision': nothing, 'noisy_client_f1': nothing},
    )
    self.assertIn(expected, self._text(section))
    pictures = self._drawn(section)
    self.assertLen(pictures['corrections'].figure.axes, 1)
    self.assertNotIn('label_corrections', pictures)

  def test_labels_by_hand(self):
    self.assertIn(
        '3 of 12 labels were changed: 1 to the true one, 1 from one wrong label to another, 1 were '
        'right before. Wrong labels: 25.0% before, 25.0% after.', self._text(self._section()),
    )

  def test_worse_is_a_warning(self):
    section = self._section(labels=_labels(_0=1, _4=0))
    (warning,) = [b for b in self._texts(section) if b.tone == 'warning']
    self.assertEqual(
        warning.text,
        'The correction made the labels worse: 25.0% were wrong before, 41.7% are now.',
    )

  def test_better_but_not_for_all_is_told(self):
    # Clients 0 and 2 are put right, client 1 loses a label.
    section = self._section(labels=_labels(_2=2, _11=0, _4=0))
    notices = [b.text for b in self._texts(section) if b.tone == 'notice']
    self.assertEqual(notices, ['1 client has more wrong labels than before.'])


class PicturesTest(SectionTestCase):

  @parameterized.parameters('centred', 'mean', 'cumulative')
  def test_scores_are_the_last_lid_and_what_the_server_splits_by(self, rule):
    clients = _clients(lid_score=[0, -1, 0.75])
    section = self._section(config=_config(score=rule), clients=clients)
    figure = self._pictures(section)['client_scores'].figure
    left, right = (
        sorted(np.concatenate([c.get_offsets()[:, 0] for c in axes.collections]).tolist())
        for axes in figure.axes[2:]
    )
    np.testing.assert_allclose(left, [0.5, 2, 2.5])
    np.testing.assert_allclose(right, [-1, 0, 0.75])

  def test_client_without_a_score(self):
    clients = _clients(lid_1=[2, 'nan', 2.5], lid_2=[2, 'nan', 2.5], lid_score=[2, 'nan', 2.5])
    section = self._section(clients=clients, config=_config(score='cumulative'))
    caption = self._drawn(section)['client_scores'].caption
    self.assertIn('or hold too few examples: 1 of 3 clients.', caption)

  def test_first_estimate_is_of_the_first_iteration_that_took_a_client_for_noisy(self):
    figure = self._pictures(self._section())['client_noise'].figure
    points = np.concatenate([c.get_offsets() for c in figure.axes[0].collections])
    # Client 0 in the first iteration, 2 in the second, 1 never; against 1/4, 1/3, 1/5.
    self.assertCountEqual(
        points.round(3).tolist(), [[0.25, 0.5], [0.333, 0.5], [0.2, 0]]
    )
    # (1/4 + 1/6) / 2.
    self.assertEqual(
        figure.axes[0].get_title(loc='left'), 'First estimate\nmean error 0.21'
    )

  def test_the_truth_at_the_end(self):
    labels = _labels(_2=2, _11=0, _4=0)
    figure = self._pictures(self._section(labels=labels))['client_noise'].figure
    points = np.concatenate([c.get_offsets() for c in figure.axes[2].collections])
    self.assertEqual(sorted(points[:, 1].tolist()), [0, 0, 0.4])
    self.assertIn('1 client has more than before', figure.axes[2].get_title(loc='left'))

  def test_curve_begins_with_the_labels_as_they_came(self):
    figure = self._pictures(self._section())['corrections'].figure
    steps = figure.axes[0].lines[1]
    np.testing.assert_allclose(steps.get_xdata(), range(5))
    np.testing.assert_allclose(steps.get_ydata(), [0.25, 0.25, 0.25, 0.25, 0.125])
    self.assertEqual(
        [t.get_text() for t in figure.legends[0].get_texts()],
        [
            'wrong labels as they came', 'recall: 1.00 after round 4',
            'precision: 1.00 after round 4', 'F1: 1.00 after round 4',
        ],
    )

  @parameterized.parameters(1, 20, 500)
  def test_any_number_of_clients(self, count):
    rng = np.random.default_rng(0)
    noisy, scores = rng.random(count) < 0.5, rng.normal(size=count)
    judgement = correction_plots.Judgement(
        rate=np.where(noisy, rng.random(count), 0), noisy=noisy,
        known=rng.random(count) < 0.9, taken=rng.random(count) < 0.5,
    )
    components = np.array([[0.5, -1, 0.5], [0.5, 1, 0.5]])
    columns = [
        correction_plots.Scores('score', 'title', scores, components, decides)
        for decides in (False, True)
    ]
    for shown in (columns, columns[1:]):
      first, again = (
          figure_style.png(correction_plots.client_scores(shown, judgement)) for _ in range(2)
      )
      self.assertEqual(first, again)

  @parameterized.parameters(
      ([0, 0, 1, 1], [(1.5, 3.7)]), ([1, 0, 0, 1], [(-0.7, 0.5), (2.5, 3.7)]), ([0] * 4, []),
  )
  def test_shaded_is_what_was_taken_for_noisy(self, taken, expected):
    four = correction_plots.Judgement(
        rate=np.full(4, np.nan), noisy=np.zeros(4, bool), known=np.zeros(4, bool),
        taken=np.array(taken) > 0,
    )
    scores = correction_plots.Scores('score', 'title', np.arange(4.0), None, True)
    axes = correction_plots.client_scores([scores], four).axes[0]
    spans = [
        p.get_extents().transformed(axes.transData.inverted())
        for p in axes.patches if p.get_zorder() < 0
    ]
    np.testing.assert_allclose(
        np.reshape([(s.x0, s.x1) for s in spans], (-1, 2)), np.reshape(expected, (-1, 2)),
        atol=1e-9,
    )


  def test_a_score_of_which_some_were_taken_is_not_shaded(self):
    values, taken = np.array([0.0, 0, 0, 2, 4]), np.array([True, False, True, False, True])
    [(low, high)] = correction_plots._noisy_ranges(values, taken)
    self.assertEqual(low, 3)
    self.assertGreater(high, 4)

  def test_clients_of_one_score_and_rate_stand_side_by_side(self):
    scores, rates = np.array([1.0, 1, 1, 2, 2, np.nan]), np.array([0.0, 0.001, 0.8, 0, np.nan, 0])
    moved = correction_plots._side_by_side(scores, rates, (0.0, 10.0))
    np.testing.assert_allclose(moved, [0.875, 1.125, 1, 2, 2, np.nan])
    # Many stay nearer to their own score than to the next.
    many = correction_plots._side_by_side(np.repeat([1.0, 2.0], 50), np.zeros(100), (0.0, 10.0))
    self.assertLess(many[:50].max(), 1.3)
    self.assertLen(set(many), 100)


class DamagedTest(SectionTestCase):

  @parameterized.parameters(
      {'separated': 'yes'}, {'separation': None}, {'reliability': 'high'}, {'noisy_clients': 'all'},
      {'reliability': 'high'},
  )
  def test_summary(self, **changes):
    with self.assertRaisesRegex(types.UsageError, 'summary.json is damaged: fedcorr'):
      self._section(found={**_FOUND, **changes})

  def test_other_clients_than_the_scene(self):
    with self.assertRaisesRegex(types.UsageError, 'has 2 clients, scene.npz has 3'):
      self._section(clients={'client': [0, 1]})

  def test_other_labels_than_the_scene(self):
    with self.assertRaisesRegex(types.UsageError, 'has 11 labels, scene.npz has 12'):
      self._section(labels=np.zeros(11, int))


class WrittenTest(parameterized.TestCase):
  """What a run writes is what the section reads."""

  def test_columns_of_the_iterations(self):
    records = {
        'lid': np.array([[1.0, np.nan], [2.0, 3.0], [np.nan, np.nan]]),
        'noise': np.array([0, 0.5]), 'noisy': np.array([False, True]),
        'split': np.array([1, 3, np.nan]),
        'noise_by_iteration': np.array([[0, np.nan], [0, 0.5], [np.nan, np.nan]]),
        'noisy_by_iteration': np.array([[0, 0], [0, 1], [0, 0]], bool),
    }
    columns = fedcorr._client_columns(records, fedcorr_params.FedCorrParams())
    np.testing.assert_array_equal(columns['lid_1'], [1, np.nan])
    np.testing.assert_array_equal(columns['estimated_noise_rate_2'], [0, 0.5])
    np.testing.assert_array_equal(columns['taken_for_noisy_2'], [0, 1])
    self.assertNotIn('lid_3', columns)  # An interrupted run has not come so far.
    self.assertEqual(fedcorr._summary(records)['fedcorr']['judgements'], 2)

  def _text(self, **changes):
    run = run_directory.locate(self.create_tempdir().full_path, 'run')
    run_directory.create(run, lambda folder: None)
    summary = {
        **run_files.summary(), 'label_communication': None, 'clients': 3, 'noisy_clients': 2,
        'label_noise_rate': 0.25, 'fedcorr': _FOUND, **changes,
    }
    lines = fedcorr._lines(summary) if summary['fedcorr'] else []
    run_directory.write_json(run.file('summary.json'), {**summary, 'lines': lines})
    run_directory.write_json(run.file('privacy.json'), run_files.PRIVACY)
    return summary_lib.text(run)

  def test_closing_text(self):
    text = self._text(
        noisy_client_precision=1.0, noisy_client_recall=0.5,
        **ground_truth.correction_summary(run_files.scene(), _labels(_2=2, _11=1)),
    )
    self.assertIn('2 of 3 taken for noisy (precision 1.00, recall 0.50)', text)
    self.assertIn('2 changed, 1 to the true one; 0 were right before', text)
    self.assertIn('wrong labels: 25.0% before, 16.7% after', text)
    self.assertNotIn('WARNING', text)

  def test_closing_text_where_the_guard_held(self):
    text = self._text(fedcorr={**_FOUND, 'separated': False}, labels_changed=0)
    self.assertIn('nobody was taken for noisy: too few clients have a LID to tell', text)
    text = self._text(fedcorr={**_FOUND, 'separated': False, 'reliability': 0.2}, labels_changed=0)
    self.assertIn(
        'nobody was taken for noisy: iterations do not agree whose LID is larger', text
    )
    self.assertIn('none was changed', text)

  def test_closing_text_warns_of_harm(self):
    text = self._text(
        noisy_client_precision=0.0, noisy_client_recall=None,
        **ground_truth.correction_summary(run_files.scene(), _labels(_0=1)),
    )
    self.assertIn('2 of 3 taken for noisy, though none is', text)
    self.assertIn('WARNING         the correction made the labels worse', text)

  def test_closing_text_where_nobody_knows(self):
    scene = run_files.scene(**_UNKNOWN)
    text = self._text(
        label_noise_rate=None, **ground_truth.correction_summary(scene, _labels(_0=1))
    )
    self.assertIn('1 changed; whether that was right, nobody knows', text)

  def test_closing_text_without_preprocessing_and_of_other_methods(self):
    self.assertIn('no iteration of pre-processing', self._text(fedcorr={'judgements': 0}))
    text = self._text(fedcorr=None)
    self.assertNotIn('noisy clients  ', text)
    self.assertNotIn('  labels ', text)


if __name__ == '__main__':
  absltest.main()
