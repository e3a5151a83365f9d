"""Tests of loading large modules, in processes of their own: what is loaded stays."""

import os
import subprocess
import sys

from absl.testing import absltest

_LOAD = """
import gc, sys
from tff_noise import loading
with loading.large_modules():
  import tensorflow_federated as tff
"""


def _python(code, load=_LOAD):
  environment = {
      **os.environ, 'PYTHONPATH': os.pathsep.join(sys.path), 'TF_CPP_MIN_LOG_LEVEL': '3'
  }
  return subprocess.run(
      [sys.executable, '-c', load + code],
      env=environment, capture_output=True, text=True, check=False,
  )


class LargeModulesTest(absltest.TestCase):

  def test_garbage_is_looked_for_again_but_not_among_what_was_loaded(self):
    found = _python('print(gc.isenabled(), gc.get_freeze_count() > 100_000, len(gc.get_objects()))')
    self.assertEqual(found.returncode, 0, found.stderr)
    enabled, frozen, looked_at = found.stdout.split()
    self.assertEqual((enabled, frozen), ('True', 'True'))
    self.assertLess(int(looked_at), 1000)
    # TFF's default context would complain when Python ends.
    self.assertEqual(found.stderr, '')

  def test_a_second_block_keeps_no_garbage_of_what_came_between(self):
    found = _python("""
before = gc.get_freeze_count()
with loading.large_modules():
  pass
print(gc.get_freeze_count() - before)
""")
    self.assertEqual((found.stdout, found.stderr), ('0\n', ''))

  def test_outside_a_runtime_nothing_is_computed(self):
    found = _python('tff.tensorflow.computation(lambda: 1)()')
    self.assertEqual(found.returncode, 1)
    self.assertEndsWith(found.stderr.strip(), 'need a runtime: see tff_noise.runtimes')

  def test_in_a_runtime_it_is(self):
    found = _python("""
from tff_noise.runtimes import local
with local.runtime(1):
  print(tff.tensorflow.computation(lambda: 1)())
""")
    self.assertEqual((found.stdout, found.stderr), ('1\n', ''))

  def test_a_program_that_loads_them_by_itself_ends_without_an_error_of_tffs(self):
    # What it computes outside of a runtime is done by TFF's default context, as ever.
    found = _python(load='', code="""
import tensorflow_federated as tff
from tff_noise.models import keras_model
from tff_noise.runtimes import local
one = tff.tensorflow.computation(lambda: 1)
with local.runtime(1):
  print(one())
print(one() + 1)
""")
    self.assertEqual((found.stdout, found.stderr), ('1\n2\n', ''))

  def test_garbage_is_looked_for_after_an_error_too(self):
    found = _python("""
try:
  with loading.large_modules():
    raise ImportError
except ImportError:
  print(gc.isenabled())
""")
    self.assertEqual(found.stdout, 'True\n')


if __name__ == '__main__':
  absltest.main()
