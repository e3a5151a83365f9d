"""Whom FedCorr's server took for noisy, and what became of the labels: a section of the report."""

import re

import numpy as np

from tff_noise import types
from tff_noise.program import ground_truth
from tff_noise.report import blocks
from tff_noise.report import corrected_labels
from tff_noise.report import correction_plots
from tff_noise.report import judged_clients
from tff_noise.selection import noisy_clients

_MEASURES = {
    'precision': 'noisy_client_precision', 'recall': 'noisy_client_recall', 'F1': 'noisy_client_f1',
}
_SCORE_NAMES = {
    'centred': "LID above the iteration's median, mean of {}",
    'mean': 'mean LID of {}',
    'cumulative': 'cumulative LID of {}',
}


def _applies(run):
  return run.flags.get('method') == 'fedcorr' and len(run.rounds) > 0


def _build(run, scene):
  clients, labels = judged_clients.read(run, scene), corrected_labels.read(run, scene)
  shown = [*_found(run, scene, clients), *corrected_labels.words(scene, labels)]
  shown += _score_picture(run, scene, clients) + _noise_picture(run, scene, clients, labels)
  shown += corrected_labels.curves(run, scene, _told_rounds(run))
  return shown + corrected_labels.matrices(run, scene, labels)


def _found(run, scene, clients):
  """In words: who was taken for noisy, and whether that was right."""
  if not run.finished:
    return [blocks.Text(
        f'So far {_so_far(run)} of {scene.num_clients} clients are taken for noisy. LID scores, '
        'estimates and corrected labels are written at the end of the run.'
    )]
  found = _checked_summary(run)
  if found is None:
    return []
  doubtful = found['judgements'] and not found['separated']
  text = verdict(found, clients=scene.num_clients)
  shown = [blocks.Text(text, 'notice' if doubtful else 'plain')]
  if not found['judgements'] or 'taken_for_noisy' not in clients:
    return shown
  if not np.isfinite(scene.nominal_rate).any():
    return [*shown, blocks.Text('Which clients really are noisy, nobody knows.')]
  judgement = judged_clients.judgement(scene, clients)
  tone = 'notice' if judgement.wrong.any() else 'plain'
  return [*shown, blocks.Text(judged_clients.against_the_truth(judgement), tone)]


def _so_far(run):
  values = run.metrics.get('noisy_clients')
  return int(values[-1]) if values is not None and values.dtype.kind == 'f' else 'an unknown number'


def verdict(found, *, clients: int) -> str:
  """Returns in words whom the server took for noisy, and why.

  Args:
    found: 'fedcorr' of `summary.json`.
    clients: C.
  """
  if not found['judgements']:
    return 'There was no iteration of pre-processing: the server judged nobody.'
  reliability = found['reliability']
  asked = '' if reliability is None else (
      f"iterations agree on a share of {reliability:.2f} of LID's variance; the guard asks for "
      f'more than {noisy_clients.MIN_RELIABILITY:g}'
  )
  if not found['separated']:
    return f'Nobody was taken for noisy: {asked or "too few clients have a LID to tell"}.'
  text = (
      f'{found["noisy_clients"]} of {clients} clients were taken for noisy: the part with the '
      f"larger LID scores (separation {found['separation']:.1f}, Ashman's D; "
  )
  if reliability is None:
    return text + 'without a guard there always are two parts).'
  return text + f'{asked}).'


def _by_iteration(clients, name):
  """float64 `[T, C]`, the columns NAME_1, NAME_2, ... in order; T is 0 in runs that lack them."""
  columns = {
      int(match[1]): values for column, values in clients.items()
      if (match := re.fullmatch(rf'{name}_(\d+)', column))
  }
  shape = (len(columns), len(clients.get('client', ())))
  return np.array([columns[i] for i in sorted(columns)]).reshape(shape)


def _score_picture(run, scene, clients):
  """Figure 3 of the paper."""
  if not np.isfinite(clients.get('lid_score', np.nan)).any() or 'taken_for_noisy' not in clients:
    return []
  seed = run.flags.get('seed', 0)
  lid = _by_iteration(clients, 'lid')
  iterations = len(lid)
  scores = []
  if iterations > 1:
    scores.append(_scores(
        f'LID in iteration {iterations}', 'LID score of the last iteration', lid[-1], scene,
        seed, iterations, decides=False,
    ))
  steps = f'{iterations} iterations' if iterations > 1 else '1 iteration'
  values = clients['lid_score']
  name = _SCORE_NAMES[run.method_parameters['score']].format(steps)
  scores.append(_scores(
      name, 'Score that the server splits by', values, scene, seed, iterations, decides=True
  ))
  caption = (
      "Above: clients by score, bars by the truth, which the server does not see; the curves are "
      'two Gaussians fitted to the scores. Below: score against noise. The server splits by '
      f'{"the right" if len(scores) > 1 else "this"} score'
  )
  caption += (
      '; the shaded range was taken for noisy.' if (clients['taken_for_noisy'] > 0).any() else
      '; nobody was taken for noisy.'
  )
  missing = int((~np.isfinite(values)).sum())
  if missing:
    caption += (
        f' Without a score, for they never took part or hold too few examples: {missing} of '
        f'{scene.num_clients} clients.'
    )
  picture = correction_plots.client_scores(scores, judged_clients.judgement(scene, clients))
  return [blocks.Picture('client_scores', picture, caption)]


