"""What a federated optimizer is on the command line: a name, parameters, and how it is built.

This file and the heads of the optimizers' files import no TensorFlow: names and parameters are
listed and checked before it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
  from tff_noise.federated import optimizer


class OptimizerSpec(NamedTuple):
  """An entry of the registry.

  Attributes:
    name: Its name on the command line.
    title: One line that says what it is.
    paper: Where it comes from.
    params: Frozen dataclass of its own parameters; `__post_init__` checks them.
    build: From (`optimizer.Setting`, params) to the optimizer; imports TensorFlow.
    per_client: What the server sees of single clients, which no secure sum can hide; '' for
      nothing.
    compares_models: Whether the server compares models of single clients, so that no update can be
      summed securely.
  """

  name: str
  title: str
  paper: str
  params: type
  build: Callable[[optimizer.Setting, Any], optimizer.FederatedOptimizer]
  per_client: str = ''
  compares_models: bool = False

