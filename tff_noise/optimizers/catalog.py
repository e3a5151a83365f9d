"""The federated optimizers, by name, without TensorFlow: one entry each."""

from __future__ import annotations

from typing import Any, NamedTuple

from tff_noise import params as params_lib
from tff_noise.optimizers import parameters


class Entry(NamedTuple):
  """A federated optimizer on the command line.

  Attributes:
    name: Its name.
    title: One line that says what it is.
    paper: Where it comes from.
    place: `module:function` in this folder, from (`task.Task`, parameters) to the optimizer.
    params: Frozen dataclass of its own parameters; `__post_init__` checks them.
    per_client: What the server sees of single clients, which no secure sum can hide; '' for
      nothing.
    compares_models: Whether the server compares models of single clients, so that no update can be
      summed securely.
    chooses_clients: Whether it says who takes part in a round.
  """

  name: str
  title: str
  paper: str
  place: str
  params: type
  per_client: str = ''
  compares_models: bool = False
  chooses_clients: bool = False

  def build(self, task: Any, params: Any) -> Any:
    """Returns the `optimizer.FederatedOptimizer` for a `task.Task`; loads TensorFlow."""
    optimizer = params_lib.implementation(f'tff_noise.optimizers.{self.place}')(task, params)
    return optimizer._replace(
        name=self.name, rebuild=lambda other_task: self.build(other_task, params)
    )


_REDDI = 'Reddi et al., ICLR 2021'

_ENTRIES = (
    Entry('fedavg', "weighted mean of the clients' models", 'McMahan et al., AISTATS 2017',
          'fed_avg:build', parameters.FedAvgParams),
    Entry('fedprox', 'FedAvg with a proximal term in local training', 'Li et al., MLSys 2020',
          'fed_prox:build', parameters.FedProxParams),
    Entry('fednova', 'mean of updates that are normalised by the number of local steps',
          'Wang et al., NeurIPS 2020', 'fed_nova:build', parameters.FedNovaParams),
    Entry('fedadam', 'Adam at the server', _REDDI, 'adaptive:fed_adam', parameters.FedAdamParams),
    Entry('fedyogi', 'Yogi at the server', _REDDI, 'adaptive:fed_yogi', parameters.FedAdamParams),
    Entry('fedadagrad', 'Adagrad at the server', _REDDI, 'adaptive:fed_adagrad',
          parameters.FedAdagradParams),
    Entry('feddyn', 'dynamic regularisation; clients keep a gradient', 'Acar et al., ICLR 2021',
          'fed_dyn:build', parameters.FedDynParams),
    Entry('scaffold', 'control variates against client drift; clients keep a gradient',
          'Karimireddy et al., ICML 2020', 'scaffold:build', parameters.ScaffoldParams),
    Entry('fedbn', 'FedAvg of all but the normalisation layers, which clients keep',
          'Li et al., ICLR 2021', 'fed_bn:build', parameters.FedBNParams),
    Entry('median', "coordinate-wise median of the clients' models", 'Yin et al., ICML 2018',
          'median:build', parameters.MedianParams,
          per_client="each client's model, of whose parameters it takes the middle",
          compares_models=True),
    Entry('arfl', 'residual-based reweighting: clients far from the line through the others count '
          'little', 'Fu et al., Attack-Resistant Federated Learning with Residual-based '
          'Reweighting, 2019', 'arfl:build', parameters.ARFLParams,
          per_client="each client's model, which it compares with the others",
          compares_models=True),
    Entry('poc', 'Power-of-Choice: of some candidates, those with the largest losses take part',
          'Cho et al., AISTATS 2022', 'power_of_choice:build', parameters.PowerOfChoiceParams,
          per_client="each candidate's mean loss", chooses_clients=True),
)

OPTIMIZERS = {entry.name: entry for entry in _ENTRIES}
