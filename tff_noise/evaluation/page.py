"""An evaluation as files: a page to read, JSON and CSV for programs."""

import csv
import io
import json
import os

from tff_noise import types
from tff_noise.evaluation import evaluation
from tff_noise.program import quality
from tff_noise.program import run_directory
from tff_noise.report import blocks
from tff_noise.report import by_class
from tff_noise.report import calibration_plot
from tff_noise.report import html
from tff_noise.report import sections


def write(found: evaluation.Evaluation, folder: str) -> str:
  """Writes evaluation.html, evaluation.json, confusion.csv and predictions.csv; returns the page.

  Raises:
    types.UsageError: If it cannot be written.
  """
  path, confusion = (os.path.join(folder, name) for name in ('evaluation.html', 'confusion.csv'))
  files = {
      'evaluation.json': json.dumps(found.numbers(), indent=2) + '\n',
      'predictions.csv': _predictions(found),
  }
  if found.is_labelled:
    files['confusion.csv'] = _table([
        ('true class', *found.class_names),
        *((name, *row) for name, row in zip(
            found.class_names, found.confusion.tolist(), strict=True
        )),
    ])
  files['evaluation.html'] = html.render(found.title, _sections(found))
  try:
    os.makedirs(folder, exist_ok=True)
    is_replaced = os.path.exists(os.path.join(folder, 'evaluation.json'))
    if is_replaced and not found.is_labelled and os.path.exists(confusion):
      os.remove(confusion)
    for name, text in files.items():
      run_directory.write_text(os.path.join(folder, name), text)
  except OSError as error:
    raise types.UsageError(f'{folder} cannot be written to ({error.strerror})') from error
  return path


def _predictions(found):
  guesses, sure = found.probabilities.argmax(1), found.probabilities.max(1)
  rows = [('example', 'true_class', 'predicted_class', 'probability', *found.class_names)]
  for i, name in enumerate(found.names):
    known = found.labels[i] != types.UNKNOWN
    rows.append((
        name, found.class_names[found.labels[i]] if known else '', found.class_names[guesses[i]],
        f'{sure[i]:.6f}', *(f'{p:.6f}' for p in found.probabilities[i]),
    ))
  return _table(rows)


def _table(rows):
  file = io.StringIO()
  csv.writer(file, lineterminator='\n').writerows(rows)
  return file.getvalue()


def _sections(found):
  first = [blocks.Text(found.about)]
  if found.models:
    first.append(blocks.Text(
        f'The models, in the directory of the run: {", ".join(found.models)}.'
    ))
  if not found.is_labelled:
    first.append(blocks.Text('Nobody knows the true classes: predictions.csv has what was found.'))
    return [sections.Built('Evaluation', first)]
  calibration = quality.calibration(found.probabilities, found.labels)
  return [
      sections.Built('Evaluation', first),
      sections.Built('How good the model is', by_class.shown(
          found.confusion, tuple(found.class_names), found.by_client, found.client_names,
          found.where,
      )),
      sections.Built('Are its probabilities right', [blocks.Picture(
          'calibration', calibration_plot.draw(calibration),
          'Above the dashed line predictions are right more often than they are sure, below it '
          'less often.',
      )]),
  ]
