"""Makes the report of a run: `bazel run //bin:report -- --run_dir=runs/NAME`."""

import sys

from absl import flags

from tff_noise import types
from tff_noise.program import command_line

# Not absl's global flags: nothing but what is defined here may be given.
_FLAGS = flags.FlagValues()
flags.DEFINE_string('run_dir', None, 'The run directory, finished or not.', flag_values=_FLAGS)
flags.DEFINE_list('also', [], 'Forms of pictures.', flag_values=_FLAGS)
flags.DEFINE_boolean('help', False, 'Show this help, and stop.', flag_values=_FLAGS)

_HELP = """\
Writes report.html and plots/ into the directory of a run. Imports no TensorFlow.

  ./bazelw run //bin:report -- --run_dir=runs/NAME

  --run_dir
      The run directory, finished or not.
  --also
      pdf, svg or both, with a comma: pictures in these forms too, for papers."""


def main(argv: list[str] = sys.argv) -> int:
  """Returns the exit status, see `command_line.run`."""
  return command_line.run('report', lambda: _report(argv))


def _report(argv):
  values, _ = command_line.parse(_FLAGS, argv)
  if values.help:
    print(command_line.as_called(_HELP))
    return 0
  if not values.run_dir:
    raise types.UsageError('--run_dir is needed: the directory of a run, like runs/NAME')
  command_line.check_forms(values.also)
  command_line.load_matplotlib()
  from tff_noise.report import html

  print(html.write_report(values.run_dir, values.also))
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv))
