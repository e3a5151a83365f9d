"""How client contributions become one value at the server: TFF's factories, and their uplinks."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow_federated as tff
import tensorflow_privacy as tfp
import tree

from tff_noise import types
from tff_noise.federated import discrete_sum
from tff_noise.federated import gaussian_sum
from tff_noise.federated import tree_sum
from tff_noise.privacy import discrete_gaussian
from tff_noise.privacy import noise_key as noise_key_lib
from tff_noise.privacy import protection as protection_lib
from tff_noise.uplink import bounds
from tff_noise.uplink import disclosure
from tff_noise.uplink import uplink

_SUM = 'federated_sum'
# Of a number that `secure_quantized_sum` sends.
_QUANTISED_BITS = 32


class Aggregation(NamedTuple):
  """A way to aggregate, together with what it makes a client send.

  Attributes:
    update: Factory for the weighted mean of model updates.
    update_fields: From the type of the update to the uplink fields of `update`.
    scalar: From an `UplinkSum` to the factory that sums it; None where nothing but the update may
      leave a client.
    scalar_fields: From an `UplinkSum` to the uplink fields of `scalar`.
    by_client: Whether `update` is given the client's id, int32, in place of a weight: what a client
      draws its share of the noise from.
    protection: The noise that `update` adds; None where it adds none.
  """

  update: tff.aggregators.WeightedAggregationFactory
  update_fields: Callable[[tff.Type], tuple[uplink.UplinkField, ...]]
  scalar: Callable[[uplink.UplinkSum], tff.aggregators.UnweightedAggregationFactory] | None
  scalar_fields: Callable[[uplink.UplinkSum], tuple[uplink.UplinkField, ...]]
  by_client: bool = False
  protection: protection_lib.NoisySum | None = None


_UPDATE_REASON = 'averaged into the next global model'
# Not `Counts`: whether training diverges depends on what the examples are.
_WEIGHT_REASON = (
    'the weight of the update in the mean, its number of examples or what a method makes of it; 0 '
    'where training diverged'
)


def weighted_mean() -> Aggregation:
  """`sum_c n_c x_c / sum_c n_c` by plain sums; 0 where the weights sum to 0."""
  return Aggregation(
      update=tff.aggregators.MeanFactory(no_nan_division=True),
      update_fields=lambda update_type: (
          _plain_field('update', update_type, _UPDATE_REASON),
          _plain_field(
              'update weight', tff.TensorType(np.float32), _WEIGHT_REASON, lower=0
          ),
      ),
      scalar=lambda _: tff.aggregators.SumFactory(),
      scalar_fields=lambda s: (_plain_field(s.name, s.type_spec, s.reason, *bounds.limits(s)),),
  )


def _plain_field(name, type_spec, reason, lower=None, upper=None, protection=None):
  return uplink.UplinkField(
      name, str(type_spec), _SUM, uplink.Disclosure.SUM, lower, upper, reason,
      uplink.num_bytes(type_spec), protection,
  )


def secure_weighted_mean(*, update_bound: float, max_examples: int) -> Aggregation:
  """The weighted mean by secure sums of values clipped to public bounds and quantised to 32 bits.

  Args:
    update_bound: Each entry of an update, times its client's weight, is clipped to +- this times
      `max_examples`: those of smaller clients may be larger. Moving statistics of batch norm are
      entries, too, which follow features of a large scale by no more than this a round. Fixed and
      public, so that no bound has to be estimated from clients.
    max_examples: The largest number of examples of a client, public.

  Returns:
    The aggregation. Its error per entry and client is at most
    `update_bound * max_examples * 2**-32` before division by the total weight.
  """
  bound = float(update_bound) * max_examples
  return Aggregation(
      update=tff.aggregators.MeanFactory(
          _SecureSumFactory(-bound, bound),
          _SecureSumFactory(0.0, float(max_examples)),
          no_nan_division=True,
      ),
      update_fields=lambda update_type: (
          *_secure_fields('update', update_type, -bound, bound, _UPDATE_REASON),
          *_secure_fields(
              'update weight', tff.TensorType(np.float32), 0, max_examples, _WEIGHT_REASON
          ),
      ),
      # As clients have them, in the type that they send.
      scalar=lambda s: _SecureSumFactory(
          *(np.dtype(s.dtype).type(bound).item() for bound in bounds.limits(s))
      ),
      scalar_fields=lambda s: _secure_fields(s.name, s.type_spec, *bounds.limits(s), s.reason),
  )


def dp_mean(
    protection: protection_lib.NoisySum, *, noise_key: bytes, secure: bool
) -> Aggregation:
  """DP-FedAvg: the sum of clipped updates with noise, over the size of the cohort.

  McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018: every client
  has the same weight, the divisor is public and fixed, and nothing else may leave a client: neither
  losses nor counts.

  Gaussian noise in floating point has the weaknesses that Mironov (CCS 2012) describes; discrete
  noise, of which each client adds a share, has none (`discrete_sum`). That of a tree over the
  rounds is Gaussian, too (`tree_sum`). Each is a function of the key, of what is given here, of the
  round, and of the client.

  Args:
    protection: The noise, the clipping norm and the cohort.
    noise_key: 32 bytes, a secret of this run and no other.
    secure: Whether the clipped updates are summed securely, in 32 bits an entry. Their rounding
      adds at most `clip * sqrt(d) * 2**-31` to the norm of d entries, by which they are cut to
      less. Discrete noise is on integers, whose sum modulo 2^b rounds nothing.
  """
  if protection.mechanism == protection_lib.DISCRETE_GAUSSIAN:
    return Aggregation(
        _DiscreteMean(protection, noise_key, secure),
        lambda update_type: _discrete_fields(protection, update_type, secure), None, lambda _: (),
        by_client=True, protection=protection,
    )
  return Aggregation(
      tff.aggregators.as_weighted_aggregator(_GaussianMean(protection, noise_key, secure)),
      lambda update_type: _noisy_fields(protection, update_type, secure), None, lambda _: (),
      protection=protection,
  )


def rounds_of_noise(first: Any, state: Any) -> int | None:
  """Returns in how many rounds a noisy sum drew noise, of which no round may draw that of another.

  Args:
    first: The initial state of the process that `dp_mean` makes.
    state: A later one.

  Returns:
    A number, or None if `state` does not follow from `first`.
  """
  counted = set()
  for before, now in zip(tree.flatten(first), tree.flatten(state), strict=True):
    if isinstance(before, bool | np.bool_):
      continue  # Whether it is the first.
    if isinstance(before, int | np.integer):
      counted.add(int(now) - int(before))
    elif before != now:
      return None
  return counted.pop() if len(counted) == 1 else None


class _GaussianMean(tff.aggregators.UnweightedAggregationFactory):
  """TFF's factory of DP aggregation, with a clip that knows how many entries there are."""

  def __init__(self, protection: protection_lib.NoisySum, noise_key: bytes, secure: bool):
    self._protection = protection
    self._noise_key = noise_key
    self._secure = secure

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """See base class."""
    protection, clip = self._protection, float(self._protection.clip)
    key = noise_key_lib.derive(
        self._noise_key, protection_lib.to_json(protection), self._secure, str(value_type)
    )
    in_tree = protection.mechanism == protection_lib.TREE
    noisy_sum = (tree_sum.TreeSum if in_tree else gaussian_sum.GaussianSum)(
        clip,
        protection.noise_multiplier * clip,
        noise_key_lib.to_seed(key),
        margin=math.sqrt(uplink.num_entries(value_type)) * 2.0**-31 if self._secure else 0.0,
    )
    return tff.aggregators.DifferentiallyPrivateFactory(
        tfp.NormalizedQuery(noisy_sum, denominator=float(protection.cohort)),
        _SecureSumFactory(-clip, clip) if self._secure else None,
    ).create(value_type)


