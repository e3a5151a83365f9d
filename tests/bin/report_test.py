"""The command line of the report, in real processes."""

import os
import subprocess
import sys

import matplotlib
from absl.testing import absltest
from absl.testing import parameterized

from tests.report import run_files

_LOADED = """
import sys
from bin import report
status = report.main(sys.argv)
heavy = {'tensorflow', 'tensorflow_federated', 'pandas', 'sklearn'} & set(sys.modules)
drawing = {'matplotlib', 'matplotlib.pyplot', 'jinja2'} & set(sys.modules)
print(sorted(heavy), sorted(drawing))
sys.exit(status)
"""


def _run(*arguments, program=('-m', 'bin.report'), **environment):
  done = subprocess.run(
      [sys.executable, *program, *arguments],
      stdin=subprocess.DEVNULL,
      capture_output=True,
      text=True,
      check=False,
      env={
          **os.environ,
          'PYTHONPATH': os.pathsep.join(sys.path),
          # Matplotlib's list of fonts, made once and not by every process.
          'MPLCONFIGDIR': os.path.join(absltest.get_default_test_tmpdir(), 'matplotlib'),
          **environment,
      },
  )
  return done.returncode, done.stdout, done.stderr


class ReportTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = self.create_tempdir().full_path
    self.path = run_files.write(os.path.join(self.root, 'a_run'))

  def test_writes_the_report_and_says_where(self):
    status, out, err = _run(f'--run_dir={self.path}')
    self.assertEqual((status, err), (0, ''))
    self.assertEqual(out.strip(), os.path.join(self.path, 'report.html'))
    self.assertTrue(os.path.exists(out.strip()))

  def test_home_that_cannot_be_written_to_is_no_news(self):
    # Where there is `fc-list`, which Matplotlib asks for fonts, it has a cache of its own.
    config = os.path.join(self.root, 'fonts.conf')
    with open(config, 'w', encoding='utf-8') as file:
      file.write(
          f'<fontconfig><dir>{matplotlib.get_data_path()}</dir>'
          '<cachedir>/dev/null/nowhere</cachedir></fontconfig>'
      )
    status, _, err = _run(
        f'--run_dir={self.path}', MPLCONFIGDIR='/dev/null/nowhere', FONTCONFIG_FILE=config
    )
    self.assertEqual((status, err), (0, ''))

  def test_paths_are_meant_from_where_the_user_stands(self):
    status, out, err = _run('--run_dir=a_run', BUILD_WORKING_DIRECTORY=self.root)
    self.assertEqual(status, 0, err)
    self.assertEqual(out.strip(), os.path.join(self.path, 'report.html'))

  def test_help_draws_nothing_and_report_loads_no_tensorflow(self):
    program = ('-c', _LOADED)
    status, out, _ = _run('--help', program=program)
    self.assertEqual(status, 0)
    self.assertIn('--run_dir', out)
    self.assertEqual(out.splitlines()[-1], '[] []')
    status, out, err = _run(f'--run_dir={self.path}', program=program)
    self.assertEqual((status, out.splitlines()[-1]), (0, "[] ['jinja2', 'matplotlib']"), err)

  @parameterized.parameters(
      ((), '--run_dir is needed'),
      (('--run_dir=',), '--run_dir is needed'),
      (('--run_dir=nowhere',), 'nowhere is not a run: no such directory'),
      (('--run_dir=.',), '. is not a run: it has no config.json; give the folder of one'),
      (('--run_dri=a_run',), "Unknown command line flag 'run_dri'"),
      (('a_run',), "unexpected argument 'a_run'"),
  )
  def test_mistakes_are_one_line(self, arguments, message):
    status, out, err = _run(*arguments, BUILD_WORKING_DIRECTORY=self.root)
    self.assertEqual((status, out), (2, ''))
    self.assertStartsWith(err, 'report: ')
    self.assertIn(message, err)
    self.assertEqual(err.count('\n'), 1)


if __name__ == '__main__':
  absltest.main()
