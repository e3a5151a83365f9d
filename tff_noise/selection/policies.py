"""Which clients take part in a round. Plain NumPy, at the server, between computations."""

import numpy as np

from tff_noise import rng


def proportional(
    seed: int, round_num: int, candidates: np.ndarray, sizes: np.ndarray, count: int
) -> np.ndarray:
  """Draws clients without replacement, with probabilities proportional to their examples.

  Args:
    seed: The experiment's seed.
    round_num: 1 in the run's first round.
    candidates: int64, distinct client ids in ascending order.
    sizes: int64 `[C]`, examples of every client, at least 1 each.
    count: How many to draw; all, if there are fewer.

  Returns:
    int64, distinct client ids in ascending order.
  """
  share = sizes[candidates] / sizes[candidates].sum()
  chosen = rng.generator(seed, 'client candidates', round_num).choice(
      len(candidates), min(count, len(candidates)), replace=False, p=share
  )
  return np.sort(candidates[chosen])


def largest(seed: int, round_num: int, clients: np.ndarray, losses: np.ndarray, count: int):
  """Returns the ids of the clients with the `count` largest losses, in ascending order.

  Args:
    seed: The experiment's seed, by which ties are broken.
    round_num: 1 in the run's first round.
    clients: int64 `[d]`, ids.
    losses: float `[d]`; nan counts as the largest of all, as a loss that has overflown does.
    count: How many.
  """
  ticket = rng.generator(seed, 'ties of losses', round_num).permutation(len(clients))
  # Not nan_to_num: it makes infinity, as of clients never heard of, a finite number.
  order = np.lexsort((ticket, -np.where(np.isnan(losses), np.inf, losses)))
  return np.sort(clients[order[:count]])


def poisson(seed: int, round_num: int, num_clients: int, expected: int) -> np.ndarray:
  """Draws each client for the cohort of a round by itself, with the same probability.

  Args:
    seed: The experiment's seed.
    round_num: 1 in the run's first round.
    num_clients: C.
    expected: How many are drawn on average, 1 to C: the probability is expected / C.

  Returns:
    int64, distinct client ids in ascending order; maybe none, maybe all.
  """
  draws = rng.generator(seed, 'poisson client selection', round_num).random(num_clients)
  return np.flatnonzero(draws < expected / num_clients)


def uniform(
    seed: int, round_num: int, candidates: np.ndarray, clients_per_round: int
) -> np.ndarray:
  """Draws the cohort of a round.

  A function of (seed, round) and the candidates alone, so that a resumed run needs no generator
  state.

  Args:
    seed: The experiment's seed.
    round_num: 1 in the run's first round.
    candidates: int64, distinct client ids in ascending order.
    clients_per_round: How many to draw; all, if there are fewer.

  Returns:
    int64, distinct client ids in ascending order.
  """
  size = min(clients_per_round, len(candidates))
  chosen = rng.generator(seed, 'client selection', round_num).choice(
      len(candidates), size, replace=False
  )
  return np.sort(candidates[chosen])


def cyclic(
    seed: int, round_num: int, candidates: np.ndarray, clients_per_round: int
) -> np.ndarray:
  """Returns the clients whose turn it is, in an order that is drawn once (see `privacy.cyclic`).

  Args:
    seed: The experiment's seed.
    round_num: 1 in the run's first round.
    candidates: int64, distinct client ids in ascending order, the same in all rounds.
    clients_per_round: How many have their turn; all, if there are fewer.

  Returns:
    int64, distinct client ids in ascending order.
  """
  size = min(clients_per_round, len(candidates))
  order = rng.generator(seed, 'order of clients').permutation(candidates)
  turns = (round_num - 1) * size + np.arange(size)
  return np.sort(order[turns % len(order)])
