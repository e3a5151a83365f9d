"""Evaluates the trained model of a run: `bazel run //bin:evaluate -- --run_dir=runs/NAME`."""

import os
import sys

from absl import flags

from tff_noise import loading
from tff_noise import types
from tff_noise.program import command_line

_FLAGS = flags.FlagValues()
flags.DEFINE_string('run_dir', None, 'The directory of a run.', flag_values=_FLAGS)
flags.DEFINE_enum(
    'model', 'final', ['final', 'best_validation'], 'Which model.', flag_values=_FLAGS
)
flags.DEFINE_enum('on', None, ['test', 'validation'], 'What.', flag_values=_FLAGS)
flags.DEFINE_string('dataset', None, 'Another data set.', flag_values=_FLAGS)
flags.DEFINE_string('data_dir', None, 'Where it lies.', flag_values=_FLAGS)
flags.DEFINE_string('images', None, 'A folder of images.', flag_values=_FLAGS)
flags.DEFINE_string('out_dir', None, 'Where to write.', flag_values=_FLAGS)
flags.DEFINE_boolean('help', False, 'Help.', flag_values=_FLAGS)

_HELP = """\
Says how good the trained model of a finished run is: accuracy by class and by client, what each
class is taken for, whether its probabilities are right; and writes what it says of each example.

  ./bazelw run //bin:evaluate -- --run_dir=runs/NAME [--model=best_validation] [--on=validation]
      On the run's test set, or on what its server validates on.

  ./bazelw run //bin:evaluate -- --run_dir=runs/NAME --dataset=npz --data_dir=FILE
      On the test set of another data set, of the same classes; of a file without x_test, on all of
      its examples.

  ./bazelw run //bin:evaluate -- --run_dir=runs/NAME --images=DIR
      On JPEG or PNG files: in a folder for each class, or, where nobody knows their classes, side
      by side; of the latter there are predictions alone.

  --run_dir
      The directory of a run.
  --model [final]
      final: after the last round; best_validation: of the round that is best on the validation set.
      Where clients have models of their own, the mean of their probabilities.
  --out_dir
      Where evaluation.html, evaluation.json, confusion.csv and predictions.csv go; by default
      evaluation/MODEL_ON in the run's directory.

The models themselves are in models/ of the run: final.keras and final/, a SavedModel, take raw
pixels to probabilities and need nothing of this package; bin/train, given again, makes both of
models/final.npz where there is no final/."""


def main(argv: list[str] = sys.argv) -> int:
  """Returns the exit status, see `command_line.run`."""
  return command_line.run('evaluate', lambda: _main(argv))


def _main(argv):
  values, _ = command_line.parse(_FLAGS, argv)
  if values.help:
    print(command_line.as_called(_HELP))
    return 0
  _check(values)
  from tff_noise.program import run_directory
  from tff_noise.report import runs

  if values.out_dir:
    run_directory.require_no_run(values.out_dir)
  run = runs.read_run(values.run_dir)
  if not run.finished:
    raise types.UsageError(f'{run.path} is not finished: its command, given again, continues it')
  # It tells of hardware that is not there.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  command_line.load_matplotlib()
  print('Loading TensorFlow...', file=sys.stderr)
  with loading.large_modules():
    from tff_noise.evaluation import evaluation
    from tff_noise.evaluation import examples
    from tff_noise.evaluation import page
    from tff_noise.runtimes import accelerator

  accelerator.take_memory_as_needed()
  source = examples.Source(values.on or 'test', values.dataset, values.data_dir, values.images)
  with accelerator.full_precision():
    result = evaluation.evaluate(run, values.model, source)
  folder = values.out_dir or os.path.join(run.path, 'evaluation', f'{values.model}_{source.name}')
  print(result.text())
  print(f'written to {page.write(result, folder)}')
  return 0


def _check(values):
  if values.run_dir is None:
    raise types.UsageError('--run_dir is needed: the directory of a finished run; see --help')
  if values.dataset and values.images:
    raise types.UsageError('--dataset and --images cannot be given together: both say on what')
  if values.on and (values.dataset or values.images):
    raise types.UsageError('--on is about the data of the run: leave it, --dataset or --images out')
  if values.data_dir and not values.dataset:
    raise types.UsageError('--data_dir needs --dataset: which data set lies there')


if __name__ == '__main__':
  sys.exit(main(sys.argv))
