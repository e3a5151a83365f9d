"""The house style of the pictures: colours, sizes, and how a figure becomes PNG or SVG.

Matplotlib's settings are changed only while a figure is made or written, so a program that draws
its own pictures keeps its own style. The same figure gives the same bytes, if its forms are written
in the same order: the first lays it out.
"""

import base64
import functools
import io
import itertools
import re
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib import axis as maxis
from matplotlib import colors as mcolors
from matplotlib import figure as mfigure
from matplotlib import font_manager
from matplotlib.backends import backend_agg
from matplotlib.backends import backend_pdf
from matplotlib.backends import backend_svg

DARK, MIDDLE, LIGHT = '#14274e', '#c2571a', '#d9dde3'
FAINT = '#8a8f98'
WIDTH = 8.4
_DPI = 144
# Of images in SVG and PDF, which have no pixels otherwise.
_IMAGE_DPI = 100
# More tick labels than this on an axis of `WIDTH` inches would touch.
MAX_TICKS = 25
# More classes than this are numbered, and longer names cut.
_MAX_NAMED = 25
_MAX_NAME = 16
_STYLE = {
    'font.family': ['DejaVu Sans'],  # Comes with Matplotlib: the same on every machine.
    'font.size': 9,
    'axes.titlesize': 10,
    'axes.titlelocation': 'left',
    'axes.titleweight': 'bold',
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.axisbelow': True,
    'axes.formatter.useoffset': False,
    'grid.color': '#e4e6ea',
    'grid.linewidth': 0.7,
    'legend.frameon': False,
    'legend.fontsize': 9,
    'lines.linewidth': 1.5,
    'hatch.linewidth': 0.6,
    'svg.fonttype': 'path',
    'pdf.fonttype': 42,  # Letters that journals take: the default's, of type 3, many refuse.
    'svg.hashsalt': 'tff_noise',
}


def styled(function):
  """Runs `function` under Matplotlib's defaults and `_STYLE`, whatever the user's settings."""

  @functools.wraps(function)
  def wrapper(*args, **kwargs):
    with matplotlib.rc_context():
      matplotlib.rcdefaults()
      matplotlib.rcParams.update(_STYLE)
      return function(*args, **kwargs)

  return wrapper


@styled
def png(figure: mfigure.Figure) -> bytes:
  """Returns the figure as PNG."""
  canvas = backend_agg.FigureCanvasAgg(figure)
  return _written(figure, canvas.print_png, _DPI, {'Software': None})


def in_forms(figure: mfigure.Figure, also: Sequence[str]) -> dict[str, bytes]:
  """Returns the figure as PNG and in other forms, 'pdf' or 'svg', by the ending of a file."""
  return {'png': png(figure), **{kind: for_print(figure, kind) for kind in also}}


@styled
def for_print(figure: mfigure.Figure, kind: str) -> bytes:
  """Returns the figure as 'pdf' or 'svg', for papers: scalable."""
  return {'pdf': _pdf, 'svg': _svg}[kind](figure)


@styled
def svg(figure: mfigure.Figure, name: str) -> str:
  """Returns the figure as an SVG element to stand in an HTML page.

  Args:
    figure: The figure.
    name: Unique in the page: it starts every id inside.
  """
  text = _svg(figure).decode()
  text = text[text.index('<svg'):]
  # What only a file of its own needs, and the names of the namespaces, which HTML knows.
  text = re.sub(r'<metadata>.*?</metadata>|<!--.*?-->', '', text, flags=re.DOTALL)
  text = re.sub(r' xmlns(:\w+)?="[^"]*"', '', text).replace('xlink:href', 'href')
  text = re.sub(r' (width|height)="[\d.]+pt"', '', text, count=2)
  # A narrow picture is not blown up: its letters are as large as everywhere.
  share = min(1.0, figure.get_size_inches()[0] / WIDTH)
  text = text.replace('<svg', f'<svg style="width: {share:.0%}; --share: {share:.2f}"', 1)
  text = re.sub(r'\bid="', f'id="{name}-', text)
  text = re.sub(r'href="#', f'href="#{name}-', text)
  text = re.sub(r'url\(#', f'url(#{name}-', text)
  return re.sub(r'\n\s+', '\n', text)


def _pdf(figure):
  canvas = backend_pdf.FigureCanvasPdf(figure)
  return _written(figure, canvas.print_pdf, _IMAGE_DPI, {'CreationDate': None, 'Creator': None})


def _svg(figure):
  canvas = backend_svg.FigureCanvasSVG(figure)
  return _written(figure, canvas.print_svg, _IMAGE_DPI, {'Date': None})


