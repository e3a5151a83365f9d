"""A grid is tabulated only of the code and the data that are there now."""

import json
import os
import shutil
from unittest import mock

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from PIL import Image

from tests.compare import grid_case
from tff_noise import types
from tff_noise.compare import grid as grid_lib
from tff_noise.compare import same_inputs
from tff_noise.compare import tables
from tff_noise.program import data
from tff_noise.program import inputs


class CodeTest(grid_case.GridCase):

  def setUp(self):
    super().setUp()
    self.write()
    self.results = tables.collect(self.grid)
    self.left = [r._replace(record=None) if i < 3 else r for i, r in enumerate(self.results)]

  def test_the_same(self):
    same_inputs.require_code(self.results, 'c0de')
    same_inputs.require_code(self.left, 'c0de')
    same_inputs.require_code([r._replace(record=None) for r in self.results], 'other')

  def test_finished_runs_of_other_code_are_not_shown_as_this_ones(self):
    with self.assertRaisesRegex(
        types.UsageError, r'^12 of these runs .* other code \(c0de\), this is other: --norun shows'
    ):
      same_inputs.require_code(self.results, 'other')

  def test_what_is_left_has_to_be_made_by_the_code_of_what_is_there(self):
    with self.assertRaisesRegex(
        types.UsageError, r'^9 of these runs .* \(c0de\), 3 would be by this \(other\): --norun'
    ):
      same_inputs.require_code(self.left, 'other')

  def test_what_a_file_of_results_has_is_shown_where_it_is_all(self):
    shutil.rmtree(self.root)
    same_inputs.require_code(self.results, 'other')
    with self.assertRaisesRegex(types.UsageError, '^9 of these runs'):
      same_inputs.require_code(self.left, 'other')


class InputsTest(grid_case.GridCase):

  def setUp(self):
    super().setUp()
    self.write()
    config = self.grid.cells[0].config
    self.now = inputs.recorded(config, data.load_dataset(config))

  def _made_from(self, cell, **changes):
    self._record(cell, {**self.now, **changes})

  def _record(self, cell, made_from):
    path = os.path.join(self.path(cell), 'config.json')
    with open(path, encoding='utf-8') as file:
      content = json.load(file)
    with open(path, 'w', encoding='utf-8') as file:
      json.dump({**content, 'inputs': made_from}, file)

  def test_data_are_read_once(self):
    for cell in self.grid.cells:
      self._made_from(cell)
    with mock.patch.object(data, 'load_dataset', wraps=data.load_dataset) as load:
      same_inputs.require_inputs(tables.collect(self.grid))
    load.assert_called_once()

  @parameterized.parameters('subset=500,600', 'public_examples=20,30', 'validation_dir=a,b')
  def test_cells_have_data_of_their_own(self, vary):
    # Public images are drawn by the seed, too.
    folder = self.create_tempdir().full_path
    for place, value in (('a', 0), ('b', 255)):
      os.makedirs(os.path.join(folder, place, '3'))
      image = Image.fromarray(np.full((8, 8), value, np.uint8))
      image.save(os.path.join(folder, place, '3', 'x.png'))
    grid = grid_lib.from_flags(
        ['rhfl'], [vary.replace('=a,b', f'={folder}/a,{folder}/b')], [0, 1],
        ['--rounds=2', '--public_dataset=digits'], self.root, metric=[grid_case.METRIC],
        baseline=None,
    )
    for cell in grid.cells:
      grid_case.write_run(self.path(cell), cell.config, 0.5)
      self._record(cell, inputs.recorded(cell.config, data.load_dataset(cell.config)))
    with mock.patch.object(data, 'load_dataset', wraps=data.load_dataset) as load:
      same_inputs.require_inputs(tables.collect(grid))
    self.assertEqual(load.call_count, 4)

  def test_one_run_of_other_data_is_named(self):
    *others, last = self.grid.cells
    for cell in others:
      self._made_from(cell)
    self._made_from(last, **{'training images': '0', '--method (mine.py)': '1'})
    with self.assertRaisesRegex(
        types.UsageError,
        rf'^run {last.config.name()} was made from other training images, --method \(mine.py\): '
        'bring back what it was made from, or give another --root_dir .*; --norun shows',
    ):
      same_inputs.require_inputs(tables.collect(self.grid))

  def test_data_that_are_gone(self):
    with mock.patch.object(data, 'load_dataset', side_effect=types.UsageError('no such file')):
      with self.assertRaisesRegex(types.UsageError, '^no such file; --norun shows the runs'):
        same_inputs.require_inputs(tables.collect(self.grid))

  def test_where_no_run_is_nothing_is_read(self):
    results = tables.collect(self.grid)
    nowhere = [r._replace(record=None) for r in results]
    with mock.patch.object(data, 'load_dataset', side_effect=AssertionError):
      same_inputs.require_inputs(nowhere)


class ThereTest(grid_case.GridCase):

  def _grid(self, vary, *more):
    return grid_lib.from_flags(
        ['fedavg', 'gce'], vary, [0, 1], ['--rounds=2', *more], self.root,
        metric=[grid_case.METRIC], baseline=None,
    )

  def _refused(self, cells, message):
    with self.assertRaisesRegex(types.UsageError, message + '.*; --norun shows the runs'):
      same_inputs.require_there(cells)

  def test_data_of_many_cells_are_read_once(self):
    cells = self._grid(['subset=500,600']).cells
    with mock.patch.object(data, 'load_dataset', wraps=data.load_dataset) as load:
      same_inputs.require_there(cells)
    self.assertEqual(load.call_count, 2)
    same_inputs.require_there([])

  @parameterized.parameters('clients=20,2000', 'clients=2000,20')
  def test_flags_of_every_cell_are_held_against_the_data(self, vary):
    self._refused(self._grid([vary]).cells, '^--clients must be at most the 1400 training')

  @parameterized.parameters(
      ('weights=,nowhere.h5', '^there is no weights file nowhere.h5'),
      ('model=mlp,nowhere:network', '^--model=nowhere:network: there is no module nowhere'),
      ('aggregation=mean,nowhere:build', '^--aggregation=nowhere:build: there is no module'),
      ('arrivals=uniform:0.5:2,nowhere.csv', '^--arrivals=nowhere.csv: no such file'),
      ('noise_matrix=nowhere.csv', '^--noise_matrix=nowhere.csv: no such file'),
  )
  def test_what_one_cell_names_and_is_not_there(self, vary, message):
    vary = vary.replace('weights=,', f'weights={__file__},')
    more = ['--noise=matrix'] if 'matrix' in vary else []
    self._refused(self._grid([vary], *more).cells[-1:], message)
    self._refused(self._grid([vary], *more).cells, message)

  def test_a_run_that_is_begun_has_its_scene(self):
    grid = self._grid([], '--scene=nowhere.npz')
    self._refused(grid.cells, '^--scene=nowhere.npz: no such file')
    for cell in grid.cells:
      os.makedirs(self.path(cell))
    same_inputs.require_there(grid.cells)


if __name__ == '__main__':
  absltest.main()
