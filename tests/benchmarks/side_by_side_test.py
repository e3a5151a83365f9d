"""Several clients' steps at once are each one's own."""

import contextlib
import io
import re

from absl.testing import absltest

from benchmarks import side_by_side


class SideBySideTest(absltest.TestCase):

  def test_all_agree_and_are_timed(self):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
      side_by_side.main(['2', '3'])
    names = re.findall(r'^\| 2 clients, batch 3 \| (.*?) \|', said.getvalue(), re.MULTILINE)
    self.assertContainsSubset(['loop', 'vectorized_map', 'batched products', 'loop again'], names)


if __name__ == '__main__':
  absltest.main()
