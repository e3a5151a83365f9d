"""What a server took clients for, against the truth: for the sections of methods that judge."""

from collections.abc import Mapping

import numpy as np

from tff_noise import types
from tff_noise.data import scene as scene_lib
from tff_noise.report import client_list
from tff_noise.report import correction_plots
from tff_noise.report import runs


def read(run: runs.Run, scene: scene_lib.Scene) -> Mapping[str, np.ndarray]:
  """Returns `clients.csv`, {} where it is missing.

  Raises:
    types.UsageError: If it is of other clients than the scene's.
  """
  clients = runs.read_clients(run)
  if clients and len(clients['client']) != scene.num_clients:
    raise types.UsageError(
        f'{run.path}/clients.csv has {len(clients["client"])} clients, scene.npz has '
        f'{scene.num_clients}'
    )
  return clients


def judgement(
    scene: scene_lib.Scene, clients: Mapping[str, np.ndarray]
) -> correction_plots.Judgement:
  """Returns what is true of the clients, and what the server took them for."""
  return correction_plots.Judgement(
      rate=scene.realised_rate, noisy=scene.is_noisy_client,
      known=np.isfinite(scene.nominal_rate), taken=clients['taken_for_noisy'] > 0,
      names=scene.client_names,
  )


def against_the_truth(found: correction_plots.Judgement) -> str:
  """Returns in words which noisy clients were found, and who was wronged."""
  noisy, taken = found.noisy & found.known, found.taken
  falsely = taken & found.known & ~noisy
  if not (noisy | falsely).any():
    return 'Against the ground truth: no client is noisy, and none was taken for noisy.'
  text = 'Against the ground truth: no client is noisy'
  if noisy.any():
    text = (
        f'Against the ground truth: {int((noisy & taken).sum())} of the {int(noisy.sum())} noisy '
        'clients were found'
    )
    if (noisy & ~taken).any():
      text += f', missed: {client_list.listed(noisy & ~taken, found.names)}'
  return text + (
      f'; taken for noisy though clean: {client_list.listed(falsely, found.names)}.'
      if falsely.any() else '; nobody clean was taken for noisy.'
  )
