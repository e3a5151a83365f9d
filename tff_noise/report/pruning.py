"""Whom ClipFL pruned, and by which scores: a section of the report."""

import numpy as np

from tff_noise import types
from tff_noise.report import blocks
from tff_noise.report import correction_plots
from tff_noise.report import judged_clients

_NAMES = {
    'count': 'rounds in which a client was not among the best',
    'rate': 'share of its rounds in which a client was not among the best',
}
_SELECTORS = {
    'validation': "by accuracy on the server's clean set",
    'agreement': "by how often they agree with the round's other models",
    'lid': "by the intrinsic dimension (LID) of their predictions",
}


def _applies(run):
  return 'clipfl' in run.summary if run.finished else run.flags.get('method') == 'clipfl'


def _build(run, scene):
  if not run.finished:
    return [blocks.Text('Scores and pruned clients are written at the end of the run.')]
  clients = judged_clients.read(run, scene)
  parameters = run.method_parameters
  try:
    pruned = int(run.summary['clipfl']['pruned_clients'])
    text = (
        f'{pruned} of {scene.num_clients} clients were pruned. Models of a round were ranked '
        f'{_SELECTORS[parameters["selector"]]}; the best {parameters["keep"]} were averaged.'
    )
    name = _NAMES[parameters['score']]
  except (KeyError, TypeError, ValueError):
    raise types.UsageError(f'{run.path}/summary.json or config.json is damaged: clipfl') from None
  shown = [blocks.Text(text)]
  if 'candidacy_score' not in clients:
    return shown
  judgement = judged_clients.judgement(scene, clients)
  if np.isfinite(scene.nominal_rate).any():
    tone = 'notice' if judgement.wrong.any() else 'plain'
    shown.append(blocks.Text(judged_clients.against_the_truth(judgement), tone))
  score = correction_plots.Scores(
      name, 'Noise candidacy score', clients['candidacy_score'], None, decides=True
  )
  return [*shown, blocks.Picture(
      'candidacy_scores',
      correction_plots.client_scores([score], judgement),
      'Clients by score; fills are the truth, which the server does not see. Those in the shaded '
      'range were pruned, of equal scores some by lot.',
  )]


SECTION = blocks.Section('Which clients were pruned', _applies, _build)
