"""The noisy sum of a run's own code as a black box that is fed worst-case records.

What is asked is the aggregation that the code compiles for the run's model, cohort and flags. It
sees clients' records through its claim alone: whatever clients send, one of them moves the sum by
at most S, and noise of the claimed standard deviation is on every entry, anew in every round; of a
tree of sums over rounds, on every node. That this is the sum that the run's own computation makes
the next model of is tried where it can be known: with clients that have nothing to send.
"""

import collections
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import types
from tff_noise.audit import finding
from tff_noise.clients import program as program_lib
from tff_noise.data import client_data
from tff_noise.federated import aggregation
from tff_noise.federated import computation as computation_lib
from tff_noise.federated import optimizer as optimizer_lib
from tff_noise.federated import processes
from tff_noise.federated import task as task_lib
from tff_noise.privacy import discrete_gaussian
from tff_noise.privacy import ledger
from tff_noise.privacy import protection
from tff_noise.privacy import tree
from tff_noise.program import task as program_task
from tff_noise.program import training
from tff_noise.uplink import uplink

_CLIP = 'noisy sum: no record moves it by more than the clipping norm'
_DEVIATION = 'noisy sum: the noise is not less than claimed'
_USED = "noisy sum: the run's own computation makes its next model of this sum"
_COUNTS = 'noisy sum: every round of the ledger has noise of its own'
_INDEPENDENCE = 'noisy sum: the noise of rounds, entries and clients is independent'
# At most so many noises are drawn, but in two rounds at least; of a tree in four, of which one node
# takes in two; and in more where an entry was the same in all of them.
_SAMPLES, _ROUNDS = 200_000, 16
_FEWEST_ROUNDS, _FEWEST_OF_TREE = 2, 4
# Of any false alarm of one test.
_ALPHA = 1e-6
# Quantisation by a secure sum, and float32.
_ROUNDING = 1e-3


class Claim(NamedTuple):
  """What is claimed of a noisy sum.

  Attributes:
    clip: S, the norm that each record is cut to, positive.
    deviation: Standard deviation of the noise on the sum, positive.
    cohort: Clients in a round, by which the sum is divided.
    in_tree: Whether that is the noise of the nodes of `privacy.tree`, and not of the sums.
  """

  clip: float
  deviation: float
  cohort: int
  in_tree: bool = False

  def noise(self, sums: np.ndarray) -> np.ndarray:
    """Returns float64 `[rounds, d]`, what should be independent of the sums of the first rounds."""
    return tree.nodes(sums) if self.in_tree else sums


# From the round (0 the first) and each client's record, float32 `[d]`, to the noisy sum, `[d]`.
NoisySum = Callable[[int, Sequence[np.ndarray]], np.ndarray]


def findings(prepared: program_task.Prepared) -> list[finding.Finding]:
  """Tests the aggregation of a run that has noise; nothing for one that has none.

  Needs a TFF runtime.
  """
  noisy = [c for c in prepared.algorithm.used if c.is_noisy]
  if not noisy:
    return []
  (computation,) = noisy  # `prepare` takes no more.
  task, value_type = prepared.task, computation.update_type
  claim = claim_of(task.aggregation.protection, uplink.num_entries(value_type))
  ask, size = compiled(task.aggregation, value_type, claim)
  return [*check(ask, size, claim), used(computation, task, prepared.federation, claim.cohort)]


def used(
    computation: computation_lib.Computation,
    task: task_lib.Task,
    federation: types.Federation,
    cohort: int,
) -> finding.Finding:
  """Compares models that a computation makes of noise alone with those of the task's noisy sum.

  Args:
    computation: Adds noise.
    task: What it was built from.
    federation: Whose clients take part, without their examples.
    cohort: How many do.
  """
  clients = [
      client_data.client_dataset(c.x[:0], c.y[:0], i)
      for i, c in enumerate(federation.clients[:cohort])
  ]
  args = [clients]
  if isinstance(computation.process, processes.StatefulProcess):
    args.append([_input_of_nobody(computation)] * cohort)
  noise_of = _models_of_noise(computation, task, cohort)
  state = computation.process.initialize()
  for round_num in range(1, _FEWEST_OF_TREE + 1):
    expected = noise_of(state)
    state = computation.next(state, *args).state
    # Sums of floats may be taken in another order.
    if not all(
        np.allclose(now, then, rtol=1e-5, atol=1e-7)
        for now, then in zip(
            tf.nest.flatten(state.global_model_weights), tf.nest.flatten(expected), strict=True
        )
    ):
      return finding.failed(
          _USED, f'the model of round {round_num} of clients without examples is another'
      )
  return finding.passed(_USED, f'{_FEWEST_OF_TREE} rounds of clients without examples')


