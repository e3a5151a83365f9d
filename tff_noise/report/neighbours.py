"""Whose models FedRN's clients looked with: a section of the report."""

import numpy as np

from tff_noise.report import blocks
from tff_noise.report import judged_clients
from tff_noise.report import judgement_plots


def _applies(run):
  return run.flags.get('method') == 'fedrn'


def _build(run, scene):
  if not run.finished:
    return [blocks.Text('Who was whose neighbour is written at the end of the run.')]
  clients = judged_clients.read(run, scene)
  if not {'expertise', 'times_chosen'} <= clients.keys():
    return [blocks.Text('This run has not counted who was whose neighbour.')]
  chosen, expertise = clients['times_chosen'], clients['expertise']
  total = int(chosen.sum())
  if not total:
    return [blocks.Text('No client was ever chosen as a neighbour.')]
  never = int(np.sum(chosen == 0))
  text = f'Clients were chosen as neighbours {total:,} times'
  text += f'; {never} of {scene.num_clients} never were.' if never else '.'
  shown = [blocks.Text(text)]
  known = np.isfinite(scene.realised_rate)
  if not known.any():
    return [*shown, blocks.Text('How noisy the clients are, nobody knows: there is no picture.')]
  if chosen[known].any():
    shown.append(_verdict(scene.realised_rate[known], chosen[known]))
  panels = [
      judgement_plots.OfClients('Times chosen as a neighbour', 'times', chosen),
      judgement_plots.OfClients('Expertise', 'accuracy on its own labels', expertise),
  ]
  missing = int((~known).sum())
  return [*shown, blocks.Picture(
      'neighbours',
      judgement_plots.against_noise(
          panels, scene.realised_rate, scene.is_noisy_client, np.isfinite(scene.nominal_rate)
      ),
      'Each client by its true share of wrong labels, which the server does not see. Expertise: of '
      'its last local model, on its own labels, noisy as they are; the server chooses by it and by '
      'how alike models are.'
      + (f' Left out, for nobody knows their noise: {missing}.' if missing else ''),
  )]


def _verdict(rate, chosen):
  average, of_chosen = rate.mean(), np.average(rate, weights=chosen)
  return blocks.Text(
      f'Against the ground truth: clients have {average:.1%} wrong labels on average, those that '
      f'were chosen {of_chosen:.1%}, each as often as it was.',
      'notice' if of_chosen > average else 'plain',
  )


SECTION = blocks.Section('Who was chosen as a neighbour', _applies, _build)