class _DiscreteMean(tff.aggregators.WeightedAggregationFactory):
  """`DiscreteMean`, on a grid that knows how many entries there are."""

  def __init__(self, protection: protection_lib.NoisySum, noise_key: bytes, secure: bool):
    self._protection = protection
    self._noise_key = noise_key
    self._secure = secure

  def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
    """See base class."""
    protection = self._protection
    key = noise_key_lib.derive(
        self._noise_key, protection_lib.to_json(protection), self._secure, str(value_type)
    )
    return discrete_sum.DiscreteMean(
        float(protection.clip), _grid(protection, value_type), protection.cohort,
        noise_key_lib.to_seed(key), self._secure,
    ).create(value_type, weight_type)


def _grid(protection, value_type):
  try:
    return discrete_gaussian.grid(
        protection.noise_multiplier, uplink.num_entries(value_type), protection.cohort
    )
  except ValueError as error:
    raise types.UsageError(
        f'--client_dp_noise: {error}; use less, or --client_dp_mechanism=gaussian'
    ) from error


def _discrete_fields(protection, update_type, secure):
  """One vector of integers modulo 2^b."""
  grid = _grid(protection, update_type)
  sent = tff.TensorType(np.int32, (uplink.num_entries(update_type),))
  reason = (
      f'{_UPDATE_REASON}; cut to norm {protection.clip:g}, in steps of 1/{grid.steps} of it, with '
      f'noise of variance {grid.variance} of each client, modulo 2^{grid.modulus_bits}'
  )
  field = _plain_field(
      'update', sent, reason, lower=0, upper=2**grid.modulus_bits - 1, protection=protection
  )
  if not secure:
    return (field,)
  return (
      field._replace(
          intrinsic=disclosure.SECURE_MODULAR_SUM, disclosure=uplink.Disclosure.DP_SECURE_SUM,
          bitwidth=grid.modulus_bits,
      ),
  )


