"""What reviewers of an audit ask for: the releases as events, and delta for every epsilon."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import NamedTuple

import numpy as np

from tff_noise.audit import curve_plot
from tff_noise.privacy import composition
from tff_noise.privacy import events
from tff_noise.privacy import exposure as exposure_lib
from tff_noise.privacy import protection
from tff_noise.privacy import rounding
from tff_noise.report import blocks
from tff_noise.report import sections

EVENTS, CURVES = 'events.json', 'delta_epsilon.csv'
_POINTS = 200
# Of the table beside the picture.
_DELTAS = (1e-2, 1e-4, 1e-6, 1e-8)
_NONE = 'No curve is drawn: no unit has a finite epsilon, or its mechanisms can only be added up.'
_CAPTION = (
    'Every point of a line is an upper bound, and all of them hold at once. On the lowest line of '
    f'a panel delta is below {curve_plot.FLOOR:g}: 0 where reports alone are released, from the '
    'sum of their epsilons on. A total that adds mechanisms up lies above its line, which composes '
    f'them. The numbers are in {CURVES}.'
)


class Exposed(NamedTuple):
  """A unit of an audit.

  Attributes:
    name: Of it, and of the runs if they are not all.
    exposure: What it is exposed to.
    cost: What the audit says it costs.
  """

  name: str
  exposure: exposure_lib.Exposure
  cost: protection.Cost


def files(exposed: Sequence[Exposed], curves: Sequence[curve_plot.Curve]) -> Mapping[str, str]:
  """Returns the content of the files, by name."""
  return {EVENTS: _events(exposed), CURVES: _table(curves)}


def section(curves: Sequence[curve_plot.Curve]) -> sections.Built:
  """Returns the section of the page that has the curves."""
  shown = [blocks.Text(_NONE)]
  if curves:
    picture = blocks.Picture('delta_epsilon', curve_plot.draw(list(curves)), _CAPTION)
    header = ('epsilon, at most, at delta', *(f'{delta:g}' for delta in _DELTAS))
    rows = [(name, *_at(curve, _DELTAS)) for curve in curves for name in curve.names]
    shown = [picture, blocks.Table(header, rows)]
  return sections.Built('Delta for every epsilon', shown)


def _at(curve, deltas):
  """Of the points of a curve, the first at which delta is small enough."""
  small = [curve.epsilons[curve.deltas <= delta] for delta in deltas]
  return [rounding.up(epsilons[0]) if len(epsilons) else '–' for epsilons in small]


def curves(exposed: Sequence[Exposed], delta: float) -> list[curve_plot.Curve]:
  """Returns the curves of the units whose epsilon is finite; equal ones together.

  Args:
    exposed: The units.
    delta: At which they are accounted for, in (0, 1).
  """
  found = {}
  for unit in exposed:
    if not math.isfinite(unit.cost.epsilon):
      continue
    total = (unit.cost.epsilon, unit.cost.delta)
    losses = unit.exposure.losses
    if losses is None:
      continue
    key = frozenset(losses.items()), total
    if key in found:
      found[key] = found[key]._replace(names=(*found[key].names, unit.name))
      continue
    profile = composition.compose(losses, min(delta, curve_plot.FLOOR))
    epsilons = _epsilons(profile, delta)
    found[key] = curve_plot.Curve((unit.name,), epsilons, profile.delta(epsilons), total)
  return list(found.values())


def _epsilons(profile: composition.Profile, delta: float) -> np.ndarray:
  """From 0 to a little beyond where delta is too small to be drawn."""
  # Samples that are off by a little leave no finite epsilon at the smallest delta.
  # Of thousands of releases rounding leaves more than the floor.
  least = 0.0 if profile.grid is None else 2 * profile.grid.error
  ends = map(profile.epsilon, (max(curve_plot.FLOOR, least), 1e-8, 1e-6, delta))
  end = next(filter(math.isfinite, ends), profile.pure)
  # Where the sum of the reports' epsilons is, delta may fall to 0.
  return np.union1d(np.linspace(0.0, 1.05 * end, _POINTS + 1), profile.pure)


def _events(exposed):
  content = {
      'dp_accounting': metadata.version('dp-accounting'),
      'neighbours': 'REPLACE_ONE',
      'units': [{'unit': unit.name, 'event': events.to_json(unit.exposure)} for unit in exposed],
  }
  return json.dumps(content, indent=2, allow_nan=False) + '\n'


def _table(curves):
  file = io.StringIO()
  writer = csv.writer(file, lineterminator='\n')
  writer.writerow(('unit', 'epsilon', 'delta'))
  for curve in curves:
    for name in curve.names:
      writer.writerows(
          (name, repr(float(e)), repr(float(d)))
          for e, d in zip(curve.epsilons, curve.deltas, strict=True)
      )
  return file.getvalue()
