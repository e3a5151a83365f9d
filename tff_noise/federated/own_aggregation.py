"""Any of TFF's aggregation factories as the aggregation of updates, declared as it is compiled.

`tff.learning.robust_aggregator` and the like, or a user's own. What such a factory makes a client
send is read off its compiled process: each sum is declared, and a factory that does anything else
than to sum is refused. Nothing is claimed of what the sums protect.
"""

import numpy as np
import tensorflow_federated as tff

from tff_noise import errors
from tff_noise import types
from tff_noise.federated import aggregation
from tff_noise.uplink import disclosure
from tff_noise.uplink import operations
from tff_noise.uplink import uplink

_WEIGHT_TYPE = tff.TensorType(np.float32)


def of_factory(
    factory: tff.aggregators.AggregationFactory, name: str
) -> aggregation.Aggregation:
  """Returns the aggregation that the factory makes; other sums are secure where all of its are.

  Args:
    factory: For weighted or unweighted values; the weight is the number of examples.
    name: How it is called in `uplink.json` and in errors.

  Raises:
    types.UsageError: If it is no factory for updates, here or where `update_fields` is asked.
  """
  if isinstance(factory, tff.aggregators.UnweightedAggregationFactory):
    factory = tff.aggregators.as_weighted_aggregator(factory)
  if not isinstance(factory, tff.aggregators.WeightedAggregationFactory):
    raise types.UsageError(f'{name} is no factory of tff.aggregators, but {factory!r}')
  example = tff.to_type([tff.TensorType(np.float32, (2,))])
  sent = [f.disclosure.is_secure_sum for f in _fields(factory, example, name)]
  plain = aggregation.weighted_mean()
  secure = aggregation.secure_weighted_mean(update_bound=1.0, max_examples=1)
  numbers = secure if all(sent) else plain
  return aggregation.Aggregation(
      factory, lambda update_type: _fields(factory, update_type, name), numbers.scalar,
      numbers.scalar_fields,
  )


def _fields(factory, update_type, name):
  """A field for each value that goes from clients to the server."""
  try:
    process = factory.create(update_type, _WEIGHT_TYPE)
  except Exception as error:  # A factory of the user's may raise whatever it likes.
    raise types.UsageError(
        f'{name} cannot aggregate {update_type} ({errors.named_line(error)})'
    ) from error
  drawn = operations.unseeded_randomness(process.next)
  if drawn:
    raise types.UsageError(
        f'{name} draws random numbers ({", ".join(sorted(drawn))}) that no seed repeats and no '
        'ledger accounts for; for noise use --client_dp_noise'
    )
  travelling = disclosure.travelling(process.next)
  for edge, _ in travelling:
    if edge.intrinsic not in disclosure.SUMS or edge.bitwidth == 'computed':
      raise types.UsageError(
          f'{name} sends values by {edge.intrinsic}, of which nobody can say what the server sees; '
          'only sums can be declared'
      )
  return tuple(
      uplink.UplinkField(
          f'update, value {i} of {len(travelling)}', edge.type_spec, edge.intrinsic,
          disclosure.SUMS[edge.intrinsic], None, None,
          f'part of the aggregation of updates by {name}',
          uplink.num_bytes(type_spec), bitwidth=int(edge.bitwidth) if edge.bitwidth else None,
      )
      for i, (edge, type_spec) in enumerate(travelling, 1)
  )
