"""Tests of the limit on malloc's heaps, in real processes."""

import os
import subprocess
import sys
from unittest import mock

from absl.testing import absltest

from tff_noise import heaps

# More threads than cores at the same time, each of which needs memory; malloc tells of its heaps.
_COUNT = """
import ctypes, os, sys, tempfile, threading
from tff_noise import heaps
if 'limit' in sys.argv:
  heaps.limit()
threads = os.cpu_count() + 4
barrier = threading.Barrier(1 + threads)
def hold():
  held = bytes(10_000)
  barrier.wait()
  barrier.wait()
for _ in range(threads):
  threading.Thread(target=hold).start()
barrier.wait()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
with tempfile.NamedTemporaryFile() as file:
  stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b'w'))
  libc.malloc_info(0, stream)
  libc.fclose(stream)
  print(file.read().count(b'<heap '))
barrier.wait()
"""


def _heaps(*arguments, **environment):
  kept = {k: v for k, v in os.environ.items() if not k.startswith('MALLOC_')}
  environment = {**kept, 'PYTHONPATH': os.pathsep.join(sys.path), **environment}
  return int(
      subprocess.check_output([sys.executable, '-c', _COUNT, *arguments], env=environment)
  )


class HeapsTest(absltest.TestCase):

  def test_as_many_as_cores(self):
    self.assertGreater(_heaps(), os.cpu_count())
    self.assertLessEqual(_heaps('limit'), os.cpu_count())

  def test_children_have_the_limit(self):
    self.assertLessEqual(
        _heaps(MALLOC_ARENA_MAX=heaps.environment()['MALLOC_ARENA_MAX']), os.cpu_count()
    )

  def test_the_users_own_limit_holds(self):
    self.assertEqual(_heaps('limit', MALLOC_ARENA_MAX='1'), 1)
    with mock.patch.dict(os.environ, MALLOC_ARENA_MAX='5'):
      self.assertEqual(heaps.environment()['MALLOC_ARENA_MAX'], '5')


if __name__ == '__main__':
  absltest.main()