def _written(figure, write, dpi, metadata):
  """What a canvas writes, drawn once, where `savefig` draws to lay out and again to write.

  To lay out takes as long as to draw, so the form that comes first does it for all: what is changed
  in the figure after that finds no room made for it.
  """
  figure.set_dpi(dpi)
  buffer = io.BytesIO()
  write(buffer, metadata=metadata)
  figure.set_layout_engine('none')
  return buffer.getvalue()


def data_url(picture: bytes) -> str:
  """Returns a PNG as a URL that holds it."""
  return 'data:image/png;base64,' + base64.b64encode(picture).decode()


def new_figure(height: float, width: float = WIDTH) -> mfigure.Figure:
  """Returns an empty figure of that size, in inches."""
  return mfigure.Figure(figsize=(width, height), layout='constrained')


def new_axes(height: float, width: float = WIDTH):
  """Returns an empty figure of that size, in inches, and its axes."""
  figure = new_figure(height, width)
  return figure, figure.subplots()


def plain(text: str) -> str:
  """Keeps a dollar sign from starting a formula."""
  return text.replace('$', r'\$')


def cut(name: str) -> str:
  """Returns a name, cut where it is too long."""
  return name if len(name) <= _MAX_NAME else name[:_MAX_NAME - 3] + '...'


def short(name: str) -> str:
  """Returns the name of a class for a picture, cut where it is too long, without a formula."""
  return plain(cut(name))


@functools.cache
def _signs():
  """Code points of the font; others would be drawn as one box."""
  return frozenset(font_manager.get_font(font_manager.findfont('DejaVu Sans')).get_charmap())


def told_apart(names: Sequence[str]) -> list[str] | None:
  """Returns the names of classes for a picture; None where not each would be another one.

  Long names may differ only in what was cut, and the font has no Chinese, Japanese or Korean signs.
  """
  texts = [short(name) for name in names]
  if len(set(texts)) < len(texts) or not _signs().issuperset(map(ord, ''.join(texts))):
    return None
  return texts


def ticks(count: int, limit: int) -> np.ndarray:
  """Whole numbers below `count`, 1, 2, 5, 10, ... apart, at most `limit`."""
  steps = (factor * 10**power for power in itertools.count() for factor in (1, 2, 5))
  return np.arange(0, count, next(step for step in steps if -(-count // step) <= limit))


def class_axis(
    axis: maxis.Axis, class_names: Sequence[str], first: np.ndarray, label: str, share: float = 1.0
) -> None:
  """Names the classes where there is room, numbers them where there is not.

  Args:
    axis: With a place for each class, or group of consecutive classes: 0, 1, 2, ...
    class_names: K names.
    first: int `[groups]`, the first class of each.
    label: Of the axis.
    share: The part of the figure's width that the panel has.
  """
  per_group = -(-len(class_names) // len(first))
  places = np.arange(len(first))
  texts = told_apart([class_names[k] for k in first]) if len(first) <= _MAX_NAMED else None
  named = texts is not None
  if not named:
    places = ticks(len(first), 20)
    texts = [str(first[place]) for place in places]
  axis.set_ticks(places, texts)
  axis.set_tick_params(length=2)
  room = 72 * share * (axis.axes.get_figure().get_figwidth() - 2.8) / len(places)
  if axis.axis_name == 'x' and 6 * max(map(len, texts)) > room:
    axis.set_tick_params(rotation=90)
  if per_group > 1:
    label += f' (in groups of {per_group} consecutive classes)'
  axis.set_label_text(label if named else f'{label}, by number')


def grouped(counts: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
  """Adds consecutive classes, the last axis, so that at most `limit` groups are left.

  Args:
    counts: `[..., K]`.
    limit: Positive.

  Returns:
    int `[..., groups]`, and int `[groups]`, the first class of each.
  """
  classes = counts.shape[-1]
  first = np.arange(0, classes, -(-classes // limit))
  return np.add.reduceat(counts, first, axis=-1), first


def heading(figure: mfigure.Figure, text: str, left_out: int) -> None:
  """Gives all panels a title, with what they do not show.

  Args:
    figure: Is changed.
    text: The title.
    left_out: Examples that are not drawn, their true class being unknown.
  """
  if left_out:
    text += f'\n{left_out:,} more are left out: their true class is unknown'
  figure.suptitle(text, x=0.01, ha='left', fontsize=10, fontweight='bold')


def sequential() -> mcolors.Colormap:
  """White to dark blue, never so light that a cell looks empty."""
  return mcolors.LinearSegmentedColormap.from_list(
      'labels', ['#c3d6ec', '#6b97c6', DARK]
  ).with_extremes(bad='white')


def text_color(background: tuple[float, float, float, float]) -> str:
  """Black or white, whichever can be read on the colour."""
  red, green, blue, _ = background
  return 'black' if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else 'white'
