"""Tests of grids: from files, from flags, and the mistakes in them."""

import copy
import functools
import itertools
import os

import numpy as np
import yaml
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.algorithms import fedcorr
from tff_noise.compare import grid
from tff_noise.data import noise
from tff_noise.data import partition
from tff_noise.federated import task as task_lib
from tff_noise.program import flags

_CONTENT = {
    'title': 'A table',
    'source': 'A paper',
    'metric': 'best_test_accuracy',
    'baseline': 'FedAvg',
    'scales': {
        'full': {'seeds': [0], 'flags': {'dataset': 'cifar10'}},
        'reduced': {'seeds': [3, 4], 'flags': {'rounds': 7, 'noise_rate': 0.1}},
    },
    'settings': [
        {'name': 'low', 'flags': {'noise_rate': 0.2}},
        {'name': 'high', 'flags': {'noise_rate': 0.4}},
    ],
    'methods': [
        {'name': 'FedAvg', 'flags': {'method': 'fedavg'}},
        {'name': 'Ours', 'flags': {'method': 'feddpcont', 'param': ['weight=0.5']}},
        {'name': 'GCE', 'flags': {'method': 'gce', 'learning_rate': 0.5}},
    ],
    'published': {'FedAvg': {'low': [76.5, 0.9], 'high': [63]}},
}


# It is never built.
METHOD = catalog.ALGORITHMS['fedavg']._replace(name='mine', place=f'{__name__}:build')


