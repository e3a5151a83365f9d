"""What several runs on the same examples expose people to together.

Runs are accounted for as one only as far as what they draw at random is independent. Runs of one
seed share it:

* Their cohorts are the same, or depend on each other, and what one run releases may tell who is in
  the other's. No protection by sampling is counted for either; the noise protects as before.
* Their reports of an example are one report if its client's id, its label, the mechanism and the
  code are the same. If only the label or the code is another, one random number answers for two
  labels, or may be read in two ways: nothing bounds that, see `mechanism`. Otherwise the reports
  are independent and add up.
* Their noise is the same if everything is that it is keyed by: nothing bounds that either.

A label or an example is the same in all scenes that were drawn from one data set, whoever holds it
and whatever its noisy label is. A client is not: where scenes differ, one run's client is in pieces
in another's, and as a client has a cost in the runs of its own scene alone.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tff_noise.data import scene as scene_lib
from tff_noise.privacy import exposure as exposure_lib
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.privacy import protection as protection_lib

_Pair = tuple[int, int]


class Run(NamedTuple):
  """What is known of a run.

  Attributes:
    times: In how many exchanges values were released under each protection.
    seed: What cohorts and reports are drawn from.
    client_of: int `[n]`, the owner of each example; `scene.SERVER` for what the server holds.
    noisy_label: int `[n]`, what the owner believes.
    noise: What its noise may be keyed by, nothing of a run without noise; two runs that share one
      may have drawn the same noise.
    codes: Digests of the codes that made it.
  """

  times: Mapping[protection_lib.Protection, int]
  seed: int
  client_of: np.ndarray
  noisy_label: np.ndarray
  noise: frozenset[Hashable]
  codes: frozenset[str] = frozenset({''})


class Exposed(NamedTuple):
  """What runs expose a unit to.

  Attributes:
    runs: Positions of these runs; of all but where clients differ.
    exposure: Of the unit, by these runs.
  """

  runs: tuple[int, ...]
  exposure: exposure_lib.Exposure


def exposed(runs: Sequence[Run]) -> list[Exposed]:
  """Returns what runs on the same examples expose each unit to.

  Args:
    runs: At least one, in the order in which flaws number them from 1 on.

  Returns:
    An entry for each unit over all runs; where clients differ, then one for the clients of each
    scene, over its runs.
  """
  everybody = tuple(range(len(runs)))
  found = [
      Exposed(everybody, _exposure(unit, runs, everybody)) for unit in protection_lib.Unit
  ]
  groups = same_clients(runs)
  if len(groups) > 1:
    found += [Exposed(g, _exposure(protection_lib.Unit.CLIENT, runs, g)) for g in groups]
  return found


def same_clients(runs: Sequence[Run]) -> list[tuple[int, ...]]:
  """Returns the positions of runs with the same clients, together, in the order of the first."""
  groups = collections.defaultdict(list)
  for i, run in enumerate(runs):
    # A client is known by its first example, whatever its number.
    owners, first, inverse = np.unique(run.client_of, return_index=True, return_inverse=True)
    names = np.where(owners == scene_lib.SERVER, scene_lib.SERVER, first)
    groups[names[inverse].tobytes()].append(i)
  return [tuple(group) for group in groups.values()]


def same_seed(runs: Sequence[Run]) -> list[tuple[int, ...]]:
  """Returns the positions of runs of one seed, together, where there is more than one."""
  groups = collections.defaultdict(list)
  for i, run in enumerate(runs):
    groups[run.seed].append(i)
  return [tuple(group) for group in groups.values() if len(group) > 1]


def same_noise(runs: Sequence[Run]) -> list[_Pair]:
  """Returns the positions of runs which may have drawn the same noise."""
  pairs = itertools.combinations(range(len(runs)), 2)
  return [(i, k) for i, k in pairs if runs[i].noise & runs[k].noise]


def two_labels(runs: Sequence[Run]) -> list[_Pair]:
  """Returns the positions of runs in which one random number answered for two labels."""
  return _asked_again(runs, lambda a, b: a.noisy_label != b.noisy_label)


def two_codes(runs: Sequence[Run]) -> list[_Pair]:
  """Returns the positions of runs of which other code may have read one random number otherwise."""
  return _asked_again(runs, lambda a, b: a.codes != b.codes)


def _asked_again(runs, differs):
  """Positions of runs in which one client reports an example that `differs`, by one number."""
  found = []
  for members in _sources(runs).values():
    for i, k in itertools.combinations(members, 2):
      a, b = runs[i], runs[k]
      same = (a.client_of == b.client_of) & (a.client_of != scene_lib.SERVER)
      if (same & differs(a, b)).any():
        found.append((i, k))
  return found


def _sources(runs):
  """Positions of the runs whose reports are of one seed and mechanism."""
  sources = collections.defaultdict(list)
  for i, run in enumerate(runs):
    for table in _mechanisms(run):
      sources[run.seed, table.num_classes, table.other].append(i)
  return sources


def _is_summed(run, unit):
  """Whether noise on a sum is what protects the unit."""
  protections = [protection_lib.for_unit(p, unit, len(run.codes)) for p in run.times]
  return any(isinstance(p, protection_lib.NoisySum) for p in protections)


def _mechanisms(run):
  label, codes = protection_lib.Unit.LABEL, len(run.codes)
  return exposure_lib.mechanisms(protection_lib.for_unit(p, label, codes) for p in run.times)


def independent_reports(runs: Sequence[Run]) -> dict[mechanism_lib.RandomizedResponse, int]:
  """Returns how many independent reports there are of one label, at most, by mechanism."""
  known = {(m.num_classes, m.other): m for run in runs for m in _mechanisms(run)}
  counts = collections.Counter()
  for (_, *table), members in _sources(runs).items():
    counts[tuple(table)] += _different_owners([runs[i].client_of for i in members])
  return {known[table]: int(count.max()) for table, count in counts.items()}


def _different_owners(client_of):
  """int `[n]`, how many different clients hold each example."""
  # The server comes first.
  owners = np.sort(np.stack(client_of), axis=0)
  return (owners[0] != scene_lib.SERVER) + (owners[1:] != owners[:-1]).sum(axis=0)


def _exposure(unit, runs, members):
  """What these of the runs expose a unit to."""
  shared = {i for group in same_seed(runs) for i in group}
  made, flaws = [], []
  for i in members:
    alone = exposure_lib.of_run(runs[i].times, unit, len(runs[i].codes))
    if alone.flaw:
      flaws.append(f'in run {i + 1} {alone.flaw}')
    made += [
        (exposure_lib.without_sampling(p) if i in shared else p, n) for p, n in alone.made
    ]
  these = [runs[i] for i in members]
  reports = {}
  if unit is protection_lib.Unit.LABEL:
    reports = independent_reports(these)
  flaws += _flaws(unit, these, members)
  return exposure_lib.Exposure(unit, tuple(made), reports, flaws[0] if flaws else '')


def _flaws(unit, runs, members):
  """Why runs that have a bound alone have none together."""
  label, client = protection_lib.Unit.LABEL, protection_lib.Unit.CLIENT
  if unit is client and len(same_clients(runs)) > 1:
    yield 'clients differ between the runs: one of one run is in pieces in another'
  for i, k in two_labels(runs) if unit is label else ():
    yield (
        f'runs {members[i] + 1} and {members[k] + 1} report different labels of one example by the '
        'same random number'
    )
  for i, k in two_codes(runs) if unit is label else ():
    yield (
        f'runs {members[i] + 1} and {members[k] + 1}, by other codes, may flip labels otherwise by '
        'the same random number'
    )
  summed = [run if _is_summed(run, unit) else run._replace(noise=frozenset()) for run in runs]
  for i, k in same_noise(summed):
    yield f'runs {members[i] + 1} and {members[k] + 1} drew the same noise'
  at_server = np.stack([run.client_of for run in runs]) == scene_lib.SERVER
  for i in np.flatnonzero((at_server & ~at_server.all(axis=0)).any(axis=1)):
    yield f'in run {members[i] + 1} the server holds examples that clients of another run hold'
