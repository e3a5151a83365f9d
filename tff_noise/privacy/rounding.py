"""Four digits of a bound that are a bound themselves, which rounding to the nearest spoils."""

import decimal
import math

# Digits of a bound that are more than its computation has.
_KNOWN = 12


def up(bound: float) -> str:
  """Returns four significant digits of a bound from above, at least 0; 'inf' if infinite."""
  return _rounded(bound, decimal.ROUND_CEILING)


def down(bound: float) -> str:
  """Returns the same of a bound from below."""
  return _rounded(bound, decimal.ROUND_FLOOR)


def _rounded(bound, how):
  if not math.isfinite(bound):
    return f'{bound:g}'
  # 0.81 in binary is above .81.
  known = decimal.Decimal(f'{bound:.{_KNOWN}g}')
  return f'{float(decimal.Context(prec=4, rounding=how).plus(known)):.4g}'
