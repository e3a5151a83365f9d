"""How client contributions become one value at the server: TFF's factories, and their uplinks."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from tff_noise import rng
from tff_noise.federated import gaussian_sum
from tff_noise.privacy import protection as protection_lib
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
  """

  update: tff.aggregators.WeightedAggregationFactory
  update_fields: Callable[[tff.Type], tuple[uplink.UplinkField, ...]]
  scalar: Callable[[uplink.UplinkSum], tff.aggregators.UnweightedAggregationFactory] | None
  scalar_fields: Callable[[uplink.UplinkSum], tuple[uplink.UplinkField, ...]]


_UPDATE_REASON = 'averaged into the next global model'
# Not `Counts`: whether training diverges depends on what the examples are.
_WEIGHT_REASON = (
    'number of examples, the weight of the update in the mean; 0 where training diverged'
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
      scalar_fields=lambda s: (
          _plain_field(s.name, s.type_spec, s.reason, protection=s.protection),
      ),
  )


def _plain_field(name, type_spec, reason, *, lower=None, upper=None, protection=None):
  return uplink.UplinkField(
      name, str(type_spec), _SUM, uplink.Disclosure.SUM, lower, upper, reason,
      uplink.num_bytes(type_spec), protection,
  )


def secure_weighted_mean(*, update_bound: float, max_examples: int) -> Aggregation:
  """The weighted mean by secure sums of values clipped to public bounds and quantised to 32 bits.

  Args:
    update_bound: Each entry of an update is clipped to `[-update_bound, update_bound]` (times the
      client's weight). Fixed and public, so that no bound has to be estimated from clients.
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
      scalar=lambda s: _SecureSumFactory(s.dtype(s.lower).item(), s.dtype(s.upper).item()),
      scalar_fields=lambda s: _secure_fields(
          s.name, s.type_spec, s.lower, s.upper, s.reason, s.protection
      ),
  )


def dp_mean(protection: protection_lib.NoisySum, *, seed: int, secure: bool) -> Aggregation:
  """DP-FedAvg: the sum of clipped updates with Gaussian noise, over the size of the cohort.

  McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018: every client
  has the same weight, the divisor is public and fixed, and nothing else may leave a client: neither
  losses nor counts.

  Gaussian noise in floating point has the weakness that Mironov (CCS 2012) describes. The noise is
  a function of the seed, as all randomness of a simulation; a deployment draws it from the system.

  Args:
    protection: The noise, the clipping norm and the cohort.
    seed: The experiment's seed.
    secure: Whether the clipped updates are summed securely, in 32 bits an entry; their rounding
      adds at most `clip * sqrt(d) * 2**-31` to the norm of d entries.
  """
  clip = float(protection.clip)
  noisy_sum = gaussian_sum.GaussianSum(
      clip, protection.noise_multiplier * clip, rng.tf_seed(seed, 'client-level noise')
  )
  factory = tff.aggregators.DifferentiallyPrivateFactory(
      tfp.NormalizedQuery(noisy_sum, denominator=float(protection.cohort)),
      _SecureSumFactory(-clip, clip) if secure else None,
  )
  reason = f'{_UPDATE_REASON}; cut to norm {clip:g}'

  def update_fields(update_type):
    if secure:
      return _secure_fields('update', update_type, -clip, clip, reason, protection)
    return (
        _plain_field(
            'update', update_type, reason, lower=-clip, upper=clip, protection=protection
        ),
    )

  return Aggregation(
      tff.aggregators.as_weighted_aggregator(factory), update_fields, None, lambda _: ()
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
