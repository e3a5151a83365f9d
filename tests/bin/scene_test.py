"""The command that makes scenes, in real processes."""

import os
import subprocess
import sys

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from PIL import Image

from tff_noise.data import scene as scene_lib
from tff_noise.program import data
from tff_noise.program import flags

_PICTURES = ('bubbles.png', 'before_and_after.png', 'transition_matrix.png', 'noise_rates.png')
_FILES = ('scene.npz', 'statistics.txt', *_PICTURES)


def _read(path):
  with open(path, 'rb') as file:
    return file.read()


def _trained_on(*arguments):
  """The data set and the scene that bin/train has from the same flags."""
  config = flags.config_from(flags.parse(['train', *arguments]))
  dataset = data.load_dataset(config)
  return dataset, data.load_scene(config, dataset, None)


class SceneTestCase(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    # A TensorFlow that cannot be imported: nothing here may need it.
    self.stub = self.create_tempdir()
    for name in ('tensorflow', 'tensorflow_federated'):
      self.stub.create_file(f'{name}.py', content='raise RuntimeError("imported")')
    self.folder = self.create_tempdir().full_path

  def run_scene(self, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, '-m', 'bin.scene', *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        cwd=self.folder,
        env={
            **os.environ,
            'PYTHONPATH': os.pathsep.join(
                [self.stub.full_path, *(os.path.abspath(p) for p in sys.path)]
            ),
            # Matplotlib's list of fonts, made once and not by every process.
            'MPLCONFIGDIR': os.path.join(absltest.get_default_test_tmpdir(), 'matplotlib'),
            **environment,
        },
    )
    return done.returncode, done.stdout, done.stderr

  def make(self, *arguments):
    status, out, err = self.run_scene(*arguments)
    self.assertEqual((status, err), (0, ''))
    return out

  def path(self, *names):
    return os.path.join(self.folder, *names)


class SceneTest(SceneTestCase):

  def test_writes_the_scene_its_statistics_and_pictures(self):
    out = self.make('--out_dir=a/b', '--validation_fraction=0.1')
    self.assertCountEqual(os.listdir(self.path('a/b')), _FILES)
    statistics = _read(self.path('a/b/statistics.txt')).decode()
    self.assertStartsWith(out, statistics)
    self.assertIn('1,260 of 20 clients, 140 more held by the server', statistics)
    self.assertEqual(
        out.removeprefix(statistics).splitlines(), [f'a/b/{name}' for name in _PICTURES]
    )
    for name in _PICTURES:
      with Image.open(self.path('a/b', name)) as image:
        image.load()
        self.assertGreater(min(image.size), 200, name)
        self.assertGreater(np.asarray(image.convert('L')).std(), 5, name)

  @parameterized.parameters(
      ('--seed=3', '--clients=7', '--partition=openset_dirichlet', '--noise=random'),
      ('--partition=bernoulli_dirichlet', '--noise=client_uniform', '--noise_semantics=reference'),
      # Separate words, and the folder in their midst.
      ('--clients', '9', '--partition', 'iid', '--noise', 'instance', '--validation_fraction=0.2'),
  )
  def test_is_the_scene_that_training_draws_from_the_same_flags(self, *arguments):
    self.make(*arguments[:2], '--out_dir=made', *arguments[2:])
    dataset, expected = _trained_on('--clients_per_round=5', *arguments)
    path = self.path('made', 'scene.npz')
    # It is accepted in place of those flags, too.
    _, given = _trained_on('--clients_per_round=5', f'--scene={path}')
    for built in (scene_lib.load(path, dataset), given):
      self.assertEqual(built.notes, expected.notes)
      for name in scene_lib.Scene._fields[:-1]:
        np.testing.assert_array_equal(getattr(built, name), getattr(expected, name), name)

  def test_shows_a_scene_that_is_there(self):
    first = self.make('--out_dir=a', '--noise=pairflip', '--clients=5')
    again = self.make('--out_dir=b', '--scene=a/scene.npz')
    self.assertEqual(again.replace('b/', 'a/'), first)
    for name in _PICTURES:
      self.assertEqual(_read(self.path('a', name)), _read(self.path('b', name)), name)

  def test_is_named_by_data_set_seed_and_flags(self):
    self.make('--seed=4')
    self.make('--seed=4')
    self.make('--seed=4', '--clients=3')
    names = os.listdir(self.path('scenes'))
    self.assertLen(names, 2)
    for name in names:
      self.assertRegex(name, '^digits_seed4_[0-9a-f]{8}$')

  def test_a_single_client_is_a_scene(self):
    # What feddpcont, the default method, or the default cohort of ten would refuse.
    self.make('--out_dir=a', '--clients=1', '--partition=iid')
    self.assertEqual(len(np.load(self.path('a', 'scene.npz'))['nominal_rate']), 1)

  def test_flags_may_come_from_a_file(self):
    self.create_tempfile(self.path('my.flags'), content='--clients=4\n--out_dir=mine\n')
    out = self.make('--flagfile=my.flags', '--noise=none')
    self.assertIn('of 4 clients', out)
    self.assertCountEqual(os.listdir(self.path('mine')), _FILES)

  def test_pictures_for_papers(self):
    out = self.make('--out_dir=a', '--also=pdf,svg')
    self.assertIn('a/bubbles.png\na/bubbles.pdf\na/bubbles.svg\n', out)
    self.assertLen(os.listdir(self.path('a')), 2 + 3 * len(_PICTURES))
    self.assertStartsWith(_read(self.path('a/noise_rates.pdf')), b'%PDF')

  def test_works_where_bazel_was_started(self):
    elsewhere = self.create_tempdir().full_path
    status, _, err = self.run_scene('--out_dir=a', BUILD_WORKING_DIRECTORY=elsewhere)
    self.assertEqual((status, err), (0, ''))
    self.assertCountEqual(os.listdir(os.path.join(elsewhere, 'a')), _FILES)

  def test_where_nobody_knows_the_true_labels(self):
    keys = [f'images/0/00/{i},{i}.jpg' for i in range(30)]
    root = self.create_tempdir()
    labels = {
        'noisy_label_kv': ''.join(f'{key} {i % 14}\n' for i, key in enumerate(keys[:25])),
        'clean_label_kv': ''.join(f'{key} {i % 14}\n' for i, key in enumerate(keys[25:])),
        'noisy_train_key_list': '\n'.join(keys[:25]),
        'clean_test_key_list': '\n'.join(keys[25:]),
    }
    for name, content in labels.items():
      root.create_file(f'{name}.txt', content=content)
    for key in keys:
      root.create_file(key)  # Empty: a scene does not look at images.
    out = self.make(
        '--dataset=clothing1m', f'--data_dir={root.full_path}', '--noise=human', '--clients=4',
        '--partition=iid', '--out_dir=a',
    )
    self.assertRegex(out, r'wrong labels +unknown')
    self.assertCountEqual(
        os.listdir(self.path('a')),
        ['scene.npz', 'statistics.txt', 'bubbles.png', 'noise_rates.png'],
    )

  def test_help(self):
    out = self.make('--help')
    self.assertIn('--out_dir', out)
    self.assertIn('bazelw run //bin:scene', out)
    self.assertEmpty(os.listdir(self.folder))


class MistakeTest(SceneTestCase):

  @parameterized.parameters(
      ('--clientz=3', 'clientz'),
      ('stray', 'unexpected argument'),
      ('--out_dir', 'Missing value for flag --out_dir'),
      ('--clients=0', '--clients must be at least 1'),
      ('--clients=1401', '--clients must be at most the 1400 training examples'),
      ('--dataset=npz', '--dataset=npz needs --data_dir'),
      ('--noise=client_uniform', '--noise=client_uniform gives each client a rate of its own'),
      ('--scene=missing.npz', 'missing.npz: no such file'),
      ('--public_dataset=digits', '--public_dataset has no effect on a scene: leave it out'),
      ('--validation_dir=d', '--validation_dir has no effect on a scene: leave it out'),
      ('--out_dir=/dev/null/x', '--out_dir /dev/null/x cannot be written to'),
  )
  def test_one_line_status_two_and_nothing_written(self, argument, message):
    status, _, err = self.run_scene(argument)
    self.assertEqual(status, 2, err)
    self.assertLen(err.splitlines(), 1, err)
    self.assertStartsWith(err, 'scene: ')
    self.assertIn(message, err)
    self.assertEmpty(os.listdir(self.folder))

  def test_the_scene_of_a_run_is_not_replaced(self):
    run = os.path.join(self.folder, 'run')
    os.mkdir(run)
    with open(os.path.join(run, 'config.json'), 'w', encoding='utf-8'):
      pass
    status, _, err = self.run_scene(f'--out_dir={run}')
    self.assertEqual(status, 2, err)
    self.assertIn('is the folder of a run, whose files would be lost: name another', err)
    self.assertEqual(os.listdir(run), ['config.json'])


if __name__ == '__main__':
  absltest.main()
