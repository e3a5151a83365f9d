"""Runs modules of tests in one process, for BUILD files.

Their names, with commas between, are the first argument; absl's follow.
"""

import gc
import importlib
import sys

from absl.testing import absltest

from tff_noise import loading

if __name__ == '__main__':
  _modules = sys.argv.pop(1).split(',')
  with loading.large_modules():
    for _module in _modules:
      importlib.import_module(_module)
  # Graphs are built in most of the time, of objects that live: Python looks for garbage less often.
  gc.set_threshold(50_000)
  if len(_modules) == 1:
    absltest.main(module=_modules[0])
  absltest.main(module=None, argv=[sys.argv[0], *_modules, *sys.argv[1:]])
