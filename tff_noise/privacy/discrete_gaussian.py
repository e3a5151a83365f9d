"""The discrete Gaussian N_Z(0, v): P(k) in proportion to exp(-k^2 / (2 v)), for whole numbers k.

Canonne, Kamath and Steinke, The Discrete Gaussian for Differential Privacy, NeurIPS 2020. Their
exact sampler rejects; a client's computation draws millions at once, by inversion:
`inversion_table` has the distribution function in integers of 248 bits, which random numbers of 248
bits are compared with. What it draws is within `DISTANCE` of the discrete Gaussian in total
variation, for any release, and the accountant adds that to delta.

tensorflow_privacy's sampler is not used: its Laplace and Bernoulli parts are computed in floating
point, from unseeded operations, and it takes whole standard deviations alone.
"""

import fractions
import math
from typing import NamedTuple

import numpy as np

# Bits of a random word that the table is compared with: an int32 has a bit left for the sign.
WORD_BITS = 31
_WORDS = 8
# Of standard deviation 2^14, for which a table has 305,000 columns: 10 MB.
_LARGEST_VARIANCE = 2**28
# Below it, a sum of discrete Gaussians is not close enough to one.
_SMALLEST_VARIANCE = 64
# In total variation, of all numbers of one release: at most 2^40 of them, each within 2^-229.
DISTANCE = 2.0**-189
LARGEST_RELEASE = 2**40
# Variance by which the noise exceeds that of the Gaussian that it costs no more than.
SMOOTHING = 9


def inversion_table(
    variance: int, words: int = _WORDS, word_bits: int = WORD_BITS
) -> np.ndarray:
  """Returns int32 `[words, n]`, the distribution function of |k|, the highest bits first.

  Column k holds the B = words * word_bits bits of floor(2^B P(|N| <= k)). For U uniform in
  [0, 2^B), the number of columns that are at most U is distributed as |N|, within (n + 2) 2^-B in
  total variation: n + 1 probabilities are rounded, and less than 2^-B of the tail is left out.

  Args:
    variance: v, positive.
    words: Numbers a value is split into.
    word_bits: Bits of each, at most 31.
  """
  bits = words * word_bits
  # The tail from n on is less than e^(-n^2 / (2 v)) of the whole, here 2^-(B + 2).
  count = math.ceil(math.sqrt(2 * variance * (bits + 2) * math.log(2))) + 1
  weights = _weights(variance, count, bits + 64)
  total = weights[0] + 2 * sum(weights[1:])
  columns, so_far = [], 0
  for k, weight in enumerate(weights):
    so_far += weight if k == 0 else 2 * weight
    columns.append(min((so_far << bits) // total, (1 << bits) - 1))
  mask = (1 << word_bits) - 1
  return np.array(
      [[c >> (word_bits * (words - 1 - i)) & mask for c in columns] for i in range(words)], np.int32
  )


def _weights(variance, count, bits):
  """exp(-k^2 / (2 v)) for k below `count`, in units of 2^-(bits + 64); each is off by few units."""
  shift = bits + 64
  # The weight of k + 1 over that of k is exp(-(2 k + 1) / (2 v)).
  ratio = _exp_of_minus(fractions.Fraction(1, 2 * variance), shift)
  step = _exp_of_minus(fractions.Fraction(1, variance), shift)
  weight, weights = 1 << shift, []
  for _ in range(count):
    weights.append(weight)
    weight = weight * ratio >> shift
    ratio = ratio * step >> shift
  return weights


def _exp_of_minus(value, shift):
  """floor(2^shift exp(-value)) up to some units, for value in [0, 1], by its series."""
  term, total, k = 1 << shift, 1 << shift, 0
  while term:
    k += 1
    term = term * value.numerator // (value.denominator * k)
    total += -term if k % 2 else term
  return total


class Grid(NamedTuple):
  """The integers that a clipped vector is rounded to, and the noise on them.

  Attributes:
    steps: How many of the grid's steps the clipping norm S is long.
    norm_squared: What the squared norm of a rounded vector is at most.
    variance: Of one client's share of the noise; 0 for none.
    modulus_bits: b: sums are taken modulo 2^b.
  """

  steps: int
  norm_squared: int
  variance: int
  modulus_bits: int


def grid(noise_multiplier: float, num_entries: int, cohort: int) -> Grid:
  """Returns the grid on which d entries cost no more than a Gaussian of the same multiplier.

  Rounding a vector of norm c to whole numbers at random gives one of squared norm at most
  c^2 + d / 4 + sqrt(2 ln(1 / beta)) (c + sqrt(d) / 2) with probability 1 - beta (Kairouz, Liu and
  Steinke, The Distributed Discrete Gaussian Mechanism, ICML 2021, theorem 1 with beta = e^-1/2),
  and it is repeated until it does. The noise is Z times that norm: the inflation costs noise, not
  epsilon. S is at least 4 sqrt(d) steps long, so that it is below 1 percent for large d.

  The shares of n clients, N_Z(0, v) each, add up to nearly N_Z(0, n v): the probabilities of a sum
  of two such, of variances m v and v, are those of N_Z(0, (m + 1) v) times sums over a shifted
  grid. These are in 1 +- e, e = 2 sum_{k>0} exp(-2 pi^2 k^2 v m / (m + 1)), by Poisson's formula.
  N_Z(0, V) in turn is nearly a Gaussian of variance V - s^2 with a rounding that depends on its
  value alone, to N_Z(x, s^2), by the same formula (Peikert 2010, theorem 3.1): it costs what that
  Gaussian costs. Both for each entry, up to factors of e^+-10^-70 for v >= 64 and s = 3, for which
  n v is `SMOOTHING` = s^2 more than (Z norm)^2.

  Args:
    noise_multiplier: Z, at least 0.
    num_entries: d, at least 1.
    cohort: n, the clients that add a share each.

  Raises:
    ValueError: If the noise is too large for a table, or the sum for 30 bits.
  """
  root = math.isqrt(num_entries - 1) + 1
  steps = max(256, 1 << (4 * root - 1).bit_length())
  norm_squared = steps**2 + num_entries // 4 + steps + root // 2
  variance = 0
  if noise_multiplier:
    wanted = fractions.Fraction(noise_multiplier) ** 2 * norm_squared + SMOOTHING
    variance = max(_SMALLEST_VARIANCE, math.ceil(wanted / cohort))
  # Beyond 18 standard deviations there is less than what the table leaves out.
  most = cohort * (math.isqrt(norm_squared) + 1) + 18 * (math.isqrt(cohort * variance) + 1)
  modulus_bits = most.bit_length() + 1
  if variance > _LARGEST_VARIANCE or modulus_bits > 30 or num_entries * cohort > LARGEST_RELEASE:
    raise ValueError(
        f'noise of {noise_multiplier:g} on {num_entries} numbers of {cohort} clients is too much '
        'for discrete noise'
    )
  return Grid(steps, norm_squared, variance, modulus_bits)
