"""Label communication: the one computation through which labels leave a client, as a sum of flips.

Each client flips its labels, counts its reports, and the counts are summed securely. It is separate
from training, so nothing can be added to it unseen.

The flip is `privacy.mechanism`'s, to the bit, as TensorFlow operations: where labels exist on the
clients alone, it has to be part of what TFF sends there. The rounds of Threefry are written out
here, over all examples at once; why not `tf.random`, what Threefry is and what is assumed of it is
said in `privacy.mechanism`.
"""

import collections
import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import types
from tff_noise.federated import computation
from tff_noise.federated import processes
from tff_noise.federated import task as task_lib
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.privacy import protection as protection_lib
from tff_noise.uplink import disclosure
from tff_noise.uplink import uplink

# Under which the sum is in `Output.sums`.
NAME = 'label_histogram'


def threefry(
    key: tf.Tensor, counter: tuple[tf.Tensor, tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
  """Encrypts counters by Threefry-2x64-20: `mechanism.threefry`, as tensors.

  Args:
    key: uint64 `[2]`.
    counter: Two uint64 `[n]`; one may be a scalar.

  Returns:
    Two uint64 `[n]`.
  """
  schedule = (key[0], key[1], _xor(_xor(key[0], key[1]), _uint64(mechanism_lib.PARITY)))
  x, y = counter[0] + schedule[0], counter[1] + schedule[1]
  for r in range(mechanism_lib.ROUNDS):
    x += y
    y = _xor(_rotate(y, mechanism_lib.ROTATIONS[r % 8]), x)
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
  """Returns each example's random number: `mechanism.draw`, as tensors.

  Args:
    example_ids: int64 `[n]`, any values.
    secret: int64 `[2]`, the client's.
    mechanism: The mechanism.

  Returns:
    int64 `[n]` in `[0, 2**62)`.
  """
  word, _ = threefry(
      tf.bitcast(secret, tf.uint64),
      (tf.bitcast(example_ids, tf.uint64), _uint64(mechanism_lib.table_word(mechanism))),
  )
  number = tf.bitwise.right_shift(word, _uint64(mechanism_lib.DROPPED_BITS))
  return tf.bitcast(number, tf.int64)


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
  keep = tf.constant(mechanism.keep, tf.int64)
  others = (numbers - keep) // tf.constant(mechanism.other, tf.int64)
  others = tf.cast(others, tf.int32)
  others += tf.cast(others >= labels, tf.int32)
  return tf.where(numbers < keep, labels, others)


def flip(
    labels: tf.Tensor,
    example_ids: tf.Tensor,
    secret: tf.Tensor,
    mechanism: mechanism_lib.RandomizedResponse,
) -> tf.Tensor:
  """Returns the report of each label: `mechanism.flip`, as tensors.

  As there, an example whose label was changed must not be asked again.

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
  count = tf.size(example_ids)
  checks = [
      _check_labels(labels, mechanism.num_classes),
      _check(tf.equal(tf.size(labels), count), 'needs one id for each label'),
      _check(
          tf.equal(tf.size(tf.unique(example_ids).y), count),
          'ids must be distinct: equal ones would share their randomness',
      ),
      _check(
          tf.reduce_any(tf.not_equal(secret, 0)),
          'the secret must not be zero: it was never drawn',
      ),
  ]
  # Explicit dependencies hold in graphs without automatic ones too.
  with tf.control_dependencies(checks):
    return respond(labels, draw(example_ids, secret, mechanism), mechanism)


def _check(condition, message):
  """Returns an assertion on one client's data; its message must not carry any of it."""
  return tf.debugging.Assert(condition, [f'label reports: {message}'])


def _check_labels(labels, num_classes):
  return _check(
      tf.reduce_all((labels >= 0) & (labels < num_classes)),
      f'labels must be in 0 to {num_classes - 1}',
  )


# So there is one for each task, by which it is known.
@functools.lru_cache(8)
def build_label_histogram(
    num_classes: int,
    *,
    max_count: int,
    max_clients: int,
    mechanism: mechanism_lib.RandomizedResponse | None,
    protection: protection_lib.LabelReports | None,
) -> tuple[tff.Computation, tuple[uplink.UplinkField, ...]]:
  """Returns label communication, and its uplink.

  `({<y=int32[?],example_id=int64[?],secret=int64[2]>}@CLIENTS -> int64[K]@SERVER)`: each client
  flips, counts its reports, and the counts are summed securely.

  That raw labels do not enter is not a fact of this type: labels and secret are the clients'
  argument. Instead
  * `disclosure.check` shows that nothing but one secure sum of int64 `[K]` leaves a client, and
  * `empirical_audit.audit` of `flip`, the very operations that are in the client's graph here,
    finds that reports are distributed, memoised and independent as the mechanism is declared.
  Neither shows that the counts are of the reports; that is `_histogram`, to be read and tested. Nor
  does any of it show that secrets are secret, or drawn for each client: that is up to whoever
  supplies the clients' data.

  Args:
    num_classes: K.
    max_count: The largest count in any client's bin, public; fixes the bit width. Flips can put all
      of a client's examples into one bin: the largest number of examples.
    max_clients: The largest number of clients summed, to prove that int64 cannot overflow.
    mechanism: What flips. None counts labels as they are and uses neither ids nor secrets: for
      labels that are reports already, or the upper bound of the paper's table 4.
    protection: What is declared to have flipped the labels of the histograms. With a mechanism, the
      same; None for that upper bound, which is declared as what it is.

  Raises:
    ValueError: If the mechanism is for another K or is not the one that is declared, if the sum
      could overflow, or if it would hide no one: a sum over one client is that client's histogram.
  """
  if mechanism is not None:
    _require_declared(mechanism, protection, num_classes)
  if max_clients < 2:
    raise ValueError(
        f'label communication needs at least 2 clients, got {max_clients}: a sum over one client '
        'shows its histogram'
    )
  if max_count < 1 or max_count * max_clients >= 2**62:
    raise ValueError(f'max_count must be positive and its sum below 2**62, got {max_count}')
  fields = _fields(num_classes, max_count, protection)
  bitwidth = fields[0].bitwidth
  client_type = tff.to_type(
      collections.OrderedDict(
          y=tff.TensorType(np.int32, (None,)),
          example_id=tff.TensorType(np.int64, (None,)),
          secret=tff.TensorType(np.int64, (2,)),
      )
  )

  @tff.tensorflow.computation(client_type)
  def client_histogram(data):
    return _histogram(data, num_classes, mechanism)

  @tff.federated_computation(tff.FederatedType(client_type, tff.CLIENTS))
  def label_communication(data):
    histograms = tff.federated_map(client_histogram, data)
    return tff.federated_secure_sum_bitwidth(histograms, bitwidth)

  disclosure.check(label_communication, fields)
  return label_communication, fields


def _fields(num_classes, max_count, protection):
  histogram_type = tff.TensorType(np.int64, (num_classes,))
  bitwidth = int(max_count).bit_length()
  return (
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


def _require_declared(mechanism, protection, num_classes):
  if mechanism.num_classes != num_classes:
    raise ValueError(
        f'expected a mechanism for {num_classes} classes, got one for {mechanism.num_classes}'
    )
  if protection is None or _table(protection.mechanism) != _table(mechanism):
    raise ValueError(f'labels are flipped by {mechanism}, but declared is {protection}')


def _table(mechanism):
  # Without the text of epsilon: '0.81' and '0.810' are one mechanism.
  return mechanism.num_classes, mechanism.keep, mechanism.other


def _histogram(data, num_classes, mechanism):
  """Returns int64 `[K]`, the count of each report of one client."""

  @tf.function(autograph=False)
  def run(labels, example_ids, secret):
    if mechanism is not None:
      labels = flip(labels, example_ids, secret, mechanism)
    # A sum over segments leaves out, silently, labels of no class.
    with tf.control_dependencies([_check_labels(labels, num_classes)]):
      return tf.math.unsorted_segment_sum(tf.ones_like(labels, tf.int64), labels, num_classes)

  return run(data['y'], data['example_id'], data['secret'])


def client_labels(
    federation: types.Federation, client: int, flipped: bool = False
) -> collections.OrderedDict:
  """Returns what a client of a simulation puts into the communication.

  On a device all of it is its own, and no driver sees it.

  Args:
    federation: The clients.
    client: Id of one of them.
    flipped: Whether these labels are reports already: they are not flipped again, and the secret,
      by which that could be undone, is left out.
  """
  examples = federation.clients[client]
  secret = np.zeros(2, np.int64)
  if not flipped:
    secret = mechanism_lib.simulation_secret(federation.seed, client)
  return collections.OrderedDict(
      y=examples.y.astype(np.int32),
      example_id=examples.example_id.astype(np.int64),
      secret=secret,
  )


def is_of_task(asked: computation.Computation, task: task_lib.Task) -> bool:
  """Returns whether a computation is that of `of_task`, itself, and declares what that does.

  What else clients may run on their labels could count them as they are, and look alike.
  """
  own = of_task(task)
  return asked.next is own.next and asked.fields == own.fields


def _protection(task):
  """What protects the labels of the histograms."""
  mechanism = task.label_privacy.mechanism(task.num_classes)
  if mechanism is None:
    return None
  return protection_lib.LabelReports(
      task.num_classes, mechanism.epsilon, num_labels=int(task.client_sizes.sum())
  )


def of_task(task: task_lib.Task) -> computation.Computation:
  """Returns label communication as an algorithm asks for it, as its task says.

  Raises:
    types.UsageError: If there is but one client, whose histogram the sum would show.
  """
  if task.num_clients < 2:
    raise types.UsageError(
        f'label communication needs at least 2 clients, got {task.num_clients} (--clients): a sum '
        'over one hides nothing'
    )
  mechanism = task.label_privacy.mechanism(task.num_classes)
  communicate, fields = build_label_histogram(
      task.num_classes,
      max_count=int(task.client_sizes.max()),
      max_clients=task.num_clients,
      # Labels that are reports already are counted as they are.
      mechanism=None if task.label_privacy.in_training else mechanism,
      protection=_protection(task),
  )
  return computation.Computation(
      'label communication', processes.Collection(communicate), fields,
      on_labels=True, sends_model=False,
  )