def _scores(name, title, values, scene, seed, iterations, *, decides):
  agreement = ground_truth.rate_correlation(scene, values)
  numbers = [
      f'{measure} {agreement[key]:.2f}'
      for key, measure in (
          ('correlation', 'correlation'), ('rank_correlation', 'by rank'), ('auc', 'AUC')
      )
      if np.isfinite(agreement[key])
  ]
  if not numbers:
    numbers = ['no client is noisier than another' if np.isfinite(scene.noise_rate) else
               'how noisy the clients are is unknown']
  title += '\n' + ', '.join(numbers)
  # The seed of the server's last split, so that these are its Gaussians.
  components = _gaussians(values, noisy_clients.mixture_seed(seed, iterations - 1))
  return correction_plots.Scores(name, title, values, components, decides)


def _gaussians(scores, seed):
  """float64 `[2, 3]`, weight, mean and deviation of two Gaussians; None for too few scores."""
  fitted = noisy_clients.fit(scores, seed)
  if fitted is None:
    return None
  order = np.argsort(fitted.means_[:, 0])
  return np.stack(
      [fitted.weights_, fitted.means_[:, 0], np.sqrt(fitted.covariances_[:, 0, 0])], axis=1
  )[order]


def _noise_picture(run, scene, clients, labels):
  """Estimated against true noise of each client, and what is left of it."""
  if 'estimated_noise_rate' not in clients or not np.isfinite(scene.realised_rate).any():
    return []
  judgement = judged_clients.judgement(scene, clients)
  taken = _by_iteration(clients, 'taken_for_noisy') > 0
  last = clients['estimated_noise_rate']
  kappa = run.method_parameters.get('clean_threshold')
  shares, caption = [], ''
  if len(taken) > 1 and taken.any():
    first = _first_estimates(taken, _by_iteration(clients, 'estimated_noise_rate'))
    # Who has left by then estimated nothing.
    ever = taken.any(axis=0) & np.isfinite(judgement.rate) & np.isfinite(first)
    error = np.abs(first - judgement.rate)[ever]
    title = f'First estimate\nmean error {error.mean():.2f}' if len(error) else 'First estimate\n'
    shares.append(correction_plots.Shares(title, first))
    caption = (
        'First estimate: of the iteration in which a client was taken for noisy for the first '
        'time, before any of its labels was changed; the error is over these clients. '
    )
  if np.nansum(last) > 0:
    title = 'Last estimate\nafter earlier corrections' if len(taken) != 1 else 'Estimate\n'
    threshold = None if kappa is None else (kappa, f'fine-tuning: up to {kappa:g}')
    shares.append(correction_plots.Shares(title, last, threshold))
    if len(taken) != 1:
      caption += 'Last estimate: of the labels as far as they were corrected by then. '
  if labels is not None and (labels != scene.noisy_label).any():
    after = corrected_labels.wrong_shares(scene, labels)
    worse = int(np.sum(after > judgement.rate))
    shares.append(correction_plots.Shares(
        f'True share at the end\n{corrected_labels.clients_have(worse)} more than before', after
    ))
    caption += 'True share at the end: above the line are clients with more wrong labels. '
  caption += 'Shapes: the last judgement.'
  if not shares:
    return []
  return [blocks.Picture(
      'client_noise', correction_plots.client_noise(shares, judgement), caption
  )]


def _first_estimates(taken, noise):
  """float64 `[C]`: what the first iteration said that took a client for noisy; 0 without one."""
  first = noise[taken.argmax(axis=0), np.arange(taken.shape[1])]
  return np.where(taken.any(axis=0), first, np.where(np.isfinite(noise[-1]), 0.0, np.nan))


def _told_rounds(run):
  """How well noisy clients were told over the rounds, by measure; {} where nobody was judged."""
  measures = {name: run.metrics.get(column) for name, column in _MEASURES.items()}
  told = all(v is not None and v.dtype.kind == 'f' for v in measures.values())
  # Without noisy clients there is nothing to find, and no recall.
  told = told and bool(np.isfinite(measures['recall']).any())
  # Else nobody was judged.
  return measures if told and 'preprocess' in run.metrics.get('stage', ()) else {}


def _checked_summary(run):
  """'fedcorr' of the summary, None where it is not there; `UsageError` where it is damaged."""
  found = run.summary.get('fedcorr')
  if found is None:
    return None
  try:
    f'{found["judgements"]:d} {found["noisy_clients"]:d} {found["separated"]:d}'
    f'{found["separation"]:.1f} {found["reliability"] or 0:.1f}'
  except (TypeError, ValueError, KeyError):
    raise types.UsageError(f'{run.path}/summary.json is damaged: fedcorr') from None
  return found


SECTION = blocks.Section(
    'What the method found: noisy clients and wrong labels', _applies, _build
)
