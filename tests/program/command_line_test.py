import contextlib
import errno
import io
import os
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.program import command_line


class RunTest(parameterized.TestCase):
  """How a program ends."""

  def run_(self, error):
    """Returns the status and what is said where a program raises `error`."""
    def body():
      raise error

    with contextlib.redirect_stderr(io.StringIO()) as said:
      status = command_line.run('train', body, 'the same command continues')
    return status, said.getvalue()

  @parameterized.parameters(
      (types.UsageError('a\nb'), 2, 'train: a b\n'),
      (types.RunError('a worker ended'), 1, 'train: a worker ended\n'),
      (KeyboardInterrupt(), 130, 'train: interrupted; the same command continues\n'),
      (
          OSError(errno.ENOSPC, 'No space left on device', 'x'), 1,
          'train: no space is left on the disk, or of your share of it; make room, and the same '
          'command continues\n',
      ),
      (
          OSError(errno.EACCES, 'Permission denied', 'runs/a/metrics.csv'), 2,
          'train: runs/a/metrics.csv cannot be read or written (Permission denied): get the right '
          'to, or name another place\n',
      ),
      (
          OSError(errno.EROFS, 'Read-only file system', b'runs'), 2,
          'train: runs cannot be read or written (Read-only file system): get the right to, or '
          'name another place\n',
      ),
  )
  def test_mistakes_and_failures_are_one_line(self, error, status, said):
    self.assertEqual(self.run_(error), (status, said))

  @parameterized.parameters(
      (ValueError('a bug'),), (OSError(errno.EIO, os.strerror(errno.EIO)),),
      (PermissionError(errno.EPERM, 'of a process, not of a file'),),
  )
  def test_a_bug_keeps_its_traceback(self, error):
    with self.assertRaises(type(error)):
      self.run_(error)

  @parameterized.parameters('2>&-', '<&- 2>&-')
  def test_a_closed_stderr_is_no_failure_and_no_other_files_number(self, closed):
    program = (
        'import os\n'
        'from tff_noise.program import command_line\n'
        'def body():\n'
        '  print(os.readlink("/proc/self/fd/2"))\n'
        '  return 0\n'
        'raise SystemExit(command_line.run("train", body))'
    )
    done = subprocess.run(
        ['sh', '-c', f'exec "$0" -c "$1" {closed}', sys.executable, program],
        stdout=subprocess.PIPE,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)}, text=True, check=False,
    )
    self.assertEqual((done.returncode, done.stdout), (0, os.devnull + '\n'))


if __name__ == '__main__':
  absltest.main()