class GridTestCase(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.content = copy.deepcopy(_CONTENT)
    self.path = os.path.join(self.create_tempdir().full_path, 'grid.yaml')

  def load(self, scale='reduced', seeds=None, extra=()):
    with open(self.path, 'w', encoding='utf-8') as file:
      yaml.safe_dump(self.content, file)
    return grid.load(self.path, scale, seeds, extra, 'runs')

  def assert_refused(self, message, **arguments):
    with self.assertRaises(types.UsageError) as caught:
      self.load(**arguments)
    self.assertRegex(str(caught.exception), message)
    self.assertIn(self.path, str(caught.exception))
    self.assertLen(str(caught.exception).splitlines(), 1)


class LoadTest(GridTestCase):

  def test_names_may_be_numbers_and_texts_of_several_lines(self):
    self.content['title'], self.content['source'] = 'A\n table', 'of\ntwo lines\n'
    self.content['settings'][0]['name'] = 0.2
    self.content['methods'][0].update(name=1, at={0.2: {'learning_rate': 0.25}})
    self.content.update(baseline=1, published={1: {0.2: [76.5]}})
    self.content['scales'] = {2: {**self.content['scales']['reduced'], 'methods': {1: {}}}}
    loaded = self.load(scale='2')
    self.assertEqual((loaded.title, loaded.source), ('A table', 'of two lines'))
    self.assertEqual((loaded.methods[0], loaded.settings[0], loaded.baseline), ('1', '0.2', '1'))
    self.assertEqual(loaded.published, {('1', '0.2'): (76.5, None)})
    self.assertEqual(loaded.cells[0].config.learning_rate, 0.25)

  def test_has_a_cell_for_each_method_setting_and_seed(self):
    loaded = self.load()
    self.assertLen(loaded.cells, 3 * 2 * 2)
    self.assertLen({(c.method, c.setting, c.seed) for c in loaded.cells}, 12)
    self.assertEqual(loaded.methods, ('FedAvg', 'Ours', 'GCE'))
    self.assertEqual(loaded.settings, ('low', 'high'))
    self.assertEqual(loaded.seeds, (3, 4))

  def test_columns_may_differ_at_a_scale(self):
    self.content['published'] = {'Ours': {'low': [1], 'high': [2]}}
    self.content['methods'][0]['at'] = {'low': {'learning_rate': 0.25}}
    self.content['scales']['reduced']['settings'] = {'low': None, 'high': {'noise_rate': 0.7}}
    loaded = self.load()
    self.assertEqual(loaded.settings, ('high',))
    self.assertEqual(loaded.published, {('Ours', 'high'): (2, None)})
    self.assertEqual({c.config.noise_rate for c in loaded.cells}, {0.7})
    self.content['scales']['reduced']['settings'] = {'high': {'noise_rho': 0.4}}
    self.assert_refused('high: --noise_rho has no effect here')
    self.content['scales']['reduced']['settings'] = {'mid': {}}
    self.assert_refused("scales: no setting 'mid'; settings: low, high")
    self.content['scales']['reduced']['settings'] = {'low': None, 'high': None}
    self.assert_refused('scales: reduced: it leaves no settings')

  def test_a_cells_arguments_are_those_of_its_run(self):
    # Read once for all seeds here, and by each run for itself.
    for cell in self.load(extra=('--client_dp_clip=0.5', '--client_dp_noise=1')).cells:
      read = flags.config_from(flags.parse(['train', *cell.arguments]))
      self.assertEqual(read, cell.config)
      self.assertEqual(read.seed, cell.seed)

  def test_methods_win_over_settings_win_over_scales(self):
    self.content['scales']['reduced']['flags']['noise_rate'] = 0.1
    self.content['settings'][1]['flags'] = {'openset_q': 0.3}
    self.content['methods'][1]['flags']['openset_q'] = 0.6
    found = {
        (c.method, c.setting): (c.config.noise_rate, c.config.openset_q)
        for c in self.load(seeds=[0]).cells
        if c.method != 'GCE' and (c.method, c.setting) != ('Ours', 'low')
    }
    self.assertEqual(
        found,
        {('FedAvg', 'low'): (0.2, '0.5'), ('FedAvg', 'high'): (0.1, '0.3'),
         ('Ours', 'high'): (0.1, '0.6')},
    )

  def test_lists_are_given_as_several_flags(self):
    self.content['methods'][1]['flags']['param'] = ['weight=0.5', 'contrast=expected']
    (cell,) = [c for c in self.load(seeds=[1]).cells if (c.method, c.setting) == ('Ours', 'low')]
    self.assertEqual(cell.config.param, ('weight=0.5', 'contrast=expected'))

  @parameterized.parameters(
      ('methods', 2, {'noise_rho': 0.5}, 'GCE: --noise_rho has no effect here'),
      ('methods', 1, {'label_prior': 'none', 'label_epsilon': 1}, 'Ours: --label_epsilon has'),
      ('methods', 0, {'method': 'elr', 'param': ['weight=0', 'beta=0.5']},
       'FedAvg: --param=beta=0.5 has no effect here'),
      ('settings', 0, {'noise': 'none', 'noise_rate': 0.2}, 'low: --noise_rate has no effect here'),
  )
  def test_a_flag_of_a_row_or_a_column_is_read_in_some_cell(self, key, index, flags_, message):
    self.content[key][index]['flags'] |= flags_
    self.assert_refused(message)

  def test_what_one_column_reads_a_row_may_have(self):
    self.content['settings'][1]['flags'] = {'noise': 'client_uniform'}
    self.content['methods'][2]['flags']['noise_rho'] = 0.5
    self.assertLen(self.load(seeds=[0]).cells, 6)

  def test_flags_of_a_row_in_a_column(self):
    self.content['methods'][1]['at'] = {'high': {'openset_q': 0.9}}
    found = {
        c.setting: c.config.openset_q for c in self.load(seeds=[1]).cells if c.method == 'Ours'
    }
    self.assertEqual(found, {'low': '0.5', 'high': '0.9'})

  def test_rows_of_a_scale(self):
    self.content['scales']['reduced']['methods'] = {
        'Ours': {'param': ['weight=0.25'], 'openset_q': 0.9}, 'GCE': None,
    }
    loaded = self.load(seeds=[1])
    self.assertEqual(loaded.methods, ('FedAvg', 'Ours'))
    ours, *_ = [c.config for c in loaded.cells if c.method == 'Ours']
    self.assertEqual((ours.param, ours.openset_q), (('weight=0.25',), '0.9'))
    self.assertLen(self.load('full').methods, 3)

  def test_what_is_published_of_a_row_that_is_not_there_is_left_out(self):
    self.content['published']['GCE'] = {'low': [70]}
    self.assertIn(('GCE', 'low'), self.load().published)
    self.content['scales']['reduced']['methods'] = {'GCE': None}
    self.assertEqual({method for method, _ in self.load().published}, {'FedAvg'})

  def test_flags_of_a_scale_s_row_win_in_every_column(self):
    self.content['methods'][1]['at'] = {'high': {'rounds': 4, 'openset_q': 0.9}}
    self.content['scales']['reduced']['methods'] = {'Ours': {'rounds': 3}}
    found = {
        c.setting: (c.config.rounds, c.config.openset_q)
        for c in self.load(seeds=[1]).cells if c.method == 'Ours'
    }
    self.assertEqual(found, {'low': (3, '0.5'), 'high': (3, '0.9')})

  def test_parameters_of_a_scale_s_row_come_beside_those_in_a_column(self):
    self.content['methods'][1]['at'] = {'high': {'param': ['contrast=expected']}}
    self.content['scales']['reduced']['methods'] = {'Ours': {'param': ['weight=0.25']}}
    found = {c.setting: c.config.param for c in self.load(seeds=[1]).cells if c.method == 'Ours'}
    self.assertEqual(
        found, {'low': ('weight=0.25',), 'high': ('contrast=expected', 'weight=0.25')}
    )

  def test_seeds_and_flags_of_the_command_line_win(self):
    loaded = self.load(seeds=[8], extra=['--rounds=2'])
    configs = [c.config for c in loaded.cells]
    self.assertEqual({c.seed for c in configs}, {8})
    self.assertEqual({c.rounds for c in configs}, {2})

  def test_cells_of_a_seed_share_scene_and_cohorts(self):
    # The scene is drawn from these fields and the seed alone, see program/data.py.
    first, second, _ = [c.config for c in self.load(seeds=[1]).cells if c.setting == 'low']
    self.assertEqual(first.data_spec(), second.data_spec())
    self.assertEqual(first.scene_spec(), second.scene_spec())
    self.assertEqual(first.clients_per_round, second.clients_per_round)

  def test_metrics_its_own_first(self):
    self.assertEqual(self.load().metrics, ('best_test_accuracy', 'last10_test_accuracy'))
    self.content['metric'] = ['noisy_client_f1', 'rounds_to_accuracy:90', 'last10_test_accuracy']
    loaded = self.load()
    self.assertEqual(loaded.metric, 'noisy_client_f1')
    self.assertEqual(
        loaded.metrics, (*self.content['metric'], 'best_test_accuracy')
    )

  def test_published_numbers(self):
    self.assertEqual(
        self.load().published, {('FedAvg', 'low'): (76.5, 0.9), ('FedAvg', 'high'): (63, None)}
    )


class MistakeTest(GridTestCase):

  def test_key_that_is_there_twice(self):
    with open(self.path, 'w', encoding='utf-8') as file:
      yaml.safe_dump(self.content, file)
      file.write('metric: final_test_accuracy\n')
    with self.assertRaisesRegex(types.UsageError, "is not YAML .*'metric' is there twice.*line"):
      grid.load(self.path, 'reduced', None, (), 'runs')

  def test_unknown_method(self):
    self.content['methods'][1]['flags'] = {'method': 'fedavgg'}
    self.assert_refused(
        'Ours, low: --method must be one of fedavg, fedprox, .*, feddpcont, .*, got fedavgg'
    )

  def test_unknown_flag(self):
    self.content['settings'][0]['flags'] = {'noise_rat': 0.2}
    self.assert_refused("low: Unknown command line flag 'noise_rat'")

  def test_value_out_of_range(self):
    self.content['settings'][0]['flags'] = {'noise_rate': 2}
    self.assert_refused(r'low: --noise_rate must be in \[0, 1\], got 2')

  def test_two_cells_that_are_one_run(self):
    self.content['methods'][1]['flags'] = {'method': 'fedavg'}
    self.assert_refused('"FedAvg, low" and "Ours, low" are the same run, fedavg_digits_seed3_')

  @parameterized.parameters('--seed=4', '--run_name=x')
  def test_command_line_cannot_set_what_the_grid_decides(self, flag):
    self.assert_refused(f'{flag.partition("=")[0]} cannot be set in a grid', extra=[flag])

  @parameterized.parameters('run_name', 'root_dir', 'seed', 'resume')
  def test_flags_that_the_grid_decides(self, name):
    self.content['methods'][0]['flags'][name] = 'x'
    self.assert_refused(f'--{name} cannot be set in a grid')

  @parameterized.parameters(*sorted(set(_CONTENT) - {'source', 'published'}))
  def test_missing_key(self, key):
    del self.content[key]
    self.assert_refused(f'no {key}')

  def test_a_grid_of_ones_own_has_nothing_published(self):
    del self.content['source'], self.content['published']
    grid = self.load()
    self.assertEqual((grid.source, grid.published), ('', {}))

  def test_unknown_key(self):
    self.content['methodes'] = []
    self.assert_refused('unknown key methodes; known: title')

  @parameterized.parameters(
      ({'metric': 'accuracy'}, 'metric must be one of best_test_accuracy, last10'),
      ({'metric': []}, 'metric must be a name, or a list of names'),
      ({'metric': ['best_test_accuracy', 'rounds_to_accuracy:120']}, "got 'rounds_to_acc.*:120'"),
      ({'metric': 'rounds_to_accuracy'}, "rounds_to_accuracy:PERCENT; got 'rounds_to_accuracy'"),
      ({'baseline': 'FedAv'}, "baseline 'FedAv' is no method of it; methods: FedAvg, Ours"),
      ({'scales': {}}, 'scales must name at least one'),
      ({'scales': {'reduced': None}}, 'reduced: expected seeds, flags, methods, settings, got N'),
      ({'scales': {'reduced': {'metods': {}}}}, 'flags, methods, settings, got .*metods'),
      ({'scales': {'reduced': {'seeds': 3}}}, 'seeds must be whole numbers, at least one, got 3'),
      ({'scales': {'reduced': {'flags': ['rounds']}}}, 'reduced: flags must be name: value'),
      ({'scales': {'reduced': {'seeds': [1], 'methods': ['Ours']}}}, 'methods must be flags by'),
      ({'metric': [['x']]}, 'metric must be a name, or a list of names'),
      ({'published': [1]}, 'published must be rows by name'),
      ({'published': {'Ours': None}}, 'published: Ours: expected numbers by setting'),
      ({'published': {'Ours': {'low': ['x']}}}, r'must be \[mean\] or \[mean, sd\]'),
      ({'methods': [{'name': 'FedAvg', 'flags': {'method': ['fedavg', []]}}]},
       'methods: expected name and flags'),
      ({'methods': [{'name': 'FedAvg', 'flags': {}, 'at': {'mid': {}}}]},
       'FedAvg: at must be flags by the name of a setting'),
      ({'methods': []}, 'methods must be a list'),
      ({'settings': None}, 'settings must be a list'),
      ({'settings': 3}, 'settings must be a list'),
      ({'methods': [{'name': 'FedAvg'}]}, 'methods: expected name and flags'),
      ({'published': {'FedAv': {}}}, "published: no method 'FedAv'"),
      ({'published': {'Ours': {'mid': [1]}}}, "published: Ours has no setting 'mid'"),
      ({'published': {'Ours': {'low': 5}}}, r'must be \[mean\] or \[mean, sd\], got 5'),
  )
  def test_wrong_content(self, change, message):
    self.content.update(change)
    self.assert_refused(message)

  @parameterized.parameters(
      ({'FedAv': {}}, "scales: no method 'FedAv'; methods: FedAvg, Ours, GCE"),
      ({'Ours': 3}, 'scales: Ours: expected flags, or null to leave it out, got 3'),
  )
  def test_wrong_rows_of_a_scale(self, rows, message):
    self.content['scales']['reduced']['methods'] = rows
    self.assert_refused(message)

  def test_several_values_of_one_flag(self):
    self.content['settings'][0]['flags'] = {'noise_rate': [0.1, 0.4]}
    self.assert_refused('FedAvg, low: noise_rate takes one value: make settings of it')

  def test_a_file_of_flags_in_a_row(self):
    self.content['methods'][0]['flags']['flagfile'] = 'a.flags'
    self.assert_refused('--flagfile cannot be set in a grid')

  def test_name_given_twice(self):
    self.content['settings'][1]['name'] = 'low'
    self.assert_refused('settings: low is given twice')
    for name in ('two\nlines', ' '):
      self.content['settings'][1]['name'] = name
      self.assert_refused(r'settings: a name is one line of text, got')

  def test_unknown_scale(self):
    self.assert_refused("no scale 'tiny'; it has: full, reduced", scale='tiny')

  @parameterized.parameters(([],), (['a'],), ([-1],))
  def test_wrong_seeds(self, seeds):
    self.content['scales']['reduced']['seeds'] = seeds
    self.assert_refused('seeds must be whole numbers, at least one')

  def test_seed_given_twice(self):
    self.assert_refused('a seed is given twice', seeds=[1, 1])

  def test_no_file(self):
    with self.assertRaisesRegex(types.UsageError, 'missing.yaml cannot be read'):
      grid.load('missing.yaml', 'reduced', None, (), 'runs')

  @parameterized.parameters('a: [', '\x00', '- 1')
  def test_no_grid(self, text):
    with open(self.path, 'w', encoding='utf-8') as file:
      file.write(text)
    with self.assertRaisesRegex(types.UsageError, 'is not YAML|expected keys'):
      grid.load(self.path, 'reduced', None, (), 'runs')


class FromFlagsTest(parameterized.TestCase):

  def _grid(self, methods=('fedavg', 'feddpcont:label_prior=none'), vary=(), **changes):
    arguments = {'metric': 'best_test_accuracy', 'baseline': None, **changes}
    return grid.from_flags(methods, vary, [0, 1], ['--rounds=3'], 'runs', **arguments)

  def test_what_is_varied_has_to_be_read_by_some_run(self):
    with self.assertRaisesRegex(types.UsageError, '^--noise_rate has no effect here'):
      grid.from_flags(
          ['fedavg'], ['noise_rate=0.1,0.9'], [0], ['--noise=client_uniform', '--partition=iid'],
          'runs', metric='best_test_accuracy', baseline=None,
      )
    with self.assertRaisesRegex(types.UsageError, '^--param=beta=0.5 has no effect here'):
      grid.from_flags(
          ['elr'], ['rounds=3,4'], [0], ['--param=weight=0', '--param=beta=0.5'], 'runs',
          metric='best_test_accuracy', baseline=None,
      )
    varied = grid.from_flags(
        ['fedavg'], ['noise=none,symmetric', 'noise_rate=0.1'], [0], [], 'runs',
        metric='best_test_accuracy', baseline=None,
    )
    self.assertLen(varied.cells, 2)

  @parameterized.parameters(
      (['fedavg:learning_rate=0.3'], []), (['fedavg'], ['learning_rate=0.3,0.1'])
  )
  def test_a_flag_of_all_runs_and_of_some_is_refused(self, methods, vary):
    with self.assertRaisesRegex(types.UsageError, '--learning_rate is given for all runs, and in'):
      grid.from_flags(
          methods, vary, [0], ['--learning_rate=0.03'], 'runs', metric='best_test_accuracy',
          baseline=None,
      )

  def test_settings_are_all_combinations(self):
    made = self._grid(vary=['noise_rate=0.2,0.4', 'noise=symmetric,random'])
    self.assertEqual(
        made.settings,
        ('noise_rate=0.2, noise=symmetric', 'noise_rate=0.2, noise=random',
         'noise_rate=0.4, noise=symmetric', 'noise_rate=0.4, noise=random'),
    )
    self.assertLen(made.cells, 2 * 4 * 2)
    self.assertEqual({c.config.rounds for c in made.cells}, {3})

  def test_without_variation_there_is_one_setting(self):
    self.assertEqual(self._grid().settings, ('all',))

  def test_methods_carry_their_own_flags(self):
    priors = {c.method: c.config.label_prior for c in self._grid().cells}
    self.assertEqual(priors['feddpcont:label_prior=none'], 'none')
    self.assertEqual(priors['fedavg'], 'shrinkage')

  def test_parameters_of_methods_and_settings_come_together(self):
    grid = self._grid(
        methods=('fedavg', 'fedprox:param=mu=0.3:param=term=norm'),
        vary=['local_epochs=1,2'],
    )
    params = {c.config.param for c in grid.cells if c.config.method == 'fedprox'}
    self.assertEqual(params, {('mu=0.3', 'term=norm')})
    grid = self._grid(methods=('fedprox:param=term=norm',), vary=['param=mu=0.3,mu=1'])
    self.assertEqual(
        {c.config.param for c in grid.cells}, {('mu=0.3', 'term=norm'), ('mu=1', 'term=norm')}
    )
    with self.assertRaisesRegex(types.UsageError, 'learning_rate is given twice to one method'):
      self._grid(methods=('fedavg:learning_rate=0.1:learning_rate=0.2',))

  def test_methods_of_ones_own_have_a_colon_in_their_names(self):
    name = f'{__name__}:METHOD'
    grid = self._grid(methods=('fedavg', name, f'{name}:learning_rate=0.5'))
    self.assertEqual(
        {(c.method, c.config.method, c.config.learning_rate) for c in grid.cells},
        {('fedavg', 'fedavg', 0.1), (name, name, 0.1), (f'{name}:learning_rate=0.5', name, 0.5)},
    )

  def test_baseline_is_the_first_method_unless_named(self):
    self.assertEqual(self._grid().baseline, 'fedavg')
    named = self._grid(baseline='feddpcont:label_prior=none')
    self.assertEqual(named.baseline, 'feddpcont:label_prior=none')

  def test_mistakes(self):
    with self.assertRaisesRegex(types.UsageError, '--vary: noise_rate is given twice'):
      self._grid(vary=['noise_rate=0.2', 'noise_rate=0.4'])
    with self.assertRaisesRegex(types.UsageError, '--methods must name at least one'):
      self._grid(methods=[])
    with self.assertRaisesRegex(types.UsageError, '--methods=fedavg, names nothing beside a comma'):
      self._grid(methods=['fedavg', ''])

  @parameterized.parameters('noise_rate', '=3')
  def test_malformed_variation(self, text):
    with self.assertRaisesRegex(types.UsageError, 'expected flag=value'):
      self._grid(vary=[text])


@functools.cache
def _load(name, scale):
  return grid.load(os.path.join('configs/grids', name), scale, None, (), 'runs')


class PaperGridsTest(parameterized.TestCase):

  @parameterized.product(
      name=sorted(n for n in os.listdir('configs/grids') if '_table' in n),
      scale=['full', 'reduced'],
  )
  def test_every_table_of_the_papers_loads(self, name, scale):
    loaded = _load(name, scale)
    self.assertNotEmpty(loaded.published)
    for mean, sd in loaded.published.values():
      self.assertBetween(mean, 0, 100)
      self.assertBetween(sd or 0, 0, 100)

  @parameterized.product(
      name=sorted(n for n in os.listdir('configs/grids') if '_table' in n),
      scale=['full', 'reduced'],
  )
  def test_labels_are_noisy_where_they_are_split(self, name, scale):
    # Which only the drawing of the scene would refuse.
    for cell in _load(name, scale).cells:
      config = cell.config
      self.assertEqual(config.seed, cell.seed)
      self.assertFalse(
          partition.splits_noisy_labels(config.partition) and noise.needs_clients(config.noise)
      )

  def test_every_row_of_fedcorr_runs_at_every_scale(self):
    # --stages, --param and --rounds are compared with each other when the method is built.
    rows = set()
    for name, scale in itertools.product(
        sorted(n for n in os.listdir('configs/grids') if n.endswith('.yaml')), ['full', 'reduced']
    ):
      with open(os.path.join('configs/grids', name), encoding='utf-8') as file:
        if scale not in yaml.safe_load(file)['scales']:
          continue
      loaded = _load(name, scale)
      for config in (c.config for c in loaded.cells):
        if config.method == 'fedcorr':
          rows.add(name)
          task = task_lib.Task(
              model=None, rounds=config.rounds, stages=config.stage_lengths(),
              clients_per_round=config.clients_per_round,
              availability=config.availability(config.clients),
              client_sizes=np.zeros(config.clients), seed=config.seed,
          )
          params = config.method_params()
          preprocess = len(fedcorr.plan_visits(task, params))
          lengths = fedcorr.stage_lengths(task, params, preprocess)
          self.assertGreater(lengths['finetune'] + lengths['usual'], 0)
    self.assertGreaterEqual(len(rows), 9)

  @parameterized.parameters(
      *sorted(n for n in os.listdir('configs/grids') if n.endswith('.yaml') and '_table' not in n)
  )
  def test_grid_without_a_paper_loads(self, name):
    loaded = _load(name, 'reduced')
    self.assertNotEmpty(loaded.cells)


if __name__ == '__main__':
  absltest.main()
