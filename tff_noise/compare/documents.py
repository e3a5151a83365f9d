"""All tables of a comparison, as Markdown and as LaTeX."""

from collections.abc import Sequence

from tff_noise.compare import by_validation
from tff_noise.compare import grid as grid_lib
from tff_noise.compare import tables as tables_lib

_UNCHOSEN = 'last10_test_accuracy'


def all_tables(grid: grid_lib.Grid, results: Sequence[tables_lib.Result]) -> list[tables_lib.Table]:
  """Returns every table, the grid's own metric first."""
  tables = []
  for metric in grid.metrics:
    tables += [
        tables_lib.metric_table(grid, results, metric),
        tables_lib.difference_table(grid, results, metric),
    ]
    found = tables_lib.mean_ranks(grid, results, metric)
    tables += [tables_lib.rank_table(found, metric)] if found is not None else []
  if by_validation.has(results):
    # What is chosen without the test set is compared with what is not chosen on it either.
    tables += [
        by_validation.methods_table(grid, results, _UNCHOSEN),
        by_validation.rounds_table(grid, results, _UNCHOSEN),
    ]
  return [*tables, tables_lib.cost_table(grid, results)]


def to_markdown(grid: grid_lib.Grid, results: Sequence[tables_lib.Result]) -> str:
  """Returns all tables and the list of problems as Markdown."""
  lines = [f'# {grid.title}', '', f'Run at {grid.scale}.', '']
  for table in all_tables(grid, results):
    lines += [f'## {table.title}', '', *rows_as_markdown(table), '', *table.notes, '']
  listed = tables_lib.problems(results)
  if listed:
    lines += ['## Without a result', '', *(f'- {line}' for line in listed), '']
  return '\n'.join(lines)


def rows_as_markdown(table: tables_lib.Table) -> list[str]:
  """Returns the lines of a table, without its title and notes."""
  return [_row(texts) for texts in (table.header, ['---'] * len(table.header), *table.rows)]


def _row(texts):
  return '| ' + ' | '.join(text.replace('|', '\\|') for text in texts) + ' |'


def to_latex(grid: grid_lib.Grid, results: Sequence[tables_lib.Result]) -> str:
  """Returns all tables as LaTeX `tabular`s, for a document that loads booktabs."""
  lines = []
  for table in all_tables(grid, results):
    lines += [
        f'% {table.title}',
        '\\begin{tabular}{l' + 'r' * (len(table.header) - 1) + '}',
        '\\toprule',
        ' & '.join(_latex(text) for text in table.header) + ' \\\\',
        '\\midrule',
        *(' & '.join(_latex(text) for text in row) + ' \\\\' for row in table.rows),
        '\\bottomrule',
        '\\end{tabular}',
        *(f'% {note}' for note in table.notes),
        '',
    ]
  return '\n'.join(lines)


_LATEX = {
    '\\': r'\textbackslash{}', '_': r'\_', '%': r'\%', '&': r'\&', '#': r'\#', '$': r'\$',
    '{': r'\{', '}': r'\}', '^': r'\^{}', '~': r'\~{}', '<': '$<$', '>': '$>$', '|': '$|$',
    '±': r'$\pm$', '†': r'$\dagger$', '–': '--',
}


def _latex(text):
  bold = text.startswith('**')
  text = text.replace('**', '')
  # At the head of a row LaTeX would take these for an argument of the line before.
  first = '{}' if text.startswith(('[', '*')) else ''
  text = first + ''.join(_LATEX.get(character, character) for character in text)
  return rf'\textbf{{{text}}}' if bold else text
