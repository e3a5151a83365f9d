"""Tests of the comparison page."""

import os
import re

from absl.testing import absltest

from tests.compare import grid_case
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
    self.assertEmpty(re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', text))

  def test_a_picture_for_each_setting_and_one_over_settings(self):
    self.write()
    folder, _ = self._page()
    names = os.listdir(os.path.join(folder, 'plots'))
    self.assertCountEqual(
        names, ['over_settings.png', 'over_rounds_0.png', 'over_rounds_1.png']
    )

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
