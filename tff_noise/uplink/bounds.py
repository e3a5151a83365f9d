"""What a client sends lies within the bounds that it is declared with, however it is summed."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tff_noise import types
from tff_noise.uplink import uplink

Declared = uplink.UplinkSum | uplink.UplinkReport


def limits(declared: Declared) -> tuple[float, float]:
  """Returns the bounds as numbers of Python, integers for integers.

  Raises:
    types.UsageError: If they are no two finite numbers, in order, of the declared type.
  """
  dtype = np.dtype(declared.dtype)
  number = int if dtype.kind in 'iu' else float
  try:
    lower, upper = number(declared.lower), number(declared.upper)
    fit = lower <= upper and all(np.isfinite(dtype.type(bound)) for bound in (lower, upper))
    # One that is too large for its type wraps around.
    if fit and number is int:
      fit = np.iinfo(dtype).min <= lower and upper <= np.iinfo(dtype).max
  except (TypeError, ValueError, OverflowError):
    fit = False
  if not fit:
    raise types.UsageError(
        f'a client program declares {declared.name!r} from {declared.lower!r} to '
        f'{declared.upper!r}: bounds have to be two finite numbers of its type, {dtype.name}, the '
        'lower one first'
    )
  return lower, upper


def clip(declared: Sequence[Declared], values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  """Returns a client's values, cut to their declared bounds; nan, which says "none", stays.

  Secure sums cut by themselves; plain ones would take what is declared never to be sent.

  Args:
    declared: Each of `values`, and perhaps more.
    values: By name.

  Raises:
    types.UsageError: If bounds are none, see `limits`.
  """
  by_name = {one.name: one for one in declared}
  return {name: _cut(by_name[name], value) for name, value in values.items()}


def _cut(declared, value):
  lower, upper = map(np.dtype(declared.dtype).type, limits(declared))
  return tf.clip_by_value(tf.ensure_shape(value, declared.shape), lower, upper)
