"""What a trained model tells about single labels: canaries.

Canaries are examples that are inserted with a random one of two wrong labels; the trained model is
asked which (Steinke, Nasr and Jagielski 2023). A model that cannot tell proves nothing; one that
can bounds its epsilon from below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tff_noise import rng
from tff_noise import types
from tff_noise.audit import arms as arms_lib
from tff_noise.audit import lower_bounds
from tff_noise.privacy import protection

# Of the canaries, how many are guessed: fixed before the model is asked.
_SHARE = 0.5
# Probability of a bound above the true epsilon, at most, for each arm.
_ALPHA = 0.05
_DELTA = 1e-5


class Canaries(NamedTuple):
  """Examples that are inserted with one of two wrong labels each.

  Attributes:
    x: uint8 `[m, ...]`.
    pairs: int32 `[m, 2]`, different wrong labels in random order.
    bits: int `[m]`, which label of the pair is inserted: independent coins.
    client: int `[m]`, who gets it.
  """

  x: np.ndarray
  pairs: np.ndarray
  bits: np.ndarray
  client: np.ndarray

  @property
  def y(self) -> np.ndarray:
    """int32 `[m]`, the inserted labels."""
    return self.pairs[np.arange(len(self.bits)), self.bits]


def draw(examples: types.Examples, num_classes: int, num_clients: int, seed: int) -> Canaries:
  """Makes canaries of examples with true labels; clients get equally many, but for a remainder.

  Args:
    examples: m of them, of which no client holds any.
    num_classes: K, at least 3.
    num_clients: C.
    seed: Of the pairs, the bits and the owners.

  Raises:
    ValueError: If there are not two wrong labels.
  """
  if num_classes < 3:
    raise ValueError(f'canaries need two wrong labels, there are {num_classes} classes')
  generator = rng.generator(seed, 'audit: canaries')
  m = len(examples.y)
  # The true label, and two steps from it around the circle of labels: never back to it.
  steps = 1 + np.argsort(generator.random((m, num_classes - 1)), axis=1)[:, :2]
  return Canaries(
      x=examples.x,
      pairs=((examples.y[:, np.newaxis] + steps) % num_classes).astype(np.int32),
      bits=generator.integers(0, 2, m),
      client=generator.permutation(np.arange(m) % num_clients),
  )


def insert(federation: types.Federation, canaries: Canaries) -> types.Federation:
  """Returns the federation whose clients hold the canaries too, under ids that nobody has."""
  first = 1 + max(int(c.example_id.max(initial=-1)) for c in federation.clients)
  ids, clients = first + np.arange(len(canaries.bits)), []
  for i, c in enumerate(federation.clients):
    own = canaries.client == i
    clients.append(
        types.ClientExamples(
            np.concatenate([c.x, canaries.x[own]]),
            np.concatenate([c.y, canaries.y[own]]),
            np.concatenate([c.example_id, ids[own]]),
        )
    )
  return federation._replace(clients=tuple(clients))


def guess(logits: np.ndarray, canaries: Canaries, share: float) -> tuple[int, int]:
  """Guesses which label of each pair was inserted: the one of lesser loss.

  Only where the losses differ most: how many are guessed is fixed beforehand, which ones may depend
  on the model.

  Args:
    logits: float `[m, K]`, of the trained model on the canaries' images.
    canaries: m of them.
    share: Of the canaries that are guessed, in (0, 1].

  Returns:
    The number of guesses and how many are correct.

  Raises:
    ValueError: If the share is out of range.
  """
  if not 0 < share <= 1:
    raise ValueError(f'share must be in (0, 1], got {share}')
  both = np.take_along_axis(np.asarray(logits), canaries.pairs, axis=1)
  margin = both[:, 1] - both[:, 0]
  guessed = np.argsort(-np.abs(margin), kind='stable')[: round(share * len(margin))]
  correct = (margin[guessed] > 0) == (canaries.bits[guessed] == 1)
  return len(guessed), int(correct.sum())


class CanaryRow(NamedTuple):
  """What canaries found of one arm.

  Attributes:
    arm: How the model was trained.
    rounds: R.
    canaries: m.
    guesses: Bits guessed.
    correct: Of which correctly.
    bound: Lower bound of the epsilon of one label at confidence 0.95. 0 is no evidence.
    claim: What the run's releases cost one label, with delta 1e-5 of DP-FedAvg; infinite without a
      guarantee.
    accuracy: Of the model, on clean images that are no canaries.
  """

  arm: arms_lib.Arm
  rounds: int
  canaries: int
  guesses: int
  correct: int
  bound: float
  claim: float
  accuracy: float

  @property
  def verdict(self) -> str:
    """What may be concluded; never that there is privacy."""
    if self.bound > self.claim:
      return 'claim refuted'
    return 'no evidence' if self.bound == 0 else f'epsilon is at least {self.bound:.2f}'


ARMS = (
    arms_lib.Arm('fedavg'),
    arms_lib.Arm('feddpcont'),
    arms_lib.Arm('fedtally'),
    *(arms_lib.Arm('fedavg', noise=z) for z in arms_lib.NOISES),
    arms_lib.Arm('fedavg', epsilon=arms_lib.EPSILON),
    arms_lib.Arm('feddpcont', epsilon=arms_lib.EPSILON),
    arms_lib.Arm('fedtally', epsilon=arms_lib.EPSILON),
)


def canary_exposure(
    seed: int,
    *,
    arms: Sequence[arms_lib.Arm] = ARMS,
    rounds: int = 30,
    canaries: int = 200,
) -> tuple[CanaryRow, ...]:
  """Trains the default job with canaries and asks the model for their labels.

  Canaries are held-out images of the digits, in equal numbers with every client; half of them are
  guessed. The bound is that of one run (`lower_bounds.one_run_lower_bound`), for replacing the
  label of one example; so it bounds from below the epsilon of a whole client too. Call it in a
  runtime: `runtimes.local.runtime`.

  Args:
    seed: Of everything.
    arms: How to train.
    rounds: R.
    canaries: m, below 397.
  """
  dataset = arms_lib.digits()
  inserted = draw(
      types.Examples(dataset.test_x[:canaries], dataset.test_y[:canaries]),
      dataset.num_classes, arms_lib.CLIENTS, seed,
  )
  federation = insert(arms_lib.draw_federation(dataset, seed), inserted)
  scene = arms_lib.exchange_labels(dataset, federation)
  return tuple(_expose(arm, scene, inserted, rounds, seed) for arm in arms)


def _expose(arm, scene, canaries, rounds, seed):
  job = arms_lib.prepare(arm, scene, seed)
  weights = job.process.get_model_weights(job.train(rounds, seed))
  guesses, correct = guess(job.logits(weights, canaries.x), canaries, _SHARE)
  m = len(canaries.bits)
  claim = protection.total(
      {field.protection: rounds for field in job.fields}, protection.Unit.LABEL, _DELTA
  )
  bound = lower_bounds.one_run_lower_bound(
      guesses, correct, _ALPHA, delta=0.0 if arm.noise is None else _DELTA, examples=m
  )
  predicted = job.logits(weights, scene.dataset.test_x[m:]).argmax(axis=1)
  accuracy = float((predicted == scene.dataset.test_y[m:]).mean())
  return CanaryRow(arm, rounds, m, guesses, correct, bound, claim.epsilon, accuracy)
