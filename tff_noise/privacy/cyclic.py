"""How often clients take part whose turns come from a public order, over and over.

Round r, from 1 on, takes k clients from place (r - 1) k of an order of all C clients, and after the
last the first. So a client takes part at most once in any floor(C / k) rounds in a row. No part of
it is a secret, and none is needed: what a client is exposed to is counted, not drawn.
"""

import math

import numpy as np

from tff_noise.privacy import accountant


def participations(population: int, cohort: int, rounds: int) -> np.ndarray:
  """Returns int64 `[P]`, how many of the first rounds each group of clients takes part in.

  gcd(C, k) clients in a row always take part together: a group for each of these, P of them, in
  their order. The first has most.

  Args:
    population: C, at least 1.
    cohort: k, 1 to C.
    rounds: R, at least 0.

  Raises:
    ValueError: If one is out of range.
  """
  accountant.check_count('population', population, 1)
  accountant.check_count('cohort', cohort, 1)
  accountant.check_count('rounds', rounds, 0)
  if cohort > population:
    raise ValueError(f'the cohort must be at most the population, {population}, got {cohort}')
  together = math.gcd(population, cohort)
  groups, taken = population // together, rounds * (cohort // together)
  # How many of the places 0 to taken - 1 are those of a group, groups apart.
  return (taken - np.arange(groups) - 1) // groups + 1
