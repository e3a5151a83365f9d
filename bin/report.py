"""Makes the report of a run: `bazel run //bin:report -- --run_dir=runs/NAME`."""

import copy
import logging
import os
import sys

from absl import flags

from tff_noise import types

# Not absl's global flags: nothing but what is defined here may be given.
_FLAGS = flags.FlagValues()
flags.DEFINE_string('run_dir', None, 'The run directory, finished or not.', flag_values=_FLAGS)
flags.DEFINE_boolean('help', False, 'Show this help, and stop.', flag_values=_FLAGS)

_HELP = """\
Writes report.html and plots/ into the directory of a run. Imports no TensorFlow.

  bazel run //bin:report -- --run_dir=runs/NAME

  --run_dir
      The run directory, finished or not."""


def main(argv: list[str]) -> int:
  """Returns the exit status: 0, or 2 after one line on stderr about what to change."""
  # `bazel run` starts programs in its own tree; paths are meant from where the user stands.
  os.chdir(os.environ.get('BUILD_WORKING_DIRECTORY', '.'))
  try:
    values = _parse(argv)
    if values.help:
      print(_HELP)
      return 0
    if not values.run_dir:
      raise types.UsageError('--run_dir is needed: the directory of a run, like runs/NAME')
    # It tells of caches it cannot write, which only costs a second.
    logging.getLogger('matplotlib').setLevel(logging.ERROR)
    from tff_noise.report import html  # What draws takes a second to load.

    print(html.write_report(values.run_dir))
    return 0
  except types.UsageError as error:
    print(f'report: {error}', file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print('report: interrupted', file=sys.stderr)
    return 130


def _parse(argv):
  values = copy.deepcopy(_FLAGS)
  try:
    rest = values(list(argv))
  except flags.Error as error:
    raise types.UsageError(' '.join(str(error).split())) from error
  if len(rest) > 1:
    raise types.UsageError(f'unexpected argument {rest[1]!r}; flags are written --name=value')
  return values


if __name__ == '__main__':
  sys.exit(main(sys.argv))
