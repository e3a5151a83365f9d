"""What an experiment asks for: all that an algorithm is built from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from tff_noise import types
from tff_noise.federated import aggregation as aggregation_lib
from tff_noise.federated import optimizer as optimizer_lib
from tff_noise.models import keras_model
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.privacy import protection
from tff_noise.selection import availability as availability_lib


class LabelPrivacy(NamedTuple):
  """How labels are communicated, by algorithms that do.

  Attributes:
    epsilon: Of one label's report, decimal text.
    prior: One of `estimator.PRIORS`, where 'none' is for labels that are counted as they are; or
      'uniform' for labels that nobody is asked for.
    in_training: Whether clients' labels are the reports themselves, so that nothing else of them is
      ever used.
  """

  epsilon: str = '0.81'
  prior: str = 'shrinkage'
  in_training: bool = False

  def mechanism(self, num_classes: int) -> mechanism_lib.RandomizedResponse | None:
    """Returns what the labels are flipped by; None for the paper's "No DP"."""
    if self.prior == 'none':
      return None
    return mechanism_lib.randomized_response(self.epsilon, num_classes)


class Task(NamedTuple):
  """What an experiment asks for.

  Attributes:
    model: What is trained.
    training: How clients train.
    seed: Of all randomness, but for noise and cohorts where these have a secret of their own.
    aggregation: How what clients send is summed.
    optimizer: What the experiment says the algorithm runs on; None for what the algorithm says,
      mostly FedAvg.
    client_sizes: int64 `[C]`, public numbers of examples. A process that runs without this
      project's clients needs them where its optimizer does.
    clients_per_round: Cohort size.
    rounds: R.
    stages: Lengths of stages, by name, where they are given.
    availability: Who is there in which round; None for everybody in all.
    label_privacy: How labels are communicated.
    validation: Clean examples that the server holds; None for none.
    public: Images that the server and all clients know, `[S, ...]` as the model takes them, without
      labels; None for none.
    build_model: From the name of an architecture to a model of it for the same images; raises
      `UsageError` if there is none. None where no other is at hand.
    sampling: How cohorts come about: of `clients_per_round`, `protection.FIXED`, of so many on
      average, `protection.POISSON`, or in turns, `protection.CYCLIC`.
    cohort_secret: In [0, 2**63), what cohorts are drawn by that a claim takes for secret; None for
      the seed.
  """

  model: keras_model.KerasModel
  training: types.LocalTraining = types.LocalTraining()
  seed: int = 0
  aggregation: aggregation_lib.Aggregation = aggregation_lib.weighted_mean()
  optimizer: optimizer_lib.FederatedOptimizer | None = None
  client_sizes: np.ndarray = np.zeros(0, np.int64)
  clients_per_round: int = 1
  rounds: int = 1
  stages: Mapping[str, int] = {}
  availability: availability_lib.Availability | None = None
  label_privacy: LabelPrivacy = LabelPrivacy()
  validation: types.Examples | None = None
  public: np.ndarray | None = None
  build_model: Callable[[str], keras_model.KerasModel] | None = None
  sampling: str = protection.FIXED
  cohort_secret: int | None = None

  @property
  def cohort_seed(self) -> int:
    """What uniform draws of cohorts follow from."""
    return self.seed if self.cohort_secret is None else self.cohort_secret

  def with_model(self, model: keras_model.KerasModel) -> Task:
    """Returns the task of training another model, on the same optimizer.

    Raises:
      ValueError: If the optimizer does not know how to be built for it.
    """
    task = self._replace(model=model)
    if self.optimizer is None:
      return task
    if self.optimizer.rebuild is None:
      raise ValueError(
          f'{self.optimizer.name!r} was built for one model: take it from the catalog of optimizers'
      )
    return task._replace(optimizer=self.optimizer.rebuild(task))

  def with_training(self, training: types.LocalTraining) -> Task:
    """Returns the task of training in another way, on the optimizer that reckons with that.

    Who takes part is chosen by the same computation; an optimizer built by hand stays as it is.

    Raises:
      types.UsageError: If the optimizer cannot reckon with such steps.
    """
    task = self._replace(training=training)
    if self.optimizer is None or self.optimizer.rebuild is None:
      return task
    rebuilt = self.optimizer.rebuild(task)
    return task._replace(optimizer=rebuilt._replace(sampler=self.optimizer.sampler))

  def known_sizes(self) -> np.ndarray:
    """Returns `client_sizes`, for optimizers that have to know.

    Raises:
      ValueError: If they are not given.
    """
    if not len(self.client_sizes):
      raise ValueError(
          'This optimizer needs the number of examples of every client: build it from a task with '
          'client_sizes.'
      )
    return self.client_sizes

  @property
  def num_clients(self) -> int:
    """C."""
    return len(self.client_sizes)

  def present(self, round_num: int) -> np.ndarray:
    """Returns int64, the ids of the clients that are there in a round, 1 the run's first."""
    if self.availability is None:
      return np.arange(self.num_clients)
    return self.availability.present(round_num)

  def staying(self, round_num: int) -> np.ndarray:
    """Returns bool `[C]`, who is there in round `round_num` or in a later one."""
    if self.availability is None:
      return np.ones(self.num_clients, bool)
    return self.availability.leaves > round_num

  @property
  def num_classes(self) -> int:
    """K."""
    return self.model.num_classes