def _input_of_nobody(computation):
  messages = {m.name: np.zeros(m.shape, m.dtype) for m in computation.declared.messages}
  own = computation.initial_input(np.zeros(0, np.int32)).own
  return uplink.ClientInput(own, program_lib.in_order(messages))


def _models_of_noise(computation, task, cohort):
  """From the state of a round, in order, to the model that the next should have."""
  server, update_type = computation.optimizer.server, computation.update_type
  beside = list(_beside(task.aggregation, cohort))
  mean = task.aggregation.update.create(update_type, tff.TensorType(beside[0].dtype.type))
  zeros = [_zeros(update_type)] * cohort
  state_type = computation.process.initialize.type_signature.result.member

  @tff.tensorflow.computation(
      state_type.finalizer, state_type.global_model_weights, update_type
  )
  def step(server_state, weights, update):
    inputs = optimizer_lib.ServerInputs(weights, update, collections.OrderedDict())
    return server.next(server_state, inputs)[1]

  aggregator = mean.initialize()

  def model(state):
    nonlocal aggregator
    noise = mean.next(aggregator, zeros, beside)
    aggregator = noise.state
    return step(state.finalizer, state.global_model_weights, noise.result)

  return model


def _beside(aggregate, cohort):
  """What goes with each client's value."""
  if aggregate.by_client:
    return np.arange(cohort, dtype=np.int32)  # Ids, by which shares of the noise are drawn.
  return np.ones(cohort, np.float32)


def _zeros(value_type):
  return tff.types.structure_from_tensor_type_tree(
      lambda t: np.zeros(t.shape, t.dtype), value_type
  )


def counted(
    prepared: program_task.Prepared,
    entries: Sequence[ledger.Entry],
    states: Sequence[training.ProgramState],
) -> list[finding.Finding]:
  """Compares how often checkpoints say that noise was drawn with the ledger of a run that has some.

  Needs a TFF runtime.

  Args:
    prepared: The run's method.
    entries: Of the run's ledger.
    states: The run's checkpoints.
  """
  algorithm = prepared.algorithm
  noisy = [c for c in algorithm.used if c.is_noisy]
  if not noisy:
    return []
  if not states:
    return [finding.no_evidence(_COUNTS, 'there is no checkpoint')]
  (drew,) = noisy
  first = drew.process.initialize().aggregator
  sent = {algorithm.fields.index(f) for f in drew.fields}
  for state in states:
    done = state.round_num
    count = aggregation.rounds_of_noise(first, state.aggregators[drew.name])
    # What other code released again is of the same rounds.
    released = len({e.round_num for e in entries if e.round_num <= done and sent & {*e.fields}})
    if count != released:
      counts = 'is of another noise' if count is None else f'counts {count}'
      return [finding.failed(
          _COUNTS, f'the checkpoint of round {done} {counts}, the ledger has {released}'
      )]
  return [finding.passed(_COUNTS, f'{len(states)} checkpoints')]


def claim_of(noisy_sum: protection.NoisySum, size: int) -> Claim:
  """Returns what a protection claims of the sum of records of d entries.

  Discrete noise is measured against the norm after rounding, which is a little larger than S.
  """
  if noisy_sum.mechanism != protection.DISCRETE_GAUSSIAN:
    return Claim(
        noisy_sum.clip, noisy_sum.noise_multiplier * noisy_sum.clip, noisy_sum.cohort,
        in_tree=noisy_sum.mechanism == protection.TREE,
    )
  grid = discrete_gaussian.grid(noisy_sum.noise_multiplier, size, noisy_sum.cohort)
  step = noisy_sum.clip / grid.steps
  return Claim(
      step * math.sqrt(grid.norm_squared), step * math.sqrt(noisy_sum.cohort * grid.variance),
      noisy_sum.cohort,
  )


