"""Runs one module of tests, for BUILD files: its name is the first argument, absl's follow."""

import importlib
import sys

from absl.testing import absltest

from tff_noise import loading

if __name__ == '__main__':
  _module = sys.argv.pop(1)
  with loading.large_modules():
    importlib.import_module(_module)
  absltest.main(module=_module)
