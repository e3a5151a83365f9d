"""Tests of the comparison page."""

import os
import re

import numpy as np
from absl.testing import absltest

from tests.compare import grid_case
from tff_noise.compare import grid as grid_lib
from tff_noise.compare import page
from tff_noise.compare import tables


class PageTest(grid_case.GridCase):

  def _page(self, grid=None):
    grid = grid or self.grid
    folder = self.create_tempdir().full_path
    path = page.write(folder, grid, tables.collect(grid))
    with open(path, encoding='utf-8') as file:
      return folder, file.read()

  def test_has_the_numbers_and_the_marks(self):
    self.write()
    _, text = self._page()
    self.assertIn('91.00\u00a0±\u00a01.00\u00a0★', text)
    self.assertIn('64.67\u00a0±\u00a01.15\u00a0†', text)
    self.assertIn('+9.00 [+4.70, +13.30] (n=3)', text)
    self.assertNotIn('**', text)

  def test_needs_nothing_else(self):
    self.write()
    _, text = self._page()
    self.assertNotIn('<script', text)
    # But runs' folders, where somebody asks for one.
    self.assertEmpty(re.findall(r'(?<!<a )(?:src|href)="(?!data:|#)[^"]*"', text))

  def test_a_picture_for_each_setting_and_one_over_settings(self):
    self.write()
    folder, _ = self._page()
    names = os.listdir(os.path.join(folder, 'plots'))
    self.assertCountEqual(
        names, ['differences.png', 'over_settings.png', 'over_rounds_0.png', 'over_rounds_1.png']
    )

  def test_pictures_for_papers(self):
    self.write()
    folder = self.create_tempdir().full_path
    page.write(folder, self.grid, tables.collect(self.grid), also=['svg', 'pdf'])
    names = os.listdir(os.path.join(folder, 'plots'))
    self.assertContainsSubset(['over_settings.svg', 'over_rounds_1.pdf'], names)

  def test_says_on_what_it_was_run_and_by_which_command(self):
    self.write()
    folder = self.create_tempdir().full_path
    cell = self.grid.cells[0]
    with open(os.path.join(cell.config.path(), 'report.html'), 'w', encoding='utf-8') as file:
      file.write('report')
    page.write(folder, self.grid, tables.collect(self.grid), './bazelw run //bin:compare -- --x=1')
    with open(os.path.join(folder, 'comparison.html'), encoding='utf-8') as file:
      text = file.read()
    self.assertIn('./bazelw run //bin:compare -- --x=1', text)
    self.assertIn('noise symmetric of rate 0.2', text)
    self.assertIn('openset_uniform', text)
    self.assertIn('c0de', text)
    links = re.findall(r'<a href="([^"]*)">', text)
    # The others have no report yet.
    expected = [os.path.join(cell.config.path(), 'report.html')]
    expected += [other.config.path() for other in self.grid.cells[1:]]
    self.assertEqual(
        [os.path.realpath(os.path.join(folder, link)) for link in links],
        list(map(os.path.realpath, expected)),
    )

  def test_a_number_that_is_swept_is_drawn_as_lines(self):
    grid = grid_lib.from_flags(
        ['fedavg', 'feddpcont'], ['noise_rate=0.2,0.4,0.6'], [0], [], self.root,
        metric=grid_case.METRIC, baseline=None,
    )
    for cell in grid.cells:
      grid_case.write_run(cell.config.path(), cell.config, 0.5 + cell.config.noise_rate / 2)
    folder, text = self._page(grid)
    self.assertIn('swept.png', os.listdir(os.path.join(folder, 'plots')))
    self.assertIn('Over what is swept', text)

  def test_ranks_where_there_are_many_cells(self):
    methods = ['fedavg', 'feddpcont', 'gce']
    grid = grid_lib.from_flags(
        methods, ['noise_rate=0.2,0.4,0.6'], [0, 1, 2], [], self.root, metric=grid_case.METRIC,
        baseline=None,
    )
    for cell in grid.cells:
      accuracy = 0.5 + 0.1 * methods.index(cell.method) + 0.01 * cell.seed
      grid_case.write_run(cell.config.path(), cell.config, accuracy)
    folder, text = self._page(grid)
    self.assertIn('mean_ranks.png', os.listdir(os.path.join(folder, 'plots')))
    self.assertIn('Ranks over settings', text)
    self.assertIn('differences.png', os.listdir(os.path.join(folder, 'plots')))
    self.assertIn('Differences to fedavg', text)
    figure = page.differences_figure(grid, tables.collect(grid), grid_case.METRIC)
    axes = figure.axes[0]
    self.assertEqual([t.get_text() for t in axes.get_yticklabels()], ['feddpcont', 'gce'])
    dots = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == 'o']
    np.testing.assert_allclose(dots, [10, 20])
    nothing = [r._replace(record=None) for r in tables.collect(grid)]
    self.assertIsNone(page.differences_figure(grid, nothing, grid_case.METRIC))
    # No seed has another order.
    self.assertIn('Critical difference 0.00', text)
    rows = tables.rank_table(
        tables.mean_ranks(grid, tables.collect(grid), grid_case.METRIC), grid_case.METRIC
    ).rows
    self.assertEqual(rows, (('gce', '1.00 †'), ('feddpcont', '2.00'), ('fedavg', '3.00')))

  def test_what_has_no_result_is_told(self):
    self.write(('fedavg', 'noise_rate=0.4', 1))
    _, text = self._page()
    self.assertIn('fedavg, noise_rate=0.4, seed 1: not run', text)

  def test_nothing_run_yet(self):
    _, text = self._page()
    self.assertIn('no run', text)

  def test_names_are_escaped(self):
    self.write()
    _, text = self._page(self.grid._replace(title='<script>alert(1)</script>'))
    self.assertNotIn('<script>', text)


if __name__ == '__main__':
  absltest.main()
