"""Rounds of the toy model under each optimizer, and the same training in NumPy."""

import numpy as np

from tests import toy
from tff_noise import types
from tff_noise.algorithms import plain
from tff_noise.clients import program as program_lib
from tff_noise.federated import aggregation as aggregation_lib
from tff_noise.federated import computation
from tff_noise.federated import processes
from tff_noise.federated import task as task_lib
from tff_noise.optimizers import catalog
from tff_noise.uplink import uplink


class Federation:
  """A process of one optimizer, its state, and what each client keeps."""

  def __init__(
      self, name, clients, training, model=None, aggregation=None, weights=None, program=None,
      selector=None, **params,
  ):
    """Starts the process.

    Args:
      name: Of the optimizer.
      clients: (x, y) of each client.
      training: Local training.
      model: A linear model if not given.
      aggregation: Plain sums if not given.
      weights: Of the linear model, to start from; 0 if not given.
      program: Of the clients; training by cross-entropy if not given.
      selector: Whose updates the server uses; all, if not given.
      **params: Of the optimizer.
    """
    self.clients = clients
    self.model = model or toy.linear_model()
    task = task_lib.Task(
        self.model,
        training,
        aggregation=aggregation or aggregation_lib.weighted_mean(),
        client_sizes=np.array([len(y) for _, y in clients], np.int64),
    )
    entry = catalog.OPTIMIZERS[name]
    self.optimizer = entry.build(task, entry.params(**params))
    self.built = computation.train(
        'a round', task, program or plain.client(training), optimizer=self.optimizer,
        selector=selector,
    )
    self.process = self.built.process
    self.state = self.process.initialize()
    if weights is not None:
      current = self.process.get_model_weights(self.state)
      self.state = self.process.set_model_weights(
          self.state, type(current)([np.asarray(weights, np.float32)], [])
      )
    self.kept = [self.built.initial_input(np.array(y)).own for _, y in clients]

  def round(self, *cohort):
    """Runs a round of the given clients, of all if none are; returns its metrics.

    What the server saw by client is in `reports`.
    """
    cohort = cohort or range(len(self.clients))
    data = [toy.client(c, *self.clients[c]) for c in cohort]
    if isinstance(self.process, processes.StatefulProcess):
      local = [uplink.ClientInput(self.kept[c], program_lib.in_order({})) for c in cohort]
      output = self.process.next(self.state, data, local)
      for c, own in uplink.by_client(output.local, cohort).items():
        self.kept[c] = own
    else:
      output = self.process.next(self.state, data)
    self.state = output.state
    self.reports = output.metrics.get('reports')
    return output.metrics['client_work']['train']

  def go_on_with(self, *clients):
    """Lets the server remember some clients alone, by the optimizer's restriction."""
    restriction = self.optimizer.restriction
    sizes = [len(self.clients[c][1]) for c in clients]
    mean = [
        np.average(values, axis=0, weights=sizes).astype(np.float32)
        for values in zip(*(self.kept[c][restriction.own] for c in clients), strict=True)
    ]
    server = restriction.apply(self.state.finalizer, mean, np.float32(sum(sizes)))
    self.state = type(self.state)(**{
        name: server if name == 'finalizer' else getattr(self.state, name)
        for name in type(self.state).__annotations__
    })

  def own(self, name):
    """What each client keeps under this name."""
    return [kept[name] for kept in self.kept]

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
