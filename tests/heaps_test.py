"""Tests of malloc's heaps, in real processes."""

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


# What a process holds of blocks of 1 MiB after it has given them back, in MiB.
_KEEP = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.memset.restype = ctypes.c_void_p
libc.memset.argtypes = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
libc.free.argtypes = ctypes.c_void_p,
def resident():
  with open('/proc/self/statm') as file:
    return int(file.read().split()[1]) * resource.getpagesize() // 2**20
before = resident()
blocks = (ctypes.c_void_p * 100)()
for i in range(100):
  blocks[i] = libc.malloc(2**20)
  libc.memset(blocks[i], 1, 2**20)
for block in blocks:
  libc.free(block)
print(resident() - before)
"""


def _number(script, *arguments, **environment):
  kept = {k: v for k, v in os.environ.items() if not k.startswith('MALLOC_')}
  environment = {**kept, 'PYTHONPATH': os.pathsep.join(sys.path), **environment}
  return int(
      subprocess.check_output([sys.executable, '-c', script, *arguments], env=environment)
  )


class HeapsTest(absltest.TestCase):

  def test_as_many_as_cores(self):
    self.assertGreater(_number(_COUNT), os.cpu_count())
    self.assertLessEqual(_number(_COUNT, 'limit'), os.cpu_count())

  @mock.patch.object(os, 'cpu_count')
  def test_a_worker_has_one_for_two_cores(self, cpu_count):
    for cores, expected in (1, 1), (2, 1), (3, 1), (4, 2):
      cpu_count.return_value = cores
      self.assertEqual(_number(_COUNT, **heaps.worker_environment()), expected)

  def test_a_worker_keeps_its_memory(self):
    self.assertLess(_number(_KEEP), 20)
    self.assertGreater(_number(_KEEP, **heaps.worker_environment()), 90)

  def test_the_users_own_setting_holds(self):
    self.assertEqual(_number(_COUNT, 'limit', MALLOC_ARENA_MAX='1'), 1)
    with mock.patch.dict(os.environ, MALLOC_ARENA_MAX='5', MALLOC_TRIM_THRESHOLD_='7'):
      environment = heaps.worker_environment()
    self.assertEqual(environment['MALLOC_ARENA_MAX'], '5')
    self.assertEqual(environment['MALLOC_TRIM_THRESHOLD_'], '7')


if __name__ == '__main__':
  absltest.main()
