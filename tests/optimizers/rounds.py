"""Rounds of the toy model under each optimizer, and the same training in NumPy."""

import numpy as np

from tests import toy
from tff_noise import types
from tff_noise.federated import client_work
from tff_noise.federated import compose
from tff_noise.federated import optimizer
from tff_noise.federated import uplink
from tff_noise.models import losses
from tff_noise.optimizers import registry


class Federation:
  """A process of one optimizer, its state, and what each client keeps."""

  def __init__(
      self, name, clients, training, model=None, aggregation=None, weights=None, **params
  ):
    """Starts the process.

    Args:
      name: Of the optimizer.
      clients: (x, y) of each client.
      training: Local training.
      model: A linear model if not given.
      aggregation: Plain sums if not given.
      weights: Of the linear model, to start from; 0 if not given.
      **params: Of the optimizer.
    """
    self.clients = clients
    self.model = model or toy.linear_model()
    spec = registry.OPTIMIZERS[name]
    sizes = np.array([len(y) for _, y in clients], np.int64)
    work = client_work.ClientWork(
        lambda inputs: losses.cross_entropy(inputs.logits, inputs.labels), training
    )
    self.built = compose.build_round_process(
        self.model,
        work,
        seed=0,
        optimizer=spec.build(
            optimizer.Setting(self.model, training, sizes), spec.params(**params)
        ),
        aggregation=aggregation,
    )
    self.process = self.built.process
    self.state = self.process.initialize()
    if weights is not None:
      current = self.process.get_model_weights(self.state)
      self.state = self.process.set_model_weights(
          self.state, type(current)([np.asarray(weights, np.float32)], [])
      )
    self.kept = [self.built.optimizer.client.initial_state for _ in clients]

  def round(self, *cohort):
    """Runs a round of the given clients, of all if none are; returns its metrics."""
    cohort = cohort or range(len(self.clients))
    data = [toy.client(c, *self.clients[c]) for c in cohort]
    if not isinstance(self.process, compose.StatefulProcess):
      output = self.process.next(self.state, data)
    else:
      output = self.process.next(
          self.state, data, [uplink.ClientState((), self.kept[c]) for c in cohort]
      )
      for c, local in uplink.by_client(output.local, cohort).items():
        self.kept[c] = local.optimizer
    self.state = output.state
    return output.metrics['client_work']['train']

  @property
  def weights(self):
    """All weights, as they are now."""
    return self.process.get_model_weights(self.state)

  @property
  def w(self):
    """The linear model's matrix."""
    return np.asarray(self.weights.trainable[0])

  def steps(self, rounds, *cohort):
    """Runs rounds; returns the linear model's matrix after each."""
    found = []
    for _ in range(rounds):
      self.round(*cohort)
      found.append(self.w)
    return found


def full_batch(steps, learning_rate=0.5, **others):
  """Local training in which each epoch is one step."""
  return types.LocalTraining(
      epochs=steps, batch_size=1000, learning_rate=learning_rate, **others
  )


def gradient(w, x, y):
  """Of the linear model's mean cross-entropy, float64 `[2, 2]`."""
  x, y = np.asarray(x, np.float64), np.asarray(y)
  logits = x @ w
  shares = np.exp(logits - logits.max(axis=1, keepdims=True))
  shares /= shares.sum(axis=1, keepdims=True)
  return x.T @ (shares - np.eye(2)[y]) / len(y)


def train(w_t, client, steps, learning_rate=0.5, rho=0.0, decay=0.0, change=None):
  """Full-batch momentum SGD of the linear model; returns w_k.

  Args:
    w_t: To start from.
    client: (x, y).
    steps: Their number.
    learning_rate: eta.
    rho: Momentum.
    decay: Weight decay.
    change: From w to what is added to the gradient.
  """
  w, velocity = np.array(w_t, np.float64), 0.0
  for _ in range(steps):
    g = gradient(w, *client) + decay * w
    if change is not None:
      g = g + change(w)
    velocity = rho * velocity + g
    w = w - learning_rate * velocity
  return w


def optimum(clients):
  """Where the mean loss of all examples is smallest, reached from 0."""
  x = np.concatenate([x for x, _ in clients])
  y = np.concatenate([y for _, y in clients])
  w = np.zeros((2, 2))
  for _ in range(20000):
    w -= 0.3 * gradient(w, x, y)
  return w


# Two clients of unequal size who disagree: their own optima are far apart, neither is at infinity.
DISAGREEING = (
    ([[1, 0]] * 4 + [[0, 1]] * 2, [0, 0, 0, 1, 0, 1]),
    ([[2, 0]] * 3 + [[1, 1]] * 6, [0, 1, 1, 0, 0, 0, 0, 0, 1]),
)
