"""How schedules of the local step size are written."""

import itertools
import math
import re

from tff_noise import types

FORMS = (
    'constant, exponential:GAMMA (times GAMMA after each round), steps:GAMMA:ROUND,ROUND,... '
    '(times GAMMA after each of these rounds) or cosine:ROUNDS (half a cosine, down to next to '
    'nothing in round ROUNDS, where it stays), with 0 < GAMMA < 1 and rounds from 1 on, ascending'
)


def parse(text: str) -> types.Schedule:
  """Returns the schedule that --learning_rate_schedule names.

  Raises:
    types.UsageError: If it is not of one of the forms.
  """
  kind, _, rest = text.partition(':')
  try:
    if text == 'constant':
      return types.Schedule()
    if kind == 'exponential':
      return types.Schedule(kind, _gamma(rest))
    if kind == 'steps':
      gamma, _, rounds = rest.partition(':')
      return types.Schedule(kind, _gamma(gamma), _rounds(rounds))
    if kind == 'cosine':
      (rounds,) = _rounds(rest)
      return types.Schedule(kind, rounds=(rounds,))
    raise ValueError
  except ValueError:
    raise types.UsageError(f'--learning_rate_schedule must be {FORMS}, got {text}') from None


def _gamma(text):
  gamma = float(text)
  if not (math.isfinite(gamma) and 0 < gamma < 1):
    raise ValueError
  return gamma


def _rounds(text):
  if not re.fullmatch(r'[0-9]{1,9}(,[0-9]{1,9})*', text):
    raise ValueError
  rounds = tuple(map(int, text.split(',')))
  if rounds[0] < 1 or any(a >= b for a, b in itertools.pairwise(rounds)):
    raise ValueError
  return rounds
