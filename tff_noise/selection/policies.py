"""Which clients take part in a round. Plain NumPy, at the server, between computations."""

import numpy as np

from tff_noise import rng


def uniform(seed: int, round_num: int, num_clients: int, clients_per_round: int) -> np.ndarray:
  """Returns int64 `[clients_per_round]`, distinct client ids in ascending order.

  A function of (seed, round) alone, so that a resumed run needs no generator state.
  """
  chosen = rng.generator(seed, 'client selection', round_num).choice(
      num_clients, clients_per_round, replace=False
  )
  return np.sort(chosen)
