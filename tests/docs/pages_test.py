"""Tests that pages say what the files say."""

import glob
import os
import re

from absl.testing import absltest
from absl.testing import parameterized

from benchmarks import claims
from benchmarks import pages
from tff_noise import types

_BLOCK = '<!-- table: configs/grids/all_methods_tuned.yaml {} {} {} -->\nold\n<!-- end -->\n'


def _text(path):
  with open(path, encoding='utf-8') as file:
    return file.read()


def _anchor(heading):
  """As GitHub makes it."""
  return re.sub(r'[^\w -]', '', heading.lower()).replace(' ', '-')


class PagesTest(parameterized.TestCase):

  @parameterized.parameters(
      'README.md', 'docs/comparisons.md', 'docs/evidence.md', 'docs/evidence_digits.md',
      'docs/evidence_images.md', 'docs/evidence_papers.md',
  )
  def test_tables_are_those_of_the_files(self, path):
    text = _text(path)
    self.assertGreaterEqual(text.count('<!-- table: '), 2)
    begun = text.count('<!-- table: ') + text.count('<!-- picture: ')
    self.assertEqual(text.count('<!-- end -->'), begun)
    self.assertEqual(pages.rendered(text), text)

  def test_links_lead_to_files_and_headings(self):
    names = ['README.md', 'CONTRIBUTING.md', 'benchmarks/NOTES.md', *glob.glob('docs/*.md')]
    self.assertGreater(len(names), 12)
    for name in names:
      for path, anchor in re.findall(r'\]\((?!http)([^)#\s]*)#?([^)\s]*)\)', _text(name)):
        path = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
        self.assertTrue(os.path.exists(path), f'{name}: {path}')
        if anchor:
          headings = re.findall(r'^#+ (.+)$', _text(path), re.MULTILINE)
          self.assertIn(anchor, [_anchor(heading) for heading in headings], name)

  def test_pictures_are_beside_the_page(self):
    path = os.path.join(self.create_tempdir().full_path, 'page.md')
    text = _BLOCK.format('docs/all_methods_tuned.csv', 'last10_test_accuracy', 'front')
    drawn = pages.draw(path, text.replace('table:', 'picture:'))
    self.assertIn('(page_front.png)', drawn)
    with open(path.replace('.md', '_front.png'), 'rb') as file:
      self.assertStartsWith(file.read(), b'\x89PNG')

  def test_what_stands_there_is_replaced(self):
    text = _BLOCK.format('docs/all_methods_tuned.csv', 'last10_test_accuracy', 'ranks')
    found = pages.rendered(f'before\n{text}after\n')
    self.assertStartsWith(found, 'before\n<!-- table: ')
    self.assertEndsWith(found, '<!-- end -->\nafter\n')
    self.assertIn('| ELR | 4.50 † |', found)
    self.assertNotIn('old', found)
    self.assertEqual(pages.rendered(found), found)

  def test_a_block_without_its_end_takes_no_text_along(self):
    text = _BLOCK.format('docs/all_methods_tuned.csv', 'last10_test_accuracy', 'ranks')
    with self.assertRaisesRegex(types.UsageError, 'has no <!-- end --> of its own'):
      pages.rendered(text.replace('<!-- end -->\n', 'prose\n') + text)

  def test_a_page_that_is_not_there(self):
    with self.assertRaisesRegex(types.UsageError, 'docs/nothing.md cannot be read'):
      pages.main(['pages', 'docs/nothing.md'])

  def test_many_settings_are_rows(self):
    text = _BLOCK.replace('all_methods_tuned', 'evidence_digits').format(
        'docs/evidence_digits.csv', 'last10_test_accuracy', 'difference'
    )
    lines = pages.rendered(text).splitlines()
    self.assertStartsWith(lines[2], '| setting | GCE | SCE | ELR | ')
    # A row for each of 19 settings, after the header and its line, before an empty one and the end.
    self.assertLen(lines, 4 + 19 + 2)
    self.assertStartsWith(lines[4], '| IID, no noise | +0.13 [-0.32, +0.58] (n=5) | +0.64 ')

  @parameterized.parameters('map', 'ranks', 'differences')
  def test_pictures_by_name(self, name):
    path = os.path.join(self.create_tempdir().full_path, 'page.md')
    text = _BLOCK.format('docs/all_methods_tuned.csv', 'last10_test_accuracy', name)
    self.assertIn(f'(page_{name}.png)', pages.draw(path, text.replace('table:', 'picture:')))

  def test_settings_that_are_not_swept_have_no_curves(self):
    text = _BLOCK.format('docs/all_methods_tuned.csv', 'last10_test_accuracy', 'sweep')
    with self.assertRaisesRegex(types.UsageError, 'do not differ in one number alone'):
      pages.draw('page.md', text.replace('table:', 'picture:'))

  @parameterized.parameters(
      ('docs/all_methods_tuned.csv', 'best_test_accuracy', 'medians', 'expected one of mean'),
      ('docs/all_methods_published.csv', 'best_test_accuracy', 'mean', 'with other flags'),
      ('docs/nothing.csv', 'best_test_accuracy', 'mean', 'docs/nothing.csv is not there'),
  )
  def test_blocks_that_cannot_be_filled(self, results, metric, name, message):
    with self.assertRaisesRegex(types.UsageError, message):
      pages.rendered(_BLOCK.format(results, metric, name))

  def test_orders_are_judged_by_their_intervals(self):
    grid, results = pages.read(
        'configs/grids/all_methods_digits.yaml', 'docs/all_methods_published.csv'
    )
    table = claims.table(grid, results, 'best_test_accuracy')
    rows = {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    # Of the table of differences to FedAvg in docs/comparisons.md, the first turned round.
    against = rows['F4, table 2: FedAvg above']
    self.assertEqual((against['seen'], against['reversed']), ('–', 'ARFL -0.96 [-1.22, -0.70]'))
    self.assertEqual(rows['C1, table 1: ClipFL above']['seen'], 'FedAvg +3.02 [+0.60, +5.45]')
    first = rows['F1, table 2: FedCorr above']
    self.assertIn('FedAvg +1.26 [-0.27, +2.79]', first['undecided'])
    # What the grid has not is not asked.
    self.assertNotIn('D7, table 3: FedDPCont above', rows)
    for order in claims.ORDERS:
      self.assertContainsSubset({order.above, *order.below}, set(grid.methods))


if __name__ == '__main__':
  absltest.main()
