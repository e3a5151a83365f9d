"""What tests of a method's section share: a run by hand, and the section's blocks."""

import os

import numpy as np
from absl.testing import parameterized

from tests.report import run_files
from tff_noise.report import blocks
from tff_noise.report import figure_style
from tff_noise.report import runs


class SectionTestCase(parameterized.TestCase):
  """A subclass says which `SECTION`, and overrides `contents`."""

  SECTION: blocks.Section

  def setUp(self):
    super().setUp()
    self.path = os.path.join(self.create_tempdir().full_path, 'a_run')

  def contents(self, **changes):
    """The contents of the run for `run_files.write`."""
    return changes

  def read(self, **changes):
    return runs.read_run(run_files.write(self.path, **self.contents(**changes)))

  def section(self, **changes):
    run = self.read(**changes)
    self.assertTrue(self.SECTION.applies(run))
    shown = self.SECTION.build(run, runs.read_scene(run))
    for block in shown:
      if isinstance(block, blocks.Picture):
        self.assertStartsWith(figure_style.png(block.figure), b'\x89PNG')
    return shown

  def texts(self, shown):
    return [b for b in shown if isinstance(b, blocks.Text)]

  def pictures(self, shown):
    return {b.name: b for b in shown if isinstance(b, blocks.Picture)}


def summary(method, **found):
  """The content of `summary.json` of another method."""
  result = run_files.summary(method=method, **found)
  del result['label_communication']
  return result


def unknown_truth():
  """The scene of `run_files`, of which nobody knows the truth."""
  return run_files.scene(
      clean_label=np.full(12, -1, np.int32), nominal_rate=np.full(3, np.nan),
      is_noisy_client=np.zeros(3, bool),
  )
