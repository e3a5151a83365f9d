"""Label reports made inside the client's TFF computation: randomised response as TensorFlow ops.

`mechanism.flip_labels` runs where the driver of a simulation holds every label. Where labels exist
on the clients alone, the flip has to be part of what TFF sends there. Both forms are the same
mechanism, the integer table of `mechanism.RandomizedResponse` and its rule, each with one memoised
report for every example. They rest on different randomness, so an example's report differs between
them, and asking for both would be two releases:

* In the driver: HMAC-SHA256 under one key for all clients. In a simulation the key is a function of
  the seed, and no privacy is claimed.
* In the client: Threefry-2x64 with 20 rounds (Salmon, Moraes, Dror, Shaw 2011) under the client's
  own 128-bit secret. On a device these are 16 bytes of `secrets.token_bytes`, drawn once, kept for
  as long as the examples and never sent. In a simulation they are `simulation_secret`, a function
  of the seed, and no privacy is claimed. Threefry is Threefish, the cipher in Skein, with smaller
  words and fewer rounds. Its authors claim statistical quality, not cryptographic strength: that
  reports cannot be predicted without the secret is an assumption, and a stronger one than for HMAC.

`tf.random` does not do it. Its CPU kernels know Philox only and answer `alg='threefry'` with an
error outside of XLA, its keys have 64 bits, and one call has one counter, not one for each example.
So the 20 rounds are written out here, over all examples at once.
"""

import collections
import hashlib

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import rng
from tff_noise import types
from tff_noise.federated import disclosure
from tff_noise.federated import label_communication
from tff_noise.federated import uplink
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.privacy import protection as protection_lib

# Threefry-2x64: C240 of Skein 1.3, and by how many bits round r mod 8 rotates.
_PARITY = 0x1BD11BDAA9FC1A22
_ROTATIONS = (16, 42, 12, 31, 16, 32, 24, 21)
_ROUNDS = 20
# Of the 64 bits of a word, `mechanism.RandomizedResponse` takes the top 62.
_DROPPED_BITS = 2


def simulation_secret(seed: int, client: int) -> np.ndarray:
  """Returns int64 `[2]`, a client's secret in a simulation: whoever knows the seed knows it too."""
  secret = rng.key(seed, 'label report secret', client)[:16]
  return np.frombuffer(secret, '<i8').astype(np.int64)


