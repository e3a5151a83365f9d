"""The README's example runs as it stands."""

import os
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.algorithms import catalog

_WAIT_SECONDS = 300


class ReadmeTest(absltest.TestCase):

  def test_example_prints_three_losses(self):
    with open('README.md', encoding='utf-8') as file:
      text = file.read()
    section = text.split('<!-- example -->')[1].split('<!-- end of example -->')[0]
    code = section.split('```python\n')[1].split('```')[0]
    result = subprocess.run(
        [sys.executable, '-c', code],
        capture_output=True,
        text=True,
        timeout=_WAIT_SECONDS,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        check=False,
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertLen([float(line) for line in result.stdout.split()], 3)


class TablesTest(parameterized.TestCase):

  @parameterized.parameters('README.md', 'docs/privacy.md')
  def test_every_method_is_in_a_table(self, page):
    with open(page, encoding='utf-8') as file:
      named = ''.join(line for line in file if line.startswith('|'))
    self.assertEmpty([name for name in catalog.ALGORITHMS if f'`{name}`' not in named])


if __name__ == '__main__':
  absltest.main()
