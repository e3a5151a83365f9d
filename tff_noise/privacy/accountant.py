"""What repeated releases cost: epsilon at a given delta.

Three cases, each with its own neighbouring data sets:

* Labels flipped afresh for every release (one label replaced by another): the privacy loss of one
  release is +e, 0 or -e, so that of R releases is a sum of trinomials. A memoised report is one
  release, however often it is sent.
* DP-FedAvg with a cohort of fixed size, what simulators draw (one client's data replaced).
* DP-FedAvg with Poisson sampling (one client added or removed; McMahan et al. 2018), and what it
  costs where a client's data are replaced.

Losses are composed through privacy loss distributions (Koskela et al. 2020; Doroshenko et al. 2022,
"Connect the dots"), by the convolutions of dp_accounting. Every step rounds outward: a profile is
replaced by one that is nowhere below it, and delta is reduced by more than the convolution's
rounding error, so for a delta of 1e-12 or less only the bounds without a convolution remain.

The Gaussian bounds are about real numbers. Noise in floating point has weaknesses that they do not
cover (Mironov 2012); the discrete Gaussian is in whole numbers, and has none of these.
"""

import math
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution
from scipy import optimize
from scipy import special

from tff_noise.privacy import discrete_gaussian
from tff_noise.privacy import mechanism as mechanism_lib

# What is added to computed probabilities and epsilons, far above the rounding error of their sums.
SLACK = 1e-9
# The absolute error of a convolution by FFT, once and for each release.
_FFT_ERROR, _FFT_ERROR_PER_RELEASE = 1e-12, 1e-14
# The grid of losses of one Gaussian round; the excess over the exact value falls with its square.
_GRID = 20_000
_FINEST_INTERVAL = 1e-4
# Above, e^interval overflows in dp_accounting; epsilon is so large that sampling changes nothing.
_COARSEST_INTERVAL = 700.0


def check_count(name: str, value: int, minimum: int) -> None:
  """Raises ValueError unless `value` is a whole number of at least `minimum`."""
  if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < minimum:
    raise ValueError(f'{name} must be a whole number of at least {minimum}, got {value!r}')


def check_delta(delta: float, *, zero: bool) -> None:
  """Raises ValueError unless `delta` is below 1 and above 0, or 0 where `zero` allows it."""
  # Written so that NaN, which compares false with everything, is refused.
  if not 0 <= delta < 1 or (delta == 0 and not zero):
    raise ValueError(f'delta must be in {"[" if zero else "("}0, 1), got {delta!r}')


def solve(profile: Callable[[float], float], delta: float, high: float) -> tuple[float, float]:
  """Brackets the epsilon at which a decreasing privacy profile falls to `delta`.

  Args:
    profile: delta as a function of epsilon, decreasing.
    delta: In (0, 1).
    high: Where to stop looking.

  Returns:
    (below, above), about 2 * SLACK apart relatively, with profile(below) > delta >= profile(above).
    (0, 0) if epsilon 0 is enough, (high, infinity) if `high` is not.
  """
  if profile(0.0) <= delta:
    return 0.0, 0.0
  if profile(high) > delta:
    return high, math.inf
  # On the log scale a profile is nearly a parabola, which takes few evaluations.
  smallest, target = math.ulp(0.0), math.log(delta)
  root = optimize.brentq(
      lambda epsilon: math.log(max(profile(epsilon), smallest)) - target, 0, high, xtol=1e-15
  )
  step = SLACK
  while step < 1 and profile(root * (1 - step)) <= delta:
    step *= 2
  below = root * max(0.0, 1 - step)
  step = SLACK
  while root * (1 + step) < high and profile(root * (1 + step)) > delta:
    step *= 2
  return below, min(high, root * (1 + step))


def convolution_error(releases: int) -> float:
  """Returns an upper bound of what rounding changes delta by when `releases` are composed."""
  return _FFT_ERROR + _FFT_ERROR_PER_RELEASE * releases


class Losses(NamedTuple):
  """The distribution of one release's privacy losses on a grid.

  Attributes:
    masses: float64 `[2 n + 1]`, the probabilities of the losses `interval` * (-n, ..., n).
    infinity: The probability of an infinite loss.
    interval: The spacing of the losses.
  """

  masses: np.ndarray
  infinity: float
  interval: float