def threefry(
    key: tf.Tensor, counter: tuple[tf.Tensor, tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
  """Encrypts counters by Threefry-2x64-20, a permutation of 128 bits for each key.

  Args:
    key: uint64 `[2]`.
    counter: Two uint64 `[n]`; either may be a scalar.

  Returns:
    Two uint64 `[n]`.
  """
  schedule = (key[0], key[1], _xor(_xor(key[0], key[1]), _uint64(_PARITY)))
  x, y = counter[0] + schedule[0], counter[1] + schedule[1]
  for r in range(_ROUNDS):
    x += y
    y = _xor(_rotate(y, _ROTATIONS[r % 8]), x)
    if r % 4 == 3:
      injection = (r + 1) // 4
      x += schedule[injection % 3]
      y += schedule[(injection + 1) % 3] + _uint64(injection)
  return x, y


def _uint64(value: int) -> tf.Tensor:
  return tf.constant(value, tf.uint64)


def _xor(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
  return tf.bitwise.bitwise_xor(a, b)


def _rotate(x: tf.Tensor, bits: int) -> tf.Tensor:
  left = tf.bitwise.left_shift(x, _uint64(bits))
  return tf.bitwise.bitwise_or(left, tf.bitwise.right_shift(x, _uint64(64 - bits)))


def draw(
    example_ids: tf.Tensor, secret: tf.Tensor, mechanism: mechanism_lib.RandomizedResponse
) -> tf.Tensor:
  """Returns each example's random number, a function of its id, the secret and the table alone.

  The secret is the cipher's whole key. The id is one half of the block, so that two ids never have
  the same block; the table is the other half, so that another epsilon has numbers of its own.

  Args:
    example_ids: int64 `[n]`, any values.
    secret: int64 `[2]`, the client's.
    mechanism: The mechanism.

  Returns:
    int64 `[n]` in `[0, 2**62)`.
  """
  purpose = f'label report v1 K={mechanism.num_classes} B={mechanism.other}'
  digest = hashlib.sha256(purpose.encode()).digest()
  word, _ = threefry(
      tf.bitcast(secret, tf.uint64),
      (tf.bitcast(example_ids, tf.uint64), _uint64(int.from_bytes(digest[:8], 'big'))),
  )
  return tf.bitcast(tf.bitwise.right_shift(word, _uint64(_DROPPED_BITS)), tf.int64)


def respond(
    labels: tf.Tensor, numbers: tf.Tensor, mechanism: mechanism_lib.RandomizedResponse
) -> tf.Tensor:
  """Returns the report of each label at its random number: `mechanism.respond`, as tensors.

  Args:
    labels: int32 `[n]` in `[0, K)`.
    numbers: int64 `[n]` in `[0, 2**62)`.
    mechanism: The mechanism.

  Returns:
    int32 `[n]` in `[0, K)`.
  """
  # Exact: all in int64, where 2**62 fits. Below `keep` the quotient is negative and not used.
  keep = tf.constant(mechanism.keep, tf.int64)
  others = (numbers - keep) // tf.constant(mechanism.other, tf.int64)
  others = tf.cast(others, tf.int32)
  others += tf.cast(others >= labels, tf.int32)
  return tf.where(numbers < keep, labels, others)


def _checks(labels, example_ids, secret, num_classes):
  """Returns assertions on one client's data; their messages must not carry any of it."""
  count = tf.size(example_ids)
  conditions = {
      'needs one id for each label': tf.equal(tf.size(labels), count),
      f'labels must be in 0 to {num_classes - 1}': tf.reduce_all(
          (labels >= 0) & (labels < num_classes)
      ),
      'ids must be distinct: equal ones would share their randomness': tf.equal(
          tf.size(tf.unique(example_ids).y), count
      ),
      'the secret must not be zero: it was never drawn': tf.reduce_any(tf.not_equal(secret, 0)),
  }
  return [
      tf.debugging.Assert(condition, [f'label reports: {message}'])
      for message, condition in conditions.items()
  ]


def flip(
    labels: tf.Tensor,
    example_ids: tf.Tensor,
    secret: tf.Tensor,
    mechanism: mechanism_lib.RandomizedResponse,
) -> tf.Tensor:
  """Returns the report of each label, the same however often, in whatever batch it is asked for.

  As of `mechanism.flip_labels`, an example whose label was changed must not be asked again.

  Args:
    labels: int32 `[n]` in `[0, K)`.
    example_ids: int64 `[n]`, distinct within the client.
    secret: int64 `[2]`, the client's own 128 bits; not zero.
    mechanism: The mechanism.

  Returns:
    int32 `[n]` in `[0, K)`.

  Raises:
    tf.errors.InvalidArgumentError: When run, if labels, ids or secret are not as above. The message
      does not contain them: errors of clients go to the server.
  """
  # Explicit dependencies hold in graphs without automatic ones too.
  with tf.control_dependencies(_checks(labels, example_ids, secret, mechanism.num_classes)):
    return respond(labels, draw(example_ids, secret, mechanism), mechanism)


def build_client_label_communication(
    num_classes: int,
    *,
    max_count: int,
    max_clients: int,
    mechanism: mechanism_lib.RandomizedResponse,
    protection: protection_lib.LabelReports,
) -> tuple[tff.Computation, tuple[uplink.UplinkField, ...]]:
  """Returns label communication whose clients flip, and its uplink.

  `({<y=int32[?],example_id=int64[?],secret=int64[2]>}@CLIENTS -> int64[K]@SERVER)`: each client
  flips, counts its reports, and the counts are summed securely, over the same edge and with the
  same declaration as in `label_communication`.

  That raw labels do not enter is not a fact of this type: labels and secret are the clients'
  argument. Instead
  * `disclosure.check` shows that nothing but one secure sum of int64 `[K]` leaves a client, and
  * `empirical_audit.audit` of `flip`, the very operations that are in the client's graph here,
    finds that reports are distributed, memoised and independent as the mechanism is declared.
  Neither shows that the counts are of the reports; that is `_client_histogram`, to be read and
  tested. Nor does any of it show that secrets are secret, or drawn for each client: that is up to
  whoever supplies the clients' data.

  Args:
    num_classes: K.
    max_count: The largest count in any client's bin, public; fixes the bit width. Flips can put all
      of a client's examples into one bin: the largest number of examples.
    max_clients: The largest number of clients summed, to prove that int64 cannot overflow.
    mechanism: The mechanism.
    protection: The declaration of the same mechanism.

  Raises:
    ValueError: If the mechanism is for another K or is not the one that is declared, if the sum
      could overflow, or if it would hide no one.
  """
  if mechanism.num_classes != num_classes:
    raise ValueError(
        f'expected a mechanism for {num_classes} classes, got one for {mechanism.num_classes}'
    )
  if protection is None or _table(protection.mechanism) != _table(mechanism):
    raise ValueError(f'labels are flipped by {mechanism}, but declared is {protection}')
  bitwidth, fields = label_communication.declare(
      num_classes, max_count=max_count, max_clients=max_clients, protection=protection
  )
  client_type = tff.to_type(
      collections.OrderedDict(
          y=tff.TensorType(np.int32, (None,)),
          example_id=tff.TensorType(np.int64, (None,)),
          secret=tff.TensorType(np.int64, (2,)),
      )
  )

  @tff.tensorflow.computation(client_type)
  def client_histogram(data):
    return _client_histogram(data, mechanism)

  @tff.federated_computation(tff.FederatedType(client_type, tff.CLIENTS))
  def client_label_communication(data):
    histograms = tff.federated_map(client_histogram, data)
    return tff.federated_secure_sum_bitwidth(histograms, bitwidth)

  disclosure.check(client_label_communication, fields)
  return client_label_communication, fields


def _table(mechanism: mechanism_lib.RandomizedResponse) -> tuple[int, int, int]:
  # Without the text of epsilon: '0.81' and '0.810' are one mechanism.
  return mechanism.num_classes, mechanism.keep, mechanism.other


def _client_histogram(data, mechanism):
  """Returns int64 `[K]`, the count of each report of one client."""

  @tf.function(autograph=False)
  def run(labels, example_ids, secret):
    reports = flip(labels, example_ids, secret, mechanism)
    ones = tf.ones_like(reports, tf.int64)
    return tf.math.unsorted_segment_sum(ones, reports, mechanism.num_classes)

  return run(data['y'], data['example_id'], data['secret'])


def client_labels(federation: types.Federation, client: int) -> collections.OrderedDict:
  """Returns what a client of a simulation puts into the communication.

  On a device all of it is its own, and no driver sees it.

  Args:
    federation: The clients.
    client: Id of one of them.
  """
  examples = federation.clients[client]
  return collections.OrderedDict(
      y=examples.y.astype(np.int32),
      example_id=examples.example_id.astype(np.int64),
      secret=simulation_secret(federation.seed, client),
  )