def _noisy_fields(protection, update_type, secure):
  clip = float(protection.clip)
  reason = f'{_UPDATE_REASON}; cut to norm {clip:g}'
  if secure:
    return _secure_fields('update', update_type, -clip, clip, reason, protection)
  return (
      _plain_field('update', update_type, reason, lower=-clip, upper=clip, protection=protection),
  )


class _SecureSumFactory(tff.aggregators.UnweightedAggregationFactory):
  """A secure sum between constant bounds.

  `tff.aggregators.SecureSumFactory` also sends two clipping counts for each value; with fixed
  bounds nothing is done with them, and what is not sent needs no review.
  """

  def __init__(self, lower: float, upper: float):
    self._lower = lower
    self._upper = upper

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """See base class."""

    @tff.federated_computation
    def initialize():
      return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(
        initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_fn(state, value):
      total = tff.aggregators.secure_quantized_sum(value, self._lower, self._upper)
      return tff.templates.MeasuredProcessOutput(
          state, total, tff.federated_value((), tff.SERVER)
      )

    return tff.templates.AggregationProcess(initialize, next_fn)


def _secure_fields(name, type_spec, lower, upper, reason, protection=None):
  """The two values that `secure_quantized_sum` sends for one structure."""
  # Every number, of 4 bytes before, travels as an int64 in [0, 2**32).
  sent = str(type_spec).replace('float32', 'int64').replace('int32', 'int64')
  size = 2 * uplink.num_bytes(type_spec)
  shift = 'undoes the shift of the quantisation'
  secure = uplink.Disclosure.SECURE_SUM
  return (
      uplink.UplinkField(
          name, sent, disclosure.SECURE_SUM, secure, lower, upper, reason, size, protection,
          _QUANTISED_BITS,
      ),
      uplink.UplinkField(
          f'{name}: contributions', 'int32', disclosure.SECURE_SUM, secure, 1, 1, shift, 4,
          # One of each client, whatever it holds.
          protection or protection_lib.Counts(), bitwidth=1,
      ),
  )
