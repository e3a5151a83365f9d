"""What is trained to be attacked: the default job of `bin/train`, under one protection or another.

The processes, the flips and the declared guarantees are the product's own; what is attacked is what
would run.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow_federated as tff

from tff_noise import rng
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.data import client_data
from tff_noise.data import scene as scene_lib
from tff_noise.data import sources
from tff_noise.models import keras_model
from tff_noise.privacy import estimator
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.program import flags
from tff_noise.program import private_labels
from tff_noise.program import run_config
from tff_noise.program import task as task_lib
from tff_noise.uplink import uplink

CLIENTS, COHORT = 20, 10
METHODS = ('feddpcont', 'fedavg', 'fedtally')
# Two levels of noise: little more than clipping, and what begins to be a guarantee.
NOISES = (0.1, 1.0)
# The epsilon of the paper's table.
EPSILON = '0.81'


class Arm(NamedTuple):
  """A way to train.

  Attributes:
    method: One of `METHODS`.
    secure: Whether updates are summed securely, clipped to the default bound.
    noise: DP-FedAvg's noise multiplier, positive, at clipping norm 1; None for none.
    epsilon: Of private training labels, decimal text; None where clients train on their labels.
  """

  method: str
  secure: bool = False
  noise: float | None = None
  epsilon: str | None = None

  def config(self, seed: int) -> run_config.RunConfig:
    """Returns the flags of the arm."""
    given = [
        f'--method={self.method}', f'--seed={seed}', f'--clients={CLIENTS}',
        f'--clients_per_round={COHORT}',
    ]
    if self.secure:
      given.append('--aggregation=secure_sum')
    if self.noise is not None:
      given.append(f'--client_dp_noise={self.noise}')
    if self.epsilon is not None:
      given += ['--training_labels=private', f'--label_epsilon={self.epsilon}']
    return flags.config_from(flags.parse(['audit', *given]))


class Scene(NamedTuple):
  """What is attacked.

  Attributes:
    dataset: Where it comes from.
    federation: The clients and their noisy labels.
    reports: The same clients with flipped labels.
    mechanism: What flips them.
    prior: float64 `[K]`, what the server recovered from the summed reports.
  """

  dataset: types.Dataset
  federation: types.Federation
  reports: types.Federation
  mechanism: mechanism_lib.RandomizedResponse
  prior: np.ndarray

  def clients(self, arm: Arm) -> types.Federation:
    """Returns the clients with the labels they train on."""
    return self.federation if arm.epsilon is None else self.reports

  def contrast(self, arm: Arm) -> np.ndarray:
    """Returns the distribution of contrastive labels, as FedDPCont broadcasts it."""
    # In training on reports, contrastive labels are of their kind.
    return self.prior if arm.epsilon is None else self.prior @ self.mechanism.transition_matrix()


def digits() -> types.Dataset:
  """Returns the data set of the default job."""
  return sources.load(sources.DataSpec('digits'))


def draw_federation(dataset: types.Dataset, seed: int) -> types.Federation:
  """Returns the clients of the default job: open-set, with 40 % symmetric noise."""
  spec = Arm('fedavg').config(0).scene_spec()
  return scene_lib.federation(dataset, scene_lib.build(dataset, spec, seed), seed)


def exchange_labels(dataset: types.Dataset, federation: types.Federation) -> Scene:
  """Adds what the exchange of labels makes of a federation."""
  num_classes = federation.num_classes
  mechanism = mechanism_lib.randomized_response(EPSILON, num_classes)
  reports = private_labels.flip(federation, EPSILON, num_classes)
  counts = sum(mechanism_lib.histogram(c.y, num_classes) for c in reports.clients)
  prior = estimator.estimate(counts, Arm('feddpcont').config(0).label_prior, mechanism).prior
  return Scene(dataset, federation, reports, mechanism, prior)


class Job(NamedTuple):
  """An arm on a scene, ready to run.

  Attributes:
    arm: How clients train.
    training: Its numbers.
    process: The learning process.
    fields: Every value that leaves a client, with its declared protection.
    state: In which it begins.
    datasets: What clients hold, by client id.
    logits: From weights and images to float64 `[n, K]`.
  """

  arm: Arm
  training: types.LocalTraining
  process: tff.learning.templates.LearningProcess
  fields: tuple[uplink.UplinkField, ...]
  state: Any
  datasets: list[Any]
  logits: Callable[[Any, np.ndarray], np.ndarray]

  def train(self, rounds: int, seed: int) -> Any:
    """Returns the state after some rounds of random cohorts."""
    state = self.state
    for r in range(rounds):
      draw = rng.generator(seed, 'audit: cohort', r)
      cohort = draw.choice(len(self.datasets), COHORT, replace=False)
      state = self.process.next(state, [self.datasets[i] for i in cohort]).state
    return state


def prepare(arm: Arm, scene: Scene, seed: int) -> Job:
  """Builds an arm on a scene; `seed` is that of initial weights, batches and noise."""
  config, federation = arm.config(seed), scene.clients(arm)
  task = task_lib.build(config, scene.dataset, federation)
  algorithm = catalog.entry(arm.method).build(task, config.method_params())
  if arm.epsilon is not None:
    algorithm = private_labels.declare(algorithm, task)
  [train] = [c for c in algorithm.computations if c.optimizer is not None]
  process = train.process
  state = process.initialize()
  if arm.method == 'feddpcont':
    state = train.send(state, label_prior=scene.contrast(arm))
  return Job(
      arm=arm,
      training=task.training,
      process=process,
      fields=algorithm.fields,
      state=state,
      datasets=[
          client_data.client_dataset(c.x, c.y, i) for i, c in enumerate(federation.clients)
      ],
      logits=_forward(task.model),
  )


def _forward(model):
  network = keras_model.build_zeros(model)

  def logits(weights, x):
    keras_model.assign(network, weights)
    return network(x, training=False)[0].numpy().astype(np.float64)

  return logits
