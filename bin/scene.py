"""Makes a scene without training, and shows it: `bazel run //bin:scene -- --dataset=digits`."""

import os
import sys

from absl import flags as absl_flags

from tff_noise import types
from tff_noise.program import command_line
from tff_noise.program import flags

_FLAGS = absl_flags.FlagValues()
absl_flags.DEFINE_string('out_dir', None, 'Where it goes.', flag_values=_FLAGS)
absl_flags.DEFINE_list('also', [], 'Forms of pictures.', flag_values=_FLAGS)
absl_flags.DEFINE_boolean('help', False, 'Show this help, and stop.', flag_values=_FLAGS)

# A scene does not depend on these; the defaults of a training job could refuse it.
_NEUTRAL = ('--method=fedavg', '--clients_per_round=1')

_HELP = """\
Draws who holds which example and which labels are wrong, as bin/train would from the same flags,
and shows it: statistics, scene.npz (for --scene of bin/train) and four pictures. No TensorFlow.

  ./bazelw run //bin:scene -- --dataset=digits --partition=dirichlet --partition_alpha=0.5
  ./bazelw run //bin:scene -- --scene=runs/NAME/scene.npz --dataset=digits

  --out_dir
      Folder for it; by default scenes/NAME, a name made of data set, seed and flags.
  --also
      pdf, svg or both, with a comma: pictures in these forms too, for papers.

Every other flag is one of bin/train: see the groups Data and Label noise of its --help."""


def main(argv: list[str] = sys.argv) -> int:
  """Returns the exit status, see `command_line.run`."""
  return command_line.run('scene', lambda: _scene(argv))


def _scene(argv):
  values, rest = command_line.parse(_FLAGS, argv, known_only=True)
  if values.help:
    print(command_line.as_called(_HELP))
    return 0
  command_line.check_forms(values.also)
  _, own = command_line.parse(_FLAGS, flags.without_files(argv), known_only=True)
  own = [argv[0], *own]
  useless = set(flags.given(own)).difference(flags.OF_A_SCENE)
  if 'root_dir' in useless:
    raise types.UsageError('--root_dir has no effect on a scene: name its folder by --out_dir')
  if useless:
    raise types.UsageError(f'--{min(useless)} has no effect on a scene: leave it out')
  config = flags.config_of_command_line([argv[0], *_NEUTRAL, *rest], own)
  name = config.name().removeprefix(f'{config.method}_')
  _write(config, values.out_dir or os.path.join('scenes', name), values.also)
  return 0


def _write(config, folder, also):
  from tff_noise.data import scene as scene_lib
  from tff_noise.program import data
  from tff_noise.program import notices
  from tff_noise.program import run_directory

  run_directory.require_no_run(folder)
  dataset = data.load_dataset(config)
  scene = data.load_scene(config, dataset, None)
  for note in notices.of(config, dataset):
    print(note, file=sys.stderr)
  command_line.load_matplotlib()
  from tff_noise.report import scene_plots
  from tff_noise.report import scene_statistics

  statistics = scene_statistics.text(scene, dataset.class_names)
  print(statistics)
  try:
    os.makedirs(folder, exist_ok=True)
    scene_lib.save(scene, os.path.join(folder, 'scene.npz'))
    run_directory.write_text(os.path.join(folder, 'statistics.txt'), statistics + '\n')
    pictures = scene_plots.draw(scene, dataset.class_names, folder, also)
  except OSError as error:
    raise types.UsageError(
        f'--out_dir {folder} cannot be written to ({error.strerror})'
    ) from error
  for name in pictures:
    print(os.path.join(folder, name))


if __name__ == '__main__':
  sys.exit(main(sys.argv))
