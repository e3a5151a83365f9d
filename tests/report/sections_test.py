"""Tests of the sections: which a run has, and what they say."""

import os
import shlex

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tests.report import run_files
from tff_noise import types
from tff_noise.program import flags
from tff_noise.report import blocks
from tff_noise.report import label_prior
from tff_noise.report import runs
from tff_noise.report import sections


class SectionsTestCase(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.path = os.path.join(self.create_tempdir().full_path, 'a_run')

  def _run(self, **contents):
    return runs.read_run(run_files.write(self.path, **contents))

  def _build(self, run):
    return {s.title: s.blocks for s in sections.build(run, runs.read_scene(run))}

  def _texts(self, content):
    return ' '.join(b.text for b in content if isinstance(b, blocks.Text))


class CommandTest(SectionsTestCase):

  def test_only_what_differs_from_the_defaults(self):
    run = self._run(config=run_files.config(param=[], clients=20, rounds=100,
                                            partition='openset_uniform'))
    self.assertEqual(
        sections.command(run), './bazelw run //bin:train -- --method=feddpcont --seed=3'
    )

  def test_gives_the_recorded_flags_back(self):
    recorded = {
        'param': ['weight=0.5', 'contrast=expectation'], 'noise': 'random', 'noise_rate': 0.25,
        'clients': 7, 'scene': "runs/it's mine/scene.npz", 'learning_rate': 1e-05, 'momentum': 0.0,
    }
    run = self._run(config=run_files.config(**recorded))
    command = sections.command(run)
    self.assertIn(' \\\n', command)
    words = shlex.split(command.replace('\\\n', ''))
    self.assertEqual(words[:4], ['./bazelw', 'run', '//bin:train', '--'])
    values = flags.parse(['train', *words[4:]])
    for name, value in run.flags.items():
      self.assertEqual(values[name].value, value, name)

  def test_what_the_run_does_not_read_is_left_out_so_that_the_command_is_taken(self):
    for given in (
        ('--noise=none', '--noise_rate=0.2', '--method=fedavg', '--label_epsilon=2'),
        ('--scene=s.npz', '--clients=7', '--noise=pairflip'),
        ('--method=elr', '--param=beta=0.5', '--param=weight=0'),
        (
            '--method=fedavg', '--public_dataset=cifar100', '--public_dir=p', '--data_dir=d',
            '--public_examples=7',
        ),
    ):
      config = flags.config_from(flags.parse(['train', *given]))
      run = self._run(config={'flags': config.identity()})
      words = shlex.split(sections.command(run).replace('\\\n', ''))
      again = flags.config_of_command_line(['train', *words[4:]])
      self.assertEqual((again.method, again.scene), (config.method, config.scene))
      self.assertNotIn('--param=beta=0.5', words)
      self.path += 'x'

  def test_switches_and_flags_that_are_gone(self):
    run = self._run(config={'flags': {'resume': False, 'old': 3, 'method': 'fedavg'}})
    self.assertEqual(
        sections.command(run), './bazelw run //bin:train -- --noresume --old=3 --method=fedavg'
    )


class NoiseTextTest(parameterized.TestCase):

  @parameterized.parameters(
      ('none', 'no label noise'),
      ('human', 'labels that people gave'),
      ('matrix', 'noise by the matrix T.csv'),
      ('client_uniform', 'noise client_uniform at a share 0.6 of the clients, from 0.5 on'),
      ('client_symmetric', 'noise client_symmetric at a share 0.6 of the clients, of rate 0.4'),
      ('pairflip', 'noise pairflip of rate 0.4'),
  )
  def test_has_the_numbers_that_the_noise_has(self, name, expected):
    numbers = {'noise_rate': 0.4, 'noise_rho': 0.6, 'noise_tau': 0.5, 'noise_matrix': 'T.csv'}
    self.assertEqual(sections.noise_text({'noise': name, **numbers}), expected)


_ALL = (
    'Result', 'How to repeat it', 'Training', 'Federation and label noise',
    'What the method saw: the label distribution', 'What left the clients',
    'What it cost in privacy', 'Times', 'Package versions',
)


class WhichTest(SectionsTestCase):

  def test_the_round_chosen_on_the_validation_set_is_in_the_result(self):
    summary = run_files.summary(
        validation_chosen_round=2, validation_chosen_test_accuracy=0.625
    )
    result = self._build(self._run(summary=summary))['Result']
    [numbers] = [b for b in result if isinstance(b, blocks.Numbers)]
    self.assertIn('0.6250', [number.value for number in numbers.numbers])
    self.assertIn(
        "test accuracy of the round chosen on the server's validation set",
        [number.name for number in numbers.numbers],
    )

  def test_it_says_where_clients_chose_it(self):
    summary = run_files.summary(
        validation_chosen_round=2, validation_chosen_test_accuracy=0.625,
        validation_chosen_by='client_validation_accuracy',
    )
    [numbers] = [
        b for b in self._build(self._run(summary=summary))['Result']
        if isinstance(b, blocks.Numbers)
    ]
    self.assertIn(
        'test accuracy of the round chosen on the examples that clients withhold',
        [number.name for number in numbers.numbers],
    )

  def test_finished_run_has_all(self):
    self.assertEqual(tuple(self._build(self._run())), _ALL)

  def test_method_without_label_prior(self):
    summary = run_files.summary()
    del summary['label_communication']
    self.assertNotIn(_ALL[4], self._build(self._run(summary=summary)))

  def test_run_without_a_round_has_what_there_is(self):
    run = self._run(summary=None, privacy=None, uplink=None, metrics=None, timing=None)
    self.assertEqual(
        list(self._build(run)), [_ALL[0], _ALL[1], _ALL[3], _ALL[8]]
    )

  def test_every_picture_has_its_own_name(self):
    names = [
        b.name for content in self._build(self._run()).values() for b in content
        if isinstance(b, blocks.Picture)
    ]
    self.assertEqual(
        names,
        ['accuracy', 'losses', 'federation', 'noise_rates', 'label_distribution', 'seconds'],
    )


class UnknownTest(SectionsTestCase):
  """Examples that the server holds, and labels of which nobody knows the truth."""

  def _pictures(self, content):
    return [b.name for b in content if isinstance(b, blocks.Picture)]

  def test_headline_counts_what_clients_hold_and_what_is_known(self):
    content = self._build(self._run(scene=run_files.scene_with_unknowns()))['Result']
    text = self._texts(content)
    self.assertIn('10 training examples of 3 clients', text)
    self.assertIn('40.0% of the labels are wrong', text)
    self.assertIn('The server validates on 2 more.', text)

  def test_nothing_is_said_of_a_server_that_holds_nothing(self):
    self.assertNotIn('validate', self._texts(self._build(self._run())['Result']))

  def test_what_clients_withhold_is_counted_apart_and_its_curve_explained(self):
    withheld = np.zeros(12, bool)
    withheld[[1, 5, 6]] = True
    scene = run_files.scene_with_unknowns()._replace(is_withheld=withheld)
    columns = {'client_validation_accuracy': [0.25, 0.5, 0.25, 0.25]}
    content = self._build(self._run(scene=scene, metrics=run_files.metrics(**columns)))
    text = self._texts(content['Result'])
    self.assertIn('7 training examples of 3 clients', text)
    self.assertIn('The server validates on 2 more. Clients validate on 3 more of theirs.', text)
    picture, *_ = [b for b in content['Training'] if isinstance(b, blocks.Picture)]
    self.assertIn('on examples that clients withhold, with the labels', picture.caption)
    legend = [text.get_text() for text in picture.figure.legends[0].get_texts()]
    self.assertIn('chosen by validation: 0.625 in round 2', legend)
    picture, *_ = [
        b for b in self._build(self._run())['Training'] if isinstance(b, blocks.Picture)
    ]
    self.assertNotIn('withhold', picture.caption)

  def test_clients_of_unknown_noise_are_left_out_of_its_picture_and_counted(self):
    content = self._build(self._run(scene=run_files.scene_with_unknowns()))
    federation = content['Federation and label noise']
    self.assertEqual(self._pictures(federation), ['federation', 'noise_rates'])
    holds, rates = [b.caption for b in federation if isinstance(b, blocks.Picture)]
    self.assertIn('2 to 5 (median 3) examples', holds)
    self.assertIn('Realised over all: 40.0% of 5 labels.', rates)
    self.assertIn('Unknown for 1 clients, left out.', rates)

  def test_where_nothing_is_known_it_says_so(self):
    unknown = run_files.scene(
        clean_label=np.full(12, -1, np.int32), nominal_rate=np.full(3, np.nan),
        is_noisy_client=np.zeros(3, bool),
    )
    content = self._build(self._run(scene=unknown))
    self.assertEqual(tuple(content), _ALL)
    self.assertIn(
        'how many of the labels are wrong is unknown', self._texts(content['Result'])
    )
    federation = content['Federation and label noise']
    self.assertEqual(self._pictures(federation), ['federation'])
    self.assertIn('Nobody knows which labels are wrong', self._texts(federation))
    self.assertNotIn('nan', self._texts([b for c in content.values() for b in c]))


class ContentTest(SectionsTestCase):

  def test_headline(self):
    content = self._build(self._run())['Result']
    text = self._texts(content)
    self.assertIn('Method feddpcont: contrastive labels', text)
    self.assertIn('12 training examples of 3 clients', text)
    self.assertIn('25.0% of the labels are wrong', text)
    (numbers,) = [b.numbers for b in content if isinstance(b, blocks.Numbers)]
    self.assertEqual([n.value for n in numbers], ['0.7500', '0.5625', '0.6250', '3.5 s'])
    self.assertEqual(numbers[0].remark, 'round 3; chosen on the test set')

  def test_unfinished(self):
    content = self._build(self._run(summary=None, privacy=None))['Result']
    self.assertEqual(content[0].tone, 'warning')
    self.assertIn('not finished: 4 of 4 rounds', content[0].text)

  def test_unfinished_with_stages_that_have_more_rounds_than_the_flag(self):
    run = self._run(
        summary=None, privacy=None, config=run_files.config(method='fednoro', rounds=2)
    )
    self.assertIn('not finished: 4 rounds are done', self._build(run)['Result'][0].text)

  @parameterized.parameters(
      'transition', 'fedtally', 'label_communication', 'clipfl', 'wrong_label_auc'
  )
  def test_a_method_of_ones_own_may_call_its_numbers_as_another_does(self, name):
    summary = run_files.summary(method='mine', **{name: [1.0, 2.0]})
    if name != 'label_communication':
      del summary['label_communication']
    run = self._run(summary=summary, config=run_files.config(method='mine:METHOD'))
    self.assertEqual(list(self._build(run))[:2], ['Result', 'How to repeat it'])

  def test_never_evaluated(self):
    nothing = ['nan'] * 4
    run = self._run(summary=None, metrics=run_files.metrics(test_accuracy=nothing,
                                                            test_loss=nothing))
    content = self._build(run)
    self.assertIn('not measured in any round', self._texts(content['Result']))
    self.assertEqual([b.name for b in content['Training']], ['losses'])

  def test_left_out_updates_are_told(self):
    run = self._run(metrics=run_files.metrics(rejected=[0, 2, 1, 0]))
    self.assertIn('3 client updates were not finite', self._texts(self._build(run)['Result']))

  def test_unknown_method(self):
    run = self._run(config=run_files.config(method='gone'))
    self.assertIn('Method gone.', self._texts(self._build(run)['Result']))

  def test_stages_are_listed(self):
    content = self._build(self._run())
    self.assertIn('warm (rounds 1 to 2), train (rounds 3 to 4)', content['Training'][0].caption)
    table = content['Times'][1]
    self.assertEqual(table.rows, [('warm', '1 to 2', '2.5'), ('train', '3 to 4', '1')])

  def test_partition_notes_are_told(self):
    text = self._texts(self._build(self._run())['Federation and label noise'])
    self.assertIn('class 1 had no owner', text)

  def test_uplink(self):
    metrics = run_files.metrics(bytes_up=[1e6] * 4, bytes_down=[500.0] * 4)
    table, total = self._build(self._run(metrics=metrics))['What left the clients']
    update, labels = table.rows
    self.assertEqual(table.header[-2:], ('size', 'why'))
    self.assertEqual(update[0], 'update')
    self.assertEqual(
        update[1],
        blocks.Folded('3 tensors: 8,320 float32, 1 int32', run_files.UPLINK[0]['type_spec']),
    )
    self.assertStartsWith(update[3], 'sum: the server handles single contributions')
    self.assertEqual(update[4:], ('none', '33.3 kB', 'averaged into the next model'))
    self.assertEqual(labels[1], 'int64[3]')
    self.assertEqual(labels[4], '0 to 7')
    self.assertIn('4 MB from clients to the server and 2 kB', total.text)

  def test_uplink_of_an_older_run_has_no_sizes(self):
    field = {'name': 'x', 'type_spec': 'int32', 'disclosure': 'new kind', 'lower': 0, 'upper': None}
    (table,) = self._build(self._run(uplink=[field]))['What left the clients']
    self.assertNotIn('size', table.header)
    self.assertEqual(table.rows, [('x', 'int32', '', 'new kind', 'at least 0', '')])

  @parameterized.parameters(
      ('float32', 'float32'),
      ('<a=float32[2,3],b=float32,c=int64[4],float32=bool[7]>', '4 tensors: 7 float32, '),
      ('<a=float32[?,3],b=float32[5],and_a_long_name=int64[4]>',
       '3 tensors: ? float32, 4 int64'),
      ('something else that is longer than forty characters',
       'something else that is longer than forty...'),
  )
  def test_short_type(self, type_spec, expected):
    self.assertStartsWith(sections.short_type(type_spec), expected)

  def test_privacy(self):
    notice, table, leak = self._build(self._run())['What it cost in privacy']
    self.assertEqual(notice.tone, 'notice')
    self.assertEqual(
        notice.text,
        'The whole run: no finite epsilon for the label of one example. '
        'The whole run: no finite epsilon for one example. '
        'The whole run: no finite epsilon for one client. Nothing is promised.',
    )
    row = dict(zip(table.header, table.rows[0], strict=True))
    self.assertEqual((row['epsilon'], row['for']), ('infinite', 'the label of one example'))
    self.assertEqual((row['times'], row['in what form'], row['status']), ('4', 'sum', 'none'))
    # Where something has no guarantee, it is said what that can mean.
    self.assertEqual(leak.text, sections._LEAK)

  def test_bounds_of_a_secure_sum_are_told_where_there_are_some(self):
    release = {
        **run_files.PRIVACY['releases'][0], 'name': 'label histogram', 'epsilon': 0.81,
        'central_epsilon': {
            'lower': 0.0123, 'upper': 0.0456, 'delta': 1e-7, 'holds': 'of this sum alone',
        },
    }
    privacy = {**run_files.PRIVACY, 'releases': [release]}
    _, _, bounds = self._build(self._run(privacy=privacy))['What it cost in privacy']
    self.assertEqual(
        bounds.text,
        'Central epsilon of the label histogram: between 0.0123 and 0.0456 at delta 1e-07 (privacy '
        'blanket; Balle et al. 2019). That is of this sum alone.',
    )

  def test_finite_epsilon(self):
    privacy = {
        'releases': [{**run_files.PRIVACY['releases'][0], 'epsilon': 0.81}],
        'totals': [{'unit': 'a label', 'epsilon': 0.81}], 'statement': 'Proved.',
    }
    notice, table = self._build(self._run(privacy=privacy))['What it cost in privacy']
    self.assertStartsWith(notice.text, 'The whole run: epsilon 0.81 for a label.')
    self.assertEqual(table.rows[0][4], '0.81')


class LabelPriorTest(SectionsTestCase):

  def _section(self, **changes):
    labels = {**run_files.LABELS, **changes}
    run = self._run(summary=run_files.summary(label_communication=labels))
    return label_prior.SECTION.build(run, runs.read_scene(run))

  def test_distances_by_hand(self):
    # Noisy labels: 4 of each class, which is uniform.
    (table,) = [b for b in self._section() if isinstance(b, blocks.Table)]
    np.testing.assert_allclose([float(row[1]) for row in table.rows], [0.133, 0.533, 0.0])

  def test_prior_that_is_worse_than_none_is_told(self):
    self.assertIn('0.133 away from the noisy labels', self._texts(self._section()))

  def test_distances_are_to_the_labels_that_clients_hold(self):
    # Ten labels are with clients; with the server's two, all classes would be equal.
    labels = {**run_files.LABELS, 'estimate': [3 / 10, 4 / 10, 3 / 10]}
    run = self._run(
        summary=run_files.summary(label_communication=labels),
        scene=run_files.scene_with_unknowns(),
    )
    section = label_prior.SECTION.build(run, runs.read_scene(run))
    (table,) = [b for b in section if isinstance(b, blocks.Table)]
    self.assertEqual(table.rows[0][1], '0.000')

  def test_verdicts(self):
    self.assertIn('is informative by its error', self._texts(self._section()))
    self.assertIn('keeps 25% of its signal.', self._texts(self._section()))
    poor = self._section(informative=False, standard_error=[0.5] * 3, signal=0.0)
    self.assertEqual(poor[0].tone, 'notice')
    self.assertIn('NOT informative: its largest standard error, 0.500, is not below 0.333',
                  poor[0].text)
    self.assertIn('drawn almost uniformly', poor[0].text)
    self.assertIn('counted unflipped', self._section(epsilon=None)[0].text)

  @parameterized.parameters(
      {'raw': []}, {'raw': [0.1]}, {'raw': 'text'}, {'num_labels': None}, {'signal': 'all'},
  )
  def test_damaged(self, **changes):
    with self.assertRaisesRegex(types.UsageError, 'summary.json is damaged: label_communication'):
      self._section(**changes)

  def test_more_classes_than_estimated(self):
    with self.assertRaisesRegex(types.UsageError, 'estimates 2 classes, scene.npz has more'):
      self._section(raw=[0.5, 0.5], estimate=[0.5, 0.5], standard_error=[0.1, 0.1])


if __name__ == '__main__':
  absltest.main()
