"""Whom FedNoRo's or FedELC's server took for noisy, by their losses: a section of the report."""

import numpy as np

from tff_noise import types
from tff_noise.report import blocks
from tff_noise.report import correction_plots
from tff_noise.report import judged_clients

_METHODS = ('fedelc', 'fednoro')


def _applies(run):
  return run.flags.get('method') in _METHODS


def _build(run, scene):
  if not run.finished:
    return [blocks.Text('Losses by class and the verdict are written at the end of the run.')]
  clients = judged_clients.read(run, scene)
  judged, noisy = _checked(run)
  if not judged:
    return [blocks.Text('Nobody was judged: the run has no round after the warm-up.')]
  missing = scene.num_clients - judged
  shown = [blocks.Text(
      f'{noisy} of {judged} clients were taken for noisy, once, after the warm-up: the part of a '
      'mixture of two Gaussians, over the mean losses of each class, that has the larger ones. '
      'There always are two parts, also where nobody is noisy.'
      + (f' Not there, and so taken for clean: {missing}.' if missing else '')
  )]
  if 'class_loss_score' not in clients or 'taken_for_noisy' not in clients:
    return shown
  judgement = judged_clients.judgement(scene, clients)
  if np.isfinite(scene.nominal_rate).any():
    tone = 'notice' if judgement.wrong.any() else 'plain'
    shown.append(blocks.Text(judged_clients.against_the_truth(judgement), tone))
  else:
    shown.append(blocks.Text('Which clients really are noisy, nobody knows.'))
  if not np.isfinite(clients['class_loss_score']).any():
    return shown
  score = correction_plots.Scores(
      'sum of the scaled losses of all classes', 'Losses by class', clients['class_loss_score'],
      None, decides=True,
  )
  return [*shown, blocks.Picture(
      'class_loss_scores',
      correction_plots.client_scores([score], judgement),
      'Clients by the sum of their mean losses by class, each scaled to [0, 1] over the clients; '
      'fills are the truth, which the server does not see. The server looks at all classes '
      'together and not at their sum, so that the shaded range, taken for noisy, may have gaps.',
  )]


def _checked(run):
  """Clients that were judged, and taken for noisy; `UsageError` where the summary is damaged."""
  method = run.flags['method']
  try:
    found = run.summary[method]
    return int(found['judged_clients']), int(found['noisy_clients'])
  except (KeyError, TypeError, ValueError):
    raise types.UsageError(f'{run.path}/summary.json is damaged: {method}') from None


SECTION = blocks.Section('Which clients were taken for noisy', _applies, _build)