def _epsilon_of_losses(losses: Losses, releases: int, delta: float) -> float:
  """Returns epsilon of `releases` releases with one distribution of losses.

  Args:
    losses: Of one.
    releases: At least 1.
    delta: In [0, 1).
  """
  delta = delta * (1 - SLACK) - convolution_error(releases)
  if delta <= 0:
    return math.inf
  masses, infinity, interval = losses
  single = pld_pmf.DensePLDPmf(interval, -(len(masses) // 2), masses, infinity, True)
  return float(single.self_compose(releases).get_epsilon_for_delta(delta))


def composed_epsilon(deltas: np.ndarray, interval: float, releases: int, delta: float) -> float:
  """Returns epsilon of `releases` releases, each with the given privacy profile.

  Args:
    deltas: See `connect`.
    interval: The spacing of the epsilons.
    releases: At least 1.
    delta: In [0, 1).
  """
  return _epsilon_of_losses(connect(deltas, interval), releases, delta)


def connect(deltas: np.ndarray, interval: float) -> Losses:
  """Returns losses on a grid that no release with the given privacy profile exceeds.

  Connect the dots (Doroshenko et al. 2022, algorithm 1) for neighbours that may be exchanged: the
  profile is bounded by the one that is linear in e^epsilon between the points, and that one
  belongs to a pair of distributions. Below 0 it is the mirror image, delta(-e) = 1 - e^-e +
  e^-e delta(e), so the loss -e has e^-e times the probability of the loss e.

  Args:
    deltas: float64 `[n + 1]`, n >= 1: an upper bound of the profile at epsilon 0, interval, ...,
      n * interval, valid for both orders of any two neighbours. The last is never amplified by
      composition: it counts as the probability of an infinite loss.
    interval: The spacing of the epsilons.
  """
  # Rounding must not leave a rise.
  deltas = np.maximum.accumulate(deltas[::-1])[::-1]
  falls = -np.diff(deltas)
  # Nothing grows: with little noise, e^interval would overflow. Clipping only adds probability.
  shrink = math.exp(-interval)
  positive = np.maximum(falls - shrink * np.append(falls[1:], 0), 0) / -math.expm1(-interval)
  negative = positive * np.exp(-interval * np.arange(1, len(deltas)))
  zero = max(0.0, 1 - deltas[-1] - positive.sum() - negative.sum())
  masses = np.concatenate([negative[::-1], [zero], positive])
  return Losses(masses, float(deltas[-1]), interval)


def randomized_response_epsilon(
    mechanism: mechanism_lib.RandomizedResponse, releases: int, delta: float
) -> float:
  """Returns epsilon of `releases` independent reports of one label.

  With e = ln(A / B), the loss of one report is e with probability a, -e with b and otherwise 0: a
  grid of step e holds it without rounding. The pair of labels dominates, so the later releases may
  depend on the earlier ones. dp_accounting's own randomised response is not used: its
  `noise_parameter` is the probability K b of a uniform report, not that of a wrong one, and its
  grid is rounded.

  Args:
    mechanism: The mechanism.
    releases: How many reports with fresh randomness were sent.
    delta: In [0, 1); 0 gives basic composition.

  Raises:
    ValueError: If `releases` or `delta` is out of range.
  """
  check_count('releases', releases, 0)
  check_delta(delta, zero=True)
  if releases == 0:
    return 0.0
  basic = releases * mechanism.actual_epsilon
  a, b = mechanism.keep_probability, mechanism.other_probability
  masses = np.array([b, (mechanism.num_classes - 2) * b, a])
  step = ReportLoss(mechanism).largest(0.0)
  return min(basic, _epsilon_of_losses(Losses(masses, 0.0, step), releases, delta))


def _gaussian_profile(epsilon: float | np.ndarray, mu: float) -> np.ndarray:
  """delta of a Gaussian of standard deviation 1 and sensitivity mu (Balle and Wang 2018)."""
  near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2
  # Phi(-near) - e^epsilon Phi(-far), the latter without the product of huge and tiny.
  other = special.erfcx(far / math.sqrt(2)) * np.exp(-near * near / 2) / 2
  # The difference may be far smaller than its terms, whose rounding error counts.
  return np.maximum(0, special.ndtr(-near) * (1 + 1e-13) - other)


def _largest_loss(mu: float, tail: float) -> float:
  """Returns an epsilon at which `_gaussian_profile` is at most `tail`."""
  # It is at most Phi(-z) <= exp(-z^2 / 2) at mu^2 / 2 + mu z.
  return mu * mu / 2 + mu * math.sqrt(-2 * math.log(max(tail, sys.float_info.min)))


class GaussianLoss(NamedTuple):
  """The privacy profile of one noisy sum, in both orders of the neighbours.

  Sampling with share q amplifies to delta(ln(1 + q (e^e - 1))) = q delta_Gauss(e) (Balle, Barthe
  and Gaboardi 2018, theorem 9).

  Attributes:
    mu: Sensitivity over the standard deviation of the noise, positive.
    share: q, of the clients in a secret, uniform cohort; 1 without protection by sampling.
    distance: How far samples may be from the distribution, in total variation; not in `profile`.
    poisson: Whether clients are in the cohort each by itself, see `poisson_replaced_epsilon`, whose
      profile is below that of cohorts of one size.
  """

  mu: float
  share: float = 1.0
  distance: float = 0.0
  poisson: bool = False

  def profile(self, epsilons: np.ndarray) -> np.ndarray:
    """Returns upper bounds of delta at float64 `[n]` epsilons, ascending from 0 or more on.

    But for rounding.
    """
    if self.poisson and self.share < 1:
      return _replaced_profile(epsilons, self.share, self.mu / 2)
    # The inverse of ln(1 + q (e^e - 1)), without overflow.
    plain = epsilons - math.log(self.share) + np.log1p(-(1 - self.share) * np.exp(-epsilons))
    return self.share * _gaussian_profile(np.maximum(plain, 0.0), self.mu)

  def largest(self, tail: float) -> float:
    """Returns an epsilon at which `profile` is at most `tail`, positive."""
    plain = _largest_loss(self.mu, tail)
    if self.share == 1:
      return plain
    return float(np.logaddexp(math.log1p(-self.share), math.log(self.share) + plain))


class ReportLoss(NamedTuple):
  """The privacy profile of one report of randomised response: a - e^epsilon b, or 0 if it is less.

  Attributes:
    mechanism: The mechanism.
  """

  mechanism: mechanism_lib.RandomizedResponse
  distance = 0.0

  def profile(self, epsilons: np.ndarray) -> np.ndarray:
    """Returns upper bounds of delta at float64 `[n]` epsilons of at least 0, but for rounding."""
    below = np.minimum(epsilons - self.largest(0.0), 0.0)
    return self.mechanism.keep_probability * np.abs(np.expm1(below))

  def largest(self, tail: float) -> float:
    """Returns the epsilon from which on `profile` is 0, whatever the `tail`."""
    del tail  # Unused.
    # actual_epsilon is rounded down.
    return math.nextafter(self.mechanism.actual_epsilon, math.inf)


Loss = GaussianLoss | ReportLoss


def _unsampled_epsilon(mu: float, rounds: int, delta: float) -> float:
  # R Gaussians are one with sqrt(R) times the sensitivity.
  total = mu * math.sqrt(rounds)
  return solve(
      lambda epsilon: float(_gaussian_profile(epsilon, total)) * (1 + SLACK),
      delta,
      _largest_loss(total, delta * (1 - 1e-6)),
  )[1]


def _check_gaussian(noise_multiplier: float, rounds: int, delta: float) -> None:
  if not 0 <= noise_multiplier < math.inf:
    raise ValueError(f'the noise multiplier must be finite and not below 0, got {noise_multiplier}')
  check_count('rounds', rounds, 0)
  check_delta(delta, zero=False)


def gaussian_epsilon(
    noise_multiplier: float, *, population: int, cohort: int, rounds: int, delta: float
) -> float:
  """Returns the client-level epsilon of DP-FedAvg with cohorts of a fixed size.

  Each round draws `cohort` of `population` clients without replacement, clips each update to norm
  S and publishes the sum plus Gaussian noise of standard deviation noise_multiplier * S.
  Neighbours: all data of one client replaced; the population is public.

  Sampling amplifies as `GaussianLoss` says, in both orders of the neighbours, so the profile may be
  composed (Zhu, Dong and Wang 2022). The result is the less of this and of the noise without
  sampling.
  Renyi accounting of the same sampling (Wang, Balle and Kasiviswanathan 2019), dp_accounting's, is
  valid too, and left out because it gives far more: 26.0 for 14.4 at noise 2, 10 of 100 clients,
  300 rounds and delta 1e-5.

  Args:
    noise_multiplier: Standard deviation of the noise over the clipping norm; 0 gives infinity.
    population: How many clients there are, at least 1.
    cohort: How many a round draws, 1 to `population`.
    rounds: R, at least 0.
    delta: In (0, 1).

  Raises:
    ValueError: If an argument is out of range.
  """
  _check_gaussian(noise_multiplier, rounds, delta)
  check_count('population', population, 1)
  check_count('cohort', cohort, 1)
  if cohort > population:
    raise ValueError(f'the cohort must be at most the population, {population}, got {cohort}')
  if rounds == 0:
    return 0.0
  if noise_multiplier == 0:
    return math.inf
  # Replacing a client moves the sum by up to 2 S, from one end of the ball to the other, and not
  # by S as adding one does. dp_accounting's SampledWithoutReplacementDpEvent means noise over this
  # sensitivity too: there, one would have to pass noise_multiplier / 2.
  mu = 2 / noise_multiplier
  unsampled = _unsampled_epsilon(mu, rounds, delta)
  if cohort == population:
    return unsampled
  loss = GaussianLoss(mu, cohort / population)
  return min(unsampled, _composed(loss, rounds, delta))


def _composed(loss, rounds, delta):
  """Composes the profile of `loss`, in both orders of the neighbours."""
  interval = loss.largest(delta * 1e-6 / rounds) / _GRID
  deltas = loss.profile(interval * np.arange(_GRID + 1)) * (1 + SLACK)
  return composed_epsilon(deltas, interval, rounds, delta)


def discrete_gaussian_epsilon(
    noise_multiplier: float, *, population: int, cohort: int, rounds: int, delta: float
) -> float:
  """Returns the client-level epsilon of the distributed discrete Gaussian, all shares present.

  On `discrete_gaussian.grid` a sum is, up to a factor below e^1e-50, what a Gaussian of at least
  this multiplier becomes when it is rounded in a way that depends on its value alone: it costs
  what `gaussian_epsilon` says. Its samples are within `DISTANCE` of the distribution, which adds
  (1 + e^epsilon) times as much to delta each round; where that is not negligible the result is
  infinite, from an epsilon of about 95 on.

  Args:
    noise_multiplier: As in `discrete_gaussian.grid`.
    population: As in `gaussian_epsilon`; equal to `cohort` against a server that draws it.
    cohort: How many clients a round has, each of which adds its share.
    rounds: R, at least 0.
    delta: In (0, 1).

  Raises:
    ValueError: If an argument is out of range.
  """
  epsilon = gaussian_epsilon(
      noise_multiplier, population=population, cohort=cohort, rounds=rounds,
      delta=delta * (1 - SLACK),
  ) * (1 + SLACK)
  if epsilon and math.log(rounds * 2 * discrete_gaussian.DISTANCE) + epsilon > math.log(
      delta * SLACK
  ):
    return math.inf
  return epsilon


def poisson_gaussian_epsilon(
    noise_multiplier: float, sampling_probability: float, rounds: int, delta: float
) -> float:
  """Returns the client-level epsilon of DP-FedAvg with Poisson sampling.

  Each client takes part in a round independently. Neighbours: one client added or removed, while q
  stays; if one is replaced, see `poisson_replaced_epsilon`. It does not describe a run that draws
  cohorts of a fixed size: see `gaussian_epsilon`.

  Args:
    noise_multiplier: Standard deviation of the noise over the clipping norm; 0 gives infinity.
    sampling_probability: q, in [0, 1].
    rounds: R, at least 0.
    delta: In (0, 1).

  Raises:
    ValueError: If an argument is out of range.
  """
  _check_poisson(noise_multiplier, sampling_probability, rounds, delta)
  if rounds == 0 or sampling_probability == 0:
    return 0.0
  if noise_multiplier == 0:
    return math.inf
  mu = 1 / noise_multiplier
  unsampled = _unsampled_epsilon(mu, rounds, delta)
  reduced = delta * (1 - SLACK) - _FFT_ERROR - _FFT_ERROR_PER_RELEASE * rounds
  if sampling_probability == 1 or reduced <= 0:
    return unsampled
  # Little noise has large losses: the finest grid would not fit into memory.
  interval = max(_FINEST_INTERVAL, _largest_loss(mu, 1e-20) / (2 * _GRID))
  if interval > _COARSEST_INTERVAL:
    return unsampled
  try:
    single = privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier,
        value_discretization_interval=interval,
        sampling_prob=sampling_probability,
    )
  except ValueError:  # With noise of some .06 its numbers overflow.
    # Who is not there is replaced by one whose update is 0.
    replaced = poisson_replaced_epsilon(noise_multiplier, sampling_probability, rounds, delta)
    return min(unsampled, replaced)
  return min(unsampled, float(single.self_compose(rounds).get_epsilon_for_delta(reduced)))


def _check_poisson(noise_multiplier, sampling_probability, rounds, delta):
  _check_gaussian(noise_multiplier, rounds, delta)
  if not 0 <= sampling_probability <= 1:
    raise ValueError(f'the sampling probability must be in [0, 1], got {sampling_probability}')


def poisson_replaced_epsilon(
    noise_multiplier: float, sampling_probability: float, rounds: int, delta: float
) -> float:
  """Returns epsilon of DP-FedAvg with Poisson sampling where a client's data are replaced.

  That is what an example or a label that is replaced is at most: one client removed and another
  added, which take part in the same rounds. With noise of deviation 1, s = 1 / noise_multiplier and
  q the sampling probability, nothing is told apart better than

    P = (1 - q) N(0) + q N(s)   from   Q = (1 - q) N(0) + q N(-s).

  Proof. Given who else takes part, records x and x' of the client move the sum, where |x| and |x'|
  are at most s and |x - x'| at most 2 s. For e^e = a >= 1 the delta of an event E is

    (1 - q) (1 - a) N_0(E) + q N_x(E) - a q N_x'(E),

  which falls in N_0(E) and N_x'(E). Of all events with N_x(E) = p none has less of these than
  Phi(z - s) and Phi(z - 2 s), z = Phi^-1(p) (Neyman and Pearson), and a half-line has both at once
  under P and Q. The mean over the others is no larger (joint convexity), and the pair is its own
  mirror image, so that both orders are covered and rounds compose (Zhu, Dong and Wang 2022). It is
  no more than what cohorts of a fixed size cost, since these have the bound of the two components
  apart.

  Args:
    noise_multiplier: Standard deviation of the noise over the clipping norm; 0 gives infinity.
    sampling_probability: q, in [0, 1].
    rounds: R, at least 0.
    delta: In (0, 1).

  Raises:
    ValueError: If an argument is out of range.
  """
  _check_poisson(noise_multiplier, sampling_probability, rounds, delta)
  if rounds == 0 or sampling_probability == 0:
    return 0.0
  if noise_multiplier == 0:
    return math.inf
  share, shift = sampling_probability, 1 / noise_multiplier
  unsampled = _unsampled_epsilon(2 * shift, rounds, delta)
  if share == 1:
    return unsampled
  loss = GaussianLoss(2 * shift, share, poisson=True)
  return min(unsampled, _composed(loss, rounds, delta))


def _replaced_profile(epsilon: np.ndarray, share: float, shift: float) -> np.ndarray:
  """delta of the pair of `poisson_replaced_epsilon`, for ascending epsilons from 0 on."""
  # The loss grows along the line. With u = e^(s t) it is epsilon where
  # c u^2 - (e^epsilon - 1) (1 - q) u - e^epsilon c = 0, c = q e^(-s^2 / 2): all in logarithms.
  with np.errstate(divide='ignore'):
    growth = np.log(-np.expm1(-epsilon))  # ln(1 - e^-epsilon), -infinity at 0.
  half = math.log1p(-share) + growth
  c = math.log(share) - shift * shift / 2
  root = np.logaddexp(2 * half, 2 * (math.log(2) + c) - epsilon) / 2
  t = (epsilon + np.logaddexp(half, root) - math.log(2) - c) / shift
  inside = share * special.ndtr(shift - t)
  others = np.exp(epsilon + math.log(share) + special.log_ndtr(-shift - t))
  others += np.exp(epsilon + half + special.log_ndtr(-t))
  # Exponents as large as epsilon are rounded, and so is a difference of almost equal numbers.
  return np.maximum(0, inside - others) + inside * 1e-15 * (100 + epsilon)
