"""Label communication: the one computation through which labels leave a client, as a sum of flips.

Its client type is the finished, flipped histogram: that raw labels do not enter is a fact of the
type signature. It is separate from training, so nothing can be added to it unseen.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow_federated as tff

from tff_noise.federated import disclosure
from tff_noise.federated import uplink
from tff_noise.privacy import protection as protection_lib


def declare(
    num_classes: int,
    *,
    max_count: int,
    max_clients: int,
    protection: protection_lib.LabelReports | None,
) -> tuple[int, tuple[uplink.UplinkField, ...]]:
  """Returns the bit width of the secure sum of histograms, and its uplink.

  Args:
    num_classes: K.
    max_count: The largest count in any client's bin, public; fixes the bit width.
    max_clients: The largest number of clients summed, to prove that int64 cannot overflow.
    protection: What flipped the labels of the histograms; None for the upper bound of the paper's
      table 4, which is declared as what it is.

  Raises:
    ValueError: If the sum could overflow, or would hide no one: a sum over one client is that
      client's histogram.
  """
  if max_clients < 2:
    raise ValueError(
        f'label communication needs at least 2 clients, got {max_clients}: a sum over one client '
        'shows its histogram'
    )
  if max_count < 1 or max_count * max_clients >= 2**62:
    raise ValueError(f'max_count must be positive and its sum below 2**62, got {max_count}')
  histogram_type = tff.TensorType(np.int64, (num_classes,))
  bitwidth = int(max_count).bit_length()
  fields = (
      uplink.UplinkField(
          name='label histogram',
          type_spec=str(histogram_type),
          intrinsic=disclosure.SECURE_SUM,
          disclosure=(
              uplink.Disclosure.DP_SECURE_SUM if protection else uplink.Disclosure.SECURE_SUM
          ),
          lower=0,
          upper=2**bitwidth - 1,
          reason='the distribution that contrastive labels are drawn from',
          num_bytes=uplink.num_bytes(histogram_type),
          protection=protection,
          bitwidth=bitwidth,
      ),
  )
  return bitwidth, fields


def build_label_communication(
    num_classes: int,
    *,
    max_count: int,
    max_clients: int,
    protection: protection_lib.LabelReports | None,
) -> tuple[tff.Computation, tuple[uplink.UplinkField, ...]]:
  """Returns `({int64[K]}@CLIENTS -> int64[K]@SERVER)`, a secure sum, and its uplink.

  Args and errors are those of `declare`.
  """
  bitwidth, fields = declare(
      num_classes, max_count=max_count, max_clients=max_clients, protection=protection
  )
  histogram_type = tff.TensorType(np.int64, (num_classes,))

  @tff.federated_computation(tff.FederatedType(histogram_type, tff.CLIENTS))
  def label_communication(histograms):
    return tff.federated_secure_sum_bitwidth(histograms, bitwidth)

  disclosure.check(label_communication, fields)
  return label_communication, fields


def check_histograms(histograms: Sequence[np.ndarray], field: uplink.UplinkField) -> None:
  """Refuses what TFF would sum to something else, or not at all.

  Args:
    histograms: int64 `[K]` of each client.
    field: What was declared of them.

  Raises:
    ValueError: If one of them is no histogram of int64, has a negative count (which TFF takes) or
      one beyond the declared bound.
  """
  for client, counts in enumerate(histograms):
    if counts.dtype != np.int64 or str(tff.TensorType(np.int64, counts.shape)) != field.type_spec:
      raise ValueError(
          f'client {client}: expected {field.type_spec}, got {counts.dtype}{list(counts.shape)}'
      )
    if counts.min() < field.lower or counts.max() > field.upper:
      raise ValueError(
          f'client {client}: counts must be in {field.lower} to {field.upper}, found '
          f'{counts.min()} to {counts.max()}'
      )
