"""The report of a run: one HTML file that needs nothing else, and its pictures as PNG."""

import os
from collections.abc import Sequence

import jinja2
import markupsafe

from tff_noise import types
from tff_noise.program import run_directory
from tff_noise.report import blocks
from tff_noise.report import figure_style
from tff_noise.report import runs
from tff_noise.report import sections

# Above this many characters a picture is put in as PNG.
_MAX_SVG = 1_000_000
_TEMPLATE = os.path.join(os.path.dirname(__file__), 'page.html')


def write_report(run_path: str, also: Sequence[str] = ()) -> str:
  """Writes `report.html` and `plots/` into a run directory; the same run gives the same bytes.

  Args:
    run_path: The run directory; the run need not be finished.
    also: Forms of the pictures besides PNG: 'pdf', 'svg'.

  Returns:
    The path of `report.html`.

  Raises:
    types.UsageError: If it is no run, a file in it is damaged, or it cannot be written to.
  """
  run = runs.read_run(run_path)
  built = sections.build(run, runs.read_scene(run))
  pictures = [b for section in built for b in section.blocks if isinstance(b, blocks.Picture)]
  page = render(f'Run {run.name}', built)
  try:
    write_pictures(run.path, pictures, also)
    path = os.path.join(run.path, 'report.html')
    run_directory.write_text(path, page)
  except OSError as error:
    raise types.UsageError(f'{run.path} cannot be written to ({error.strerror})') from error
  return path


def write_pictures(
    folder: str, pictures: Sequence[blocks.Picture], also: Sequence[str] = ()
) -> None:
  """Writes pictures into `plots/` of a folder.

  Args:
    folder: It is there.
    pictures: What is drawn.
    also: Forms besides PNG: 'pdf', 'svg'.

  Raises:
    OSError: If they cannot be written.
  """
  os.makedirs(os.path.join(folder, 'plots'), exist_ok=True)
  for picture in pictures:
    path = os.path.join(folder, 'plots', picture.name)
    for ending, content in figure_style.in_forms(picture.figure, also).items():
      run_directory.write_bytes(f'{path}.{ending}', content)


def render(title: str, built: list[sections.Built]) -> str:
  """Returns the page, everything in it escaped but our own SVG."""
  environment = jinja2.Environment(
      autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
  )
  with open(_TEMPLATE, encoding='utf-8') as file:
    template = environment.from_string(file.read())
  pictures = {
      block.name: _inline(block)
      for section in built
      for block in section.blocks
      if isinstance(block, blocks.Picture)
  }
  return template.render(title=title, sections=built, pictures=pictures)


def _inline(picture):
  svg = figure_style.svg(picture.figure, picture.name)
  if len(svg) <= _MAX_SVG:
    return markupsafe.Markup(svg)
  return markupsafe.Markup('<img src="{}" alt="{}">').format(
      figure_style.data_url(figure_style.png(picture.figure)), picture.caption
  )