def compiled(
    aggregate: aggregation.Aggregation, value_type: tff.Type, claim: Claim
) -> tuple[NoisySum, int]:
  """Returns the sum that an aggregation compiles to, and d."""
  beside = _beside(aggregate, claim.cohort)
  process = aggregate.update.create(value_type, tff.TensorType(beside.dtype.type))
  like = _zeros(value_type)
  shapes = [np.shape(part) for part in tf.nest.flatten(like)]
  sizes = [math.prod(shape) for shape in shapes]
  states = [process.initialize()]
  zeros = [like] * claim.cohort

  def structured(record):
    parts = np.split(record.astype(np.float32), np.cumsum(sizes)[:-1])
    parts = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    return tf.nest.pack_sequence_as(like, parts)

  def ask(round_num, records):
    weights = list(beside)
    while len(states) <= round_num:
      states.append(process.next(states[-1], zeros, weights).state)
    output = process.next(states[round_num], [structured(r) for r in records], weights)
    parts = [np.ravel(np.asarray(p, np.float64)) for p in tf.nest.flatten(output.result)]
    return np.concatenate(parts) * claim.cohort

  return ask, sum(sizes)


def check(ask: NoisySum, size: int, claim: Claim) -> list[finding.Finding]:
  """Holds a noisy sum against its claim.

  Args:
    ask: The sum.
    size: d, entries of a record.
    claim: What is claimed of it.
  """
  fewest = _FEWEST_OF_TREE if claim.in_tree else _FEWEST_ROUNDS
  rounds = min(_ROUNDS, max(fewest, _SAMPLES // size))
  zeros = [np.zeros(size, np.float32)] * claim.cohort
  sums = [ask(i, zeros) for i in range(rounds)]
  # Of many entries some are the same in two rounds by chance; hardly one is in sixteen.
  while len(sums) < _ROUNDS and not np.ptp(claim.noise(np.stack(sums)), axis=0).all():
    sums.append(ask(len(sums), zeros))
  noise = claim.noise(np.stack(sums))
  return [
      _clip(ask, noise, claim), _deviation(noise, claim), _independence(ask, noise, claim)
  ]


def _records(size, clip):
  """Records of one client that try to get past the clip, by what they are."""
  spike = np.zeros(size, np.float32)
  spike[-1] = 1e6 * clip
  draw = np.random.default_rng()
  return {
      'a thousand times the norm, everywhere': np.full(size, 1e3 * clip / math.sqrt(size)),
      'one huge entry': spike,
      'squares beyond float32': np.full(size, 1e20, np.float32),
      'large and random': draw.normal(size=size) * 1e4 * clip,
      'just above the norm': np.full(size, -1.01 * clip / math.sqrt(size)),
  }


def _clip(ask, noise, claim):
  """One client of the cohort sends the record, first, last, or all of them do."""
  size = noise.shape[1]
  # Where noise is a function of the round, as for a seed, nothing of it is left in a difference.
  again = ask(0, [np.zeros(size, np.float32)] * claim.cohort)
  fresh = 0.0 if np.array_equal(again, noise[0]) else math.sqrt(2) * claim.deviation
  slack = _ROUNDING * claim.clip * claim.cohort + _quantile(_ALPHA / 12) * fresh
  for what, record in _records(size, claim.clip).items():
    direction = record / np.linalg.norm(record.astype(np.float64))
    for senders in ((0,), (claim.cohort - 1,), tuple(range(claim.cohort))):
      records = [np.zeros(size, np.float32)] * claim.cohort
      for i in senders:
        records[i] = record
      moved = float((ask(0, records) - noise[0]) @ direction)
      if not moved <= len(senders) * claim.clip + slack:  # Also where it is not a number.
        return finding.failed(
            _CLIP, f'{len(senders)} of {claim.cohort} clients that send a record ({what}) move it '
            f'by {moved:.4g}, at clip {claim.clip:g}'
        )
  return finding.passed(_CLIP, f'no client moves it by more than the clip, {claim.clip:g}')


def _deviation(noise, claim):
  """The sum of squares has a chi-squared distribution, for thousands of them near a normal."""
  n = noise.size
  measured = math.sqrt(float(np.mean(noise**2)))
  least = claim.deviation * (1 - _quantile(_ALPHA) / math.sqrt(2 * n) - _ROUNDING)
  by_entry = np.ptp(noise, axis=0)
  without = int((by_entry == 0).sum())
  if without:
    return finding.failed(_DEVIATION, f'{without} of {len(by_entry)} entries have no noise')
  if not measured >= least:
    return finding.failed(
        _DEVIATION, f'{measured:.5g} over {n} draws, claimed {claim.deviation:.5g}'
    )
  # A deviation that is right on the whole may be wrong in places.
  scale = np.sqrt(np.mean(noise**2, axis=1)) / claim.deviation
  bound = 1 - _quantile(_ALPHA / len(scale)) / math.sqrt(2 * noise.shape[1]) - _ROUNDING
  if scale.min() < bound:
    return finding.failed(_DEVIATION, f'{scale.min() * claim.deviation:.5g} in one round')
  where = ' of nodes of the tree' if claim.in_tree else ''
  lack = 1 - least / claim.deviation
  # Not what was measured: seeds could be tried until the noise of one has it.
  return finding.passed(
      _DEVIATION, f'{n} draws{where}, claimed {claim.deviation:.5g}; a lack of {lack:.1%} fails'
  )


def _independence(ask, noise, claim):
  rounds, size = noise.shape
  unit = noise / np.linalg.norm(noise, axis=1, keepdims=True)
  pairs = list(itertools.combinations(range(rounds), 2))
  bound = _quantile(_ALPHA / len(pairs) / 2) / math.sqrt(size)
  for a, b in pairs:
    correlation = float(unit[a] @ unit[b])
    if abs(correlation) > max(bound, 0) and size > 30:
      return finding.failed(
          _INDEPENDENCE, f'the noise of rounds {a + 1} and {b + 1} has correlation '
          f'{correlation:.3f}'
      )
  lag, correlation = _largest_lag(noise)
  if abs(correlation) > _quantile(_ALPHA / size / 2) / math.sqrt(noise.size):
    return finding.failed(
        _INDEPENDENCE, f'entries {lag} apart have correlation {correlation:.3f}'
    )
  moved = _with_other_records(ask, noise, claim)
  if moved:
    return finding.failed(_INDEPENDENCE, moved)
  return finding.passed(
      _INDEPENDENCE, f'{len(pairs)} pairs of rounds, {size - 1} lags of entries, other clients'
  )


def _largest_lag(noise):
  """The lag between entries with the largest correlation over all rounds."""
  rounds, size = noise.shape
  spectrum = np.fft.rfft(noise, 2 * size, axis=1)
  products = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, 1:size].sum(axis=0)
  # The fewer pairs a lag has, the less its sum says: all are held against the same bound.
  correlations = products / math.sqrt(rounds * size) / np.mean(noise**2) / math.sqrt(rounds * size)
  lag = int(np.argmax(np.abs(correlations)))
  return lag + 1, float(correlations[lag])


def _with_other_records(ask, noise, claim):
  """The noise must not depend on what clients send, but for their sum."""
  size = noise.shape[1]
  # Two clients that cancel: their sum is that of zeros.
  record = np.full(size, 0.5 * claim.clip / math.sqrt(size), np.float32)
  zeros = [np.zeros(size, np.float32)] * (claim.cohort - 2)
  if claim.cohort < 2:
    return ''
  # That of the first round is its own node.
  other = claim.noise(np.stack([noise[0], ask(1, [record, -record, *zeros])]))[1]
  measured = math.sqrt(float(np.mean(other**2)))
  least = 1 - _quantile(_ALPHA) / math.sqrt(2 * size) - _ROUNDING
  if measured < least * claim.deviation:
    return f'where two clients cancel, the deviation is {measured:.5g}'
  same = float(other @ noise[0]) / np.linalg.norm(other) / np.linalg.norm(noise[0])
  if size > 30 and abs(same) > _quantile(_ALPHA / 2) / math.sqrt(size):
    return f'where clients send others, two rounds have correlation {same:.3f}'
  return ''


def _quantile(alpha):
  """How many standard deviations a normal number exceeds with probability `alpha`, at most."""
  return math.sqrt(2 * math.log(1 / alpha))
