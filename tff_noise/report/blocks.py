"""What a report is made of: sections, and the blocks in them. Knows nothing of HTML or of files."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from matplotlib import figure as mfigure

from tff_noise.data import scene as scene_lib
from tff_noise.report import runs


class Text(NamedTuple):
  """A paragraph; `tone` is 'plain', 'notice' (must not be overlooked) or 'warning'."""

  text: str
  tone: str = 'plain'
  kind = 'text'


class Code(NamedTuple):
  """A command or other text to be copied."""

  text: str
  kind = 'code'


class Number(NamedTuple):
  """A number of the headline, with what it is and a remark."""

  value: str
  name: str
  remark: str = ''


class Numbers(NamedTuple):
  """The headline's numbers, side by side."""

  numbers: Sequence[Number]
  kind = 'numbers'


class Folded(NamedTuple):
  """A cell whose full text is shown when asked for."""

  short: str
  full: str


class Link(NamedTuple):
  """A cell that leads to another file."""

  short: str
  href: str


class Table(NamedTuple):
  """A table.

  Attributes:
    header: Names of the columns; empty for pairs of a name and a value.
    rows: Cells: str, `Folded` or `Link`.
    summary: Where given, the table is folded behind this line.
  """

  header: Sequence[str]
  rows: Sequence[Sequence[str | Folded | Link]]
  summary: str = ''
  kind = 'table'


class Picture(NamedTuple):
  """A picture.

  Attributes:
    name: Of its file, without ending; unique in the report.
    figure: What is drawn.
    caption: What to see in it.
  """

  name: str
  figure: mfigure.Figure
  caption: str
  kind = 'picture'


Block = Text | Code | Numbers | Table | Picture


class Section(NamedTuple):
  """A part of the report: the seam at which a method adds what it saw.

  Attributes:
    title: Its heading.
    applies: Whether the run has it.
    build: Its blocks, from the run and its scene.
  """

  title: str
  applies: Callable[[runs.Run], bool]
  build: Callable[[runs.Run, scene_lib.Scene], Sequence[Block]]
