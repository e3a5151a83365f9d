"""Trains a method: `bazel run //bin:train -- --method=feddpcont`, or `python -m bin.train`."""

import os
import sys

from tff_noise import types
from tff_noise.program import command_line
from tff_noise.program import flags


def main(argv: list[str] = sys.argv) -> int:
  """Returns the exit status.

  0 when all is done; 1 after one line on stderr about what went wrong, such as a full disk; 2 after
  one about what to change; 130 after Ctrl-C (and 143 after SIGTERM), from which the same command
  continues.
  """
  again = 'the same command continues the run'
  if any(word.startswith('--overwrite') for word in argv):
    again += ', without --overwrite, which begins it anew'
  return command_line.run('train', lambda: _train(argv), again)


def _train(argv):
  values = flags.parse(flags.without_files(argv))  # They are read once, below: one may be a pipe.
  if values.help:
    print(command_line.as_called(flags.help_text()))
    return 0
  if values.list_methods:
    print(flags.methods_text())
    return 0
  config = flags.config_of_command_line(argv)
  from tff_noise.program import run  # What it needs takes seconds to load.

  try:
    run.run(config)
  except types.RunError as error:
    if not config.overwrite:
      raise
    raise types.RunError(f'{error} (without --overwrite, which would begin it anew)') from error
  command_line.load_matplotlib()
  from tff_noise.program import exported
  from tff_noise.program import run_directory
  from tff_noise.report import html

  path = os.path.abspath(config.path())
  models = exported.write(run_directory.RunDirectory(path))
  if models:
    print(f'  models          {os.path.join(path, ", ".join(models))}')
  print(f'  report          {html.write_report(config.path())}')
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv))
