"""A process that runs one cell of a grid after another: what takes seconds to load serves all.

Each line of its stdin asks for a run, a JSON list of where its output goes, of which code it has to
be (`inputs.code`) and of the arguments of `bin/train`; each line of its stdout is a JSON list of a
run's exit status and a message, which is empty unless the run's output could not be written. A
run's pictures are not drawn: `bin/report` draws them of any run at any time.
"""

import contextlib
import gc
import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence

from tff_noise import types
from tff_noise.program import command_line
from tff_noise.program import flags
from tff_noise.program import inputs
from tff_noise.program import run


def main(cores: Sequence[int]) -> None:
  """Runs what is asked for until stdin ends, on these cores, or on any if there are none."""
  if cores:
    # Threads of one process scale worse than processes; before TensorFlow counts the cores.
    os.sched_setaffinity(0, cores)
  with os.fdopen(os.dup(sys.stdout.fileno()), 'w', encoding='utf-8') as replies:
    for line in sys.stdin:
      log, code, *arguments = json.loads(line)
      try:
        with _output_to(log):
          reply = _run(arguments, code), ''
      except OSError as error:  # As on a full disk, where a run cannot say what happened.
        reply = 1, f'its output cannot be written to {log} ({error.strerror})'
      print(json.dumps(reply), file=replies, flush=True)


def _run(arguments, code):
  try:
    return command_line.run('train', lambda: _train(arguments, code))
  except Exception:
    # What nobody foresaw ends this run alone; who asked for it takes another process then.
    traceback.print_exc()
    return 1
  finally:
    _forget()


def _train(arguments, code):
  config = flags.config_from(flags.parse(['train', *arguments]))
  if inputs.code(config) != code:
    raise types.UsageError(
        'code was changed since the grid began, and its cells would be of different code: undo '
        'that, or begin another grid (--root_dir) when this one has ended'
    )
  run.run(config)
  return 0


def _forget():
  """Lets go of the run's models and graphs."""
  if 'tensorflow' in sys.modules:
    sys.modules['tensorflow'].keras.backend.clear_session()
  gc.collect()


@contextlib.contextmanager
def _output_to(path: str) -> Iterator[None]:
  """Lets stdout and stderr, of child processes too, go to a new file at `path`."""
  with open(path, 'wb') as file:
    kept = os.dup(1), os.dup(2)
    for number in (1, 2):
      os.dup2(file.fileno(), number)
  try:
    yield
  finally:
    try:
      sys.stdout.flush()
      sys.stderr.flush()
    finally:
      for number, original in zip((1, 2), kept, strict=True):
        os.dup2(original, number)
        os.close(original)


if __name__ == '__main__':
  main([int(core) for core in sys.argv[1:]])
