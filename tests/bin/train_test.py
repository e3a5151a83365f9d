"""The command line: results, resume after SIGKILL, signals, mistakes.

What dies, or must not load TensorFlow, is a process of its own. The rest calls the program's main
here: to load TensorFlow again takes longer than what is tested.
"""

import contextlib
import csv
import functools
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from unittest import mock

import numpy as np
import psutil
from absl.testing import absltest
from absl.testing import parameterized
from PIL import Image

from bin import train
from tff_noise.data import noise
from tff_noise.data import partition
from tff_noise.data import scene as scene_lib
from tff_noise.data import sources
from tff_noise.models import architectures
from tff_noise.program import code_version

# As a user's: importing TensorFlow here has set variables of its own.
_ENVIRON = {k: v for k, v in os.environ.items() if not k.startswith('TF_')}
_WAIT_SECONDS = 300
_SMALL = ('--rounds=6', '--checkpoint_every=2', '--clients=6', '--clients_per_round=3')


def _start(*arguments, path=(), **changes):
  return subprocess.Popen(
      [sys.executable, '-m', 'bin.train', *arguments],
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      env={**_ENVIRON, 'PYTHONPATH': os.pathsep.join([*path, *sys.path])},
      **changes,
  )


def _run(*arguments, **changes):
  process = _start(*arguments, **changes)
  out, err = process.communicate(timeout=_WAIT_SECONDS)
  return process.returncode, out, err


def _run_here(*arguments):
  """What `_run` returns, without a process."""
  with (
      contextlib.redirect_stdout(io.StringIO()) as out,
      contextlib.redirect_stderr(io.StringIO()) as err,
  ):
    status = train.main(['train', *arguments])
  return status, out.getvalue(), err.getvalue()


def _read(path):
  with open(path, 'rb') as file:
    return file.read()


def _final_state(run):
  """All that the last checkpoint has, but for the hash that a run's own key is part of."""
  with np.load(os.path.join(run, 'state', 'round_6.npz')) as file:
    return {name: file[name].tobytes() for name in file.files if name != 'ledger/head'}


@functools.cache
def _whole_run():
  """Trains once, for all tests that only look at a finished run: its path and what it said."""
  root = tempfile.mkdtemp(dir=absltest.get_default_test_tmpdir())
  status, out, err = _run(f'--root_dir={root}', *_SMALL, '--run_name=whole')
  if status != 0:
    raise AssertionError(err)
  return os.path.join(root, 'whole'), out


class RunTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = self.create_tempdir().full_path

  def _train(self, *arguments):
    status, out, err = _run_here(f'--root_dir={self.root}', *_SMALL, *arguments)
    self.assertEqual(status, 0, err)
    return out

  def _refused(self, *arguments):
    status, _, err = _run_here(f'--root_dir={self.root}', *_SMALL, '--run_name=a', *arguments)
    self.assertEqual(status, 2)
    return err

  def _path(self, *names):
    return os.path.join(self.root, *names)

  def _finished(self):
    """Puts a finished run into the root, as 'a'; returns what the program said."""
    whole, out = _whole_run()
    shutil.copytree(whole, self._path('a'))
    return out

  def test_writes_what_the_design_promises(self):
    out = self._finished()
    for name in (
        'config.json', 'scene.npz', 'metrics.csv', 'clients.csv', 'privacy.json', 'uplink.json',
        'summary.json', 'state', 'tensorboard',
    ):
      self.assertTrue(os.path.exists(self._path('a', name)), name)
    with open(self._path('a', 'metrics.csv'), encoding='utf-8') as file:
      rows = list(csv.DictReader(file))
    self.assertEqual([int(r['round']) for r in rows], list(range(1, 7)))
    with open(self._path('a', 'summary.json'), encoding='utf-8') as file:
      summary = json.load(file)
    self.assertEqual(
        summary['best_test_accuracy'], max(float(r['test_accuracy']) for r in rows)
    )
    with open(self._path('a', 'config.json'), encoding='utf-8') as file:
      config = json.load(file)
    self.assertEqual(config['flags']['rounds'], 6)
    self.assertEqual(config['method_parameters']['contrast'], 'sampled')
    self.assertIn('tensorflow-federated', config['versions'])
    self.assertIn('no label-DP guarantee', ' '.join(out.split()))
    with open(self._path('a', 'privacy.json'), encoding='utf-8') as file:
      self.assertEqual(json.load(file)['totals'][0]['epsilon'], 'inf')

  def test_killed_again_and_again_it_ends_as_if_never_killed(self):
    self._finished()
    killed = 0
    # Before the first checkpoint, and after what was continued has made its second.
    for rounds_before in (1, 5):
      process = _start(f'--root_dir={self.root}', *_SMALL, '--run_name=killed')
      # Kills as soon as that many rounds are in the file, wherever the program is by then.
      metrics = self._path('killed', 'metrics.csv')
      while process.poll() is None:
        if os.path.exists(metrics) and _read(metrics).count(b'\n') > rounds_before:
          process.kill()
          killed += 1
          break
      process.communicate(timeout=_WAIT_SECONDS)
    self.assertGreater(killed, 0)
    # The whole run was another process, this is a third: same seed, same result.
    self._train('--run_name=killed')
    self.assertEqual(
        _read(self._path('a', 'metrics.csv')), _read(self._path('killed', 'metrics.csv'))
    )
    self.assertEqual(_final_state(self._path('a')), _final_state(self._path('killed')))
    self.assertEqual(
        _read(self._path('a', 'clients.csv')), _read(self._path('killed', 'clients.csv'))
    )

  def test_other_seed_other_scene_flips_and_batches(self):
    self._finished()
    scene = self._path('a', 'scene.npz')
    # With the scene of another seed, only flips, batches and initial weights are left to differ.
    self._train('--run_name=b', '--seed=2', '--rounds=2')
    status, _, err = _run_here(
        f'--root_dir={self.root}', '--run_name=c', '--seed=2', '--rounds=2',
        '--clients_per_round=3', f'--scene={scene}',
    )
    self.assertEqual(status, 0, err)
    scenes = {name: np.load(self._path(name, 'scene.npz')) for name in ('a', 'b', 'c')}
    for field in ('client_of', 'noisy_label'):
      np.testing.assert_array_equal(scenes['a'][field], scenes['c'][field])
      self.assertTrue((scenes['a'][field] != scenes['b'][field]).any())
    histograms = {}
    for name in ('a', 'c'):
      with open(self._path(name, 'summary.json'), encoding='utf-8') as file:
        histograms[name] = json.load(file)['label_communication']['raw']
    self.assertNotEqual(histograms['a'], histograms['c'])

  def test_a_finished_run_is_not_touched(self):
    self._finished()
    before = _read(self._path('a', 'summary.json'))
    out = self._train('--run_name=a')
    self.assertIn('is complete', out)
    self.assertIn('test accuracy', out)
    self.assertEqual(before, _read(self._path('a', 'summary.json')))

  def test_a_finished_run_of_other_code_is_not_shown_as_that_of_this(self):
    self._finished()

    with mock.patch.object(code_version, 'digest', lambda: 'abc123'):
      self.assertRegex(self._refused(), 'made by code .*, this is abc123: use ')
      self.assertIn('is complete', self._train('--run_name=a', '--resume_other_code'))

  def test_what_two_codes_report_has_no_bound(self):
    arguments = '--training_labels=private', '--learning_rate=0.5', '--run_name=p'
    self._train(*arguments)
    costs = [self._label_epsilon('p')]
    os.remove(self._path('p', 'summary.json'))
    os.remove(self._path('p', 'state', 'round_6.npz'))
    with mock.patch.object(code_version, 'digest', lambda: 'abc123'):
      self._train(*arguments, '--resume_other_code')
    costs.append(self._label_epsilon('p'))
    self.assertAlmostEqual(costs[0], 0.81, places=3)
    self.assertEqual(costs[1], 'inf')

  def _label_epsilon(self, name):
    with open(self._path(name, 'privacy.json'), encoding='utf-8') as file:
      return json.load(file)['totals'][0]['epsilon']

  def test_a_finished_run_of_other_data_is_not_shown_as_that_of_these(self):
    self._finished()
    other = sources.load(sources.DataSpec('digits'))
    other.train_x[0, 0, 0] += 1
    with mock.patch.object(sources, 'load', lambda spec: other):
      self.assertIn('was made from other training images: bring', self._refused())

  def test_a_run_is_begun_anew_where_that_is_asked_for(self):
    self._finished()
    before = _read(self._path('a', 'ledger.key'))
    metrics = _read(self._path('a', 'metrics.csv'))
    # What is wrong is told before anything is removed.
    self.assertIn('nothing_here', self._refused('--overwrite', '--metrics_hook=nothing_here:f'))
    self.assertEqual(_read(self._path('a', 'metrics.csv')), metrics)
    out = self._train('--run_name=a', '--learning_rate=0.2', '--rounds=1', '--overwrite')
    self.assertNotIn('is complete', out)
    self.assertNotEqual(_read(self._path('a', 'ledger.key')), before)
    self.assertLen(_read(self._path('a', 'metrics.csv')).splitlines(), 2)

  def test_what_differs_between_flags_is_refused_and_named(self):
    self._finished()
    err = self._refused('--learning_rate=0.2')
    self.assertIn('--learning_rate was 0.1, now 0.2', err)
    self.assertLen(err.splitlines(), 1)

  def test_corrupt_checkpoint_is_named_and_kept(self):
    self._finished()
    os.remove(self._path('a', 'summary.json'))
    checkpoint = self._path('a', 'state', 'round_6.npz')
    with open(checkpoint, 'wb') as file:
      file.write(b'no state')
    self.assertIn(checkpoint, self._refused().splitlines()[-1])
    self.assertTrue(os.path.exists(checkpoint))

  def test_secure_aggregation_and_fed_avg_run_too(self):
    out = self._train(
        '--method=fedavg', '--aggregation=secure_sum', '--model=cnn', '--norm=batch', '--rounds=1'
    )
    self.assertNotIn('Theorem 1', out)
    (run,) = os.listdir(self.root)
    with open(self._path(run, 'uplink.json'), encoding='utf-8') as file:
      self.assertEqual({f['disclosure'] for f in json.load(file)}, {'secure sum'})


class FedCorrTest(absltest.TestCase):

  def test_corrected_labels_and_judged_clients_are_written_also_after_a_kill(self):
    root = self.create_tempdir().full_path
    arguments = (
        f'--root_dir={root}', '--method=fedcorr', '--allow_per_client_disclosure', '--clients=6',
        '--clients_per_round=3', '--partition=iid', '--noise=client_uniform', '--noise_rho=0.5',
        '--rounds=8', '--stages=preprocess:2,finetune:2,usual:2', '--checkpoint_every=1',
        '--param=split_guard=false', '--local_epochs=1',
    )
    status, out, err = _run_here(*arguments, '--run_name=whole')
    self.assertEqual(status, 0, err)
    self.assertIn('lid of single clients', ' '.join(out.split()))
    process = _start(*arguments, '--run_name=killed')
    # In the middle of the second iteration, after labels were corrected for the first time.
    metrics = os.path.join(root, 'killed', 'metrics.csv')
    while process.poll() is None:
      if os.path.exists(metrics) and _read(metrics).count(b'\n') > 8:
        process.kill()
        break
    process.communicate(timeout=_WAIT_SECONDS)
    status, _, err = _run_here(*arguments, '--run_name=killed')
    self.assertEqual(status, 0, err)
    for name in ('metrics.csv', 'clients.csv', 'uplink.json', 'privacy.json'):
      self.assertEqual(
          _read(os.path.join(root, 'whole', name)), _read(os.path.join(root, 'killed', name)), name
      )
    found = [np.load(os.path.join(root, name, 'labels.npz')) for name in ('whole', 'killed')]
    scene = np.load(os.path.join(root, 'whole', 'scene.npz'))
    np.testing.assert_array_equal(found[0]['label'], found[1]['label'])
    np.testing.assert_array_equal(found[0]['corrected'], found[0]['label'] != scene['noisy_label'])
    with open(os.path.join(root, 'whole', 'metrics.csv'), encoding='utf-8') as file:
      rows = list(csv.DictReader(file))
    self.assertEqual(
        [r['stage'] for r in rows], ['preprocess'] * 12 + ['finetune'] * 2 + ['usual'] * 2
    )
    # Fine-tuning may find fewer clean clients than a round takes.
    self.assertEqual([r['clients'] for r in rows[:12] + rows[14:]], ['1'] * 12 + ['3'] * 2)
    # Evaluated at the ends of iterations.
    evaluated = [i for i, r in enumerate(rows, 1) if r['test_accuracy'] != 'nan']
    self.assertEqual(evaluated, [6, 12, 13, 14, 15, 16])
    with open(os.path.join(root, 'whole', 'summary.json'), encoding='utf-8') as file:
      summary = json.load(file)
    self.assertEqual(summary['labels_changed'], found[0]['corrected'].sum())
    self.assertEqual(
        summary['label_accuracy_after'], float(rows[-1]['label_accuracy'])
    )


def _write_npz(path):
  """A data set of 6x6 images, 3 classes and 4 clients, some labels wrong; says the test labels."""
  draw = np.random.default_rng(0)
  clean = np.arange(80) % 3
  test_y = np.repeat([0, 1, 2], (4, 5, 11))
  np.savez(
      path,
      x=draw.integers(0, 256, (80, 6, 6)).astype(np.uint8),
      y=np.where(np.arange(80) % 5 == 0, (clean + 1) % 3, clean),
      clean_y=clean,
      client=np.repeat([8, 3, 5, 1], 20),
      x_test=draw.integers(0, 256, (20, 6, 6)).astype(np.uint8),
      y_test=test_y,
  )
  return test_y


def _write_weights(path, favourite):
  """Weights of the MLP for `_write_npz`, which takes every image for class `favourite`."""
  network = architectures.MODELS['mlp'](
      (6, 6, 1), 3, norm='group', pixel_scale=1.0, pixel_offset=0.0, image_size=0
  )
  kernel, bias = network.get_layer('logits').weights
  kernel.assign(np.zeros(kernel.shape))
  bias.assign(100 * np.eye(3)[favourite])
  network.save_weights(path)


def _write_images(folder, classes, count, size):
  """PNG files of `count` images for each class, in a folder of its own."""
  draw = np.random.default_rng(0)
  for k, name in enumerate(classes):
    os.makedirs(os.path.join(folder, name))
    for i in range(count):
      pixels = draw.integers(0, 100, (*size, 3)) + 70 * k
      image = Image.fromarray(pixels.astype(np.uint8))
      image.save(os.path.join(folder, name, f'{i}.png'))


class DataTest(absltest.TestCase):
  """Runs on a user's own data."""

  def setUp(self):
    super().setUp()
    self.root = self.create_tempdir().full_path
    self.folder = self.create_tempdir().full_path

  def _train(self, *arguments):
    status, out, err = _run_here(
        f'--root_dir={self.root}', '--run_name=a', '--rounds=2', '--clients_per_round=2', *arguments
    )
    self.assertEqual(status, 0, err)
    return out, err

  def _path(self, name):
    return os.path.join(self.root, 'a', name)

  def _rows(self, name):
    with open(self._path(name), encoding='utf-8') as file:
      return list(csv.DictReader(file))

  def test_numpy_file_with_clients_human_labels_validation_and_weights(self):
    path = os.path.join(self.folder, 'mine.npz')
    test_y = _write_npz(path)
    weights = os.path.join(self.folder, 'mine.h5')
    _write_weights(weights, favourite=2)
    out, err = self._train(
        '--method=fedavg', '--dataset=npz', f'--data_dir={path}', '--partition=natural',
        '--noise=human', '--validation_fraction=0.25', f'--weights={weights}',
        # Nothing is learned: what is measured are the weights of the file.
        '--learning_rate=1e-30', '--eval_every=2',
    )
    self.assertIn(f'layers from {weights}', err)
    self.assertNotIn('--noise', err)
    first, last = self._rows('metrics.csv')
    for column in ('test_accuracy', 'test_loss', 'validation_accuracy', 'validation_loss'):
      self.assertEqual(first[column], 'nan')
    self.assertAlmostEqual(float(last['test_accuracy']), (test_y == 2).mean(), places=6)
    scene = np.load(self._path('scene.npz'))
    held = scene['client_of'] == -1
    self.assertEqual(held.sum(), 20)
    self.assertAlmostEqual(
        float(last['validation_accuracy']), (scene['clean_label'][held] == 2).mean(), places=6
    )
    # On the server's set the labels are the true ones, elsewhere those that people gave.
    changed = np.arange(80) % 5 == 0
    np.testing.assert_array_equal(
        scene['noisy_label'] != scene['clean_label'], changed & ~held
    )
    self.assertEqual([r['name'] for r in self._rows('clients.csv')], ['1', '3', '5', '8'])
    with open(self._path('summary.json'), encoding='utf-8') as file:
      summary = json.load(file)
    self.assertEqual(summary['validation_chosen_round'], 2)
    self.assertEqual(summary['clients'], 4)
    self.assertAlmostEqual(summary['label_noise_rate'], (changed & ~held).sum() / 60)
    self.assertIn("in round 2, the best on the server's validation set", out)
    with open(self._path('report.html'), encoding='utf-8') as file:
      self.assertIn('The server validates on 20 more.', file.read())

  def test_folder_of_images_with_a_validation_set_of_its_own(self):
    classes = ('cat', 'dog', 'eel')
    _write_images(os.path.join(self.folder, 'data', 'train'), classes, 12, (20, 13))
    _write_images(os.path.join(self.folder, 'data', 'test'), classes, 4, (9, 30))
    _write_images(os.path.join(self.folder, 'validation'), classes[:2], 3, (16, 16))
    out, err = self._train(
        '--dataset=image_folder', f'--data_dir={self.folder}/data', '--model=cnn',
        '--image_size=16', f'--validation_dir={self.folder}/validation', '--clients=4',
        '--partition=dirichlet', '--noise=pairflip', '--noise_rate=0.2', '--local_epochs=1',
        '--augmentation=crop_flip', '--label_smoothing=0.1', '--temperature=10',
    )
    self.assertIn('--noise=pairflip makes labels of --data_dir wrong', err)
    for row in self._rows('metrics.csv'):
      for column in ('test_accuracy', 'validation_accuracy'):
        self.assertBetween(float(row[column]), 0, 1)
      # Six images: another set was not looked at.
      self.assertAlmostEqual(float(row['validation_accuracy']) * 6 % 1, 0, places=5)
      self.assertTrue(np.isfinite(float(row['train_loss'])))
    self.assertIn("the best on the server's validation set", out)
    # The paths of the images are nobody's business but the data set's.
    self.assertNotIn(b'.png', _read(self._path('scene.npz')))


class SignalTest(parameterized.TestCase):

  @parameterized.parameters(
      (signal.SIGINT, 130, '--rounds=100000', 3),
      (signal.SIGTERM, 143, '--rounds=100000', 3),
      # In the first round, which would take days.
      (signal.SIGINT, 130, '--local_epochs=100000000', 0),
  )
  def test_stops_without_leaving_a_process(self, number, status, flag, rounds):
    root = self.create_tempdir().full_path
    process = _start(f'--root_dir={root}', '--run_name=a', flag)
    # What clients will send is entered there before they are asked.
    file = os.path.join(root, 'a', 'metrics.csv' if rounds else 'ledger.jsonl')
    while process.poll() is None and not (
        os.path.exists(file) and _read(file).count(b'\n') >= max(rounds, 1)
    ):
      time.sleep(0.05)  # Polls a file; what follows does not depend on how long it took.
    children = psutil.Process(process.pid).children(recursive=True)
    # TFF's worker, and what isolates it.
    self.assertLen(children, 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=_WAIT_SECONDS)
    self.assertEqual(process.returncode, status, out + err)
    self.assertNotIn('Traceback', err)
    psutil.wait_procs(children, timeout=_WAIT_SECONDS)
    for child in children:
      self.assertFalse(child.is_running() and child.status() != 'zombie')


class LateMistakeTest(parameterized.TestCase):
  """Mistakes that only a method or a model can find, before anything is written."""

  _FEDCORR = '--method=fedcorr --allow_per_client_disclosure'

  @parameterized.parameters(
      ('--model=cnn --image_size=2', '--model=cnn', 'use a larger --image_size'),
      (
          f'{_FEDCORR} --param=lid_neighbours=1000', '--param=lid_neighbours=1000',
          'use a smaller number',
      ),
      ('--arrivals=missing.csv', '--arrivals=missing.csv', 'client, joins, leaves'),
      ('--method=rhfl', 'rhfl', 'name some by --public_dataset'),
      (
          f'--method=rhfl --public_dataset=digits --public_examples=9 --weights={sys.executable}',
          '--weights', 'leave it out',
      ),
      (
          '--method=rhfl --public_dataset=digits --public_examples=9 '
          '--param=architectures=mlp+alexnet', '--param=architectures', 'mlp, cnn, resnet18',
      ),
  )
  def test_one_line_status_two_and_no_directory(self, arguments, flag, advice):
    root = os.path.join(self.create_tempdir().full_path, 'runs')
    run = _run if arguments == '--method=rhfl' else _run_here  # Each takes ten seconds.
    status, out, err = run(
        f'--root_dir={root}', '--clients=6', '--clients_per_round=3', *arguments.split()
    )
    self.assertEqual(status, 2, err)
    *before, line = err.splitlines()
    # What it is doing meanwhile is all else that it says.
    self.assertContainsSubset(before, ['Loading TensorFlow Federated...'])
    self.assertIn(flag, line)
    self.assertIn(advice, line)
    self.assertEqual(out, '')
    self.assertEmpty(os.listdir(root) if os.path.exists(root) else [])


_MISTAKES = (
    ('--method=fedavgg', '--method', 'fedavg, fedprox, '),
    ('--dataset=mnist', '--dataset', 'digits'),
    ('--noise=loud', '--noise', 'none, symmetric, random'),
    ('--partition=fair', '--partition', 'iid, bernoulli_dirichlet, dirichlet, openset_uniform'),
    ('--partition=natural', '--partition=natural', '--dataset=npz with a client array'),
    ('--dataset=npz', '--data_dir', 'an .npz file with the arrays x and y'),
    ('--dataset=cifar10n', '--noise', 'human'),
    ('--dataset=cifar10 --data_dir=missing', 'missing', 'cs.toronto.edu'),
    ('--dataset=npz --data_dir=missing.npz', 'missing.npz', 'neither a file nor a folder'),
    ('--dataset=image_folder --data_dir=missing', 'missing/train', 'must hold train/ and test/'),
    ('--validation_dir=missing', 'missing cannot be read', 'for each class'),
    ('--validation_dir=x --validation_fraction=0.1', '--validation_dir', 'cannot be given'),
    ('--validation_fraction=0.999999', '--validation_fraction', 'leaves no example'),
    ('--noise=client_uniform', '--noise=client_uniform', 'use another partition'),
    ('--noise=matrix --noise_matrix=missing.csv', '--noise_matrix=missing.csv', 'no such file'),
    ('--openset_q=missing.npy', '--openset_q=missing.npy', 'no such file'),
    ('--scene=x.npz --noise_rho=0.5', '--noise_rho', 'cannot be given with --scene'),
    ('--param=beta=1', '--param', 'contrast, weight'),
    ('--method=fedcorr', 'LID score', '--allow_per_client_disclosure'),
    ('--stages=finetune:3', '--stages', 'feddpcont has none'),
    ('--label_epsilon=0', '--label_epsilon', 'positive'),
    ('--label_epsilon=-1', '--label_epsilon', 'positive'),
    ('--label_epsilon=nan', '--label_epsilon', 'positive'),
    ('--label_epsilon=much', '--label_epsilon', 'positive'),
    ('--noise_rate=1.01', '--noise_rate', '[0, 1]'),
    ('--noise_rate=-0.01', '--noise_rate', '[0, 1]'),
    ('--clients=1401', '--clients', '1400'),
    ('--rounds=0', '--rounds', 'at least 1'),
    ('--rounds=many', '--rounds', 'many'),
    ('--no_such_flag', 'no_such_flag', ''),
    ('stray', 'stray', '--name=value'),
    ('--scene=missing.npz', 'missing.npz', 'no such file'),
    ('--weights=missing.h5', 'missing.h5', 'give a Keras H5 file'),
    ('--model=missing:network', '--model=missing:network', 'package.module:NAME'),
    ('--metrics_hook=missing:hook', '--metrics_hook=missing:hook', 'package.module:NAME'),
    ('--early_stopping=2', '--early_stopping', 'give --client_validation_fraction'),
    ('--flagfile=missing.flags', 'missing.flags', 'a flag on each line'),
    (f'--flagfile={sys.executable}', '--flagfile is no text', 'a flag on each line'),
)

# Calls the program for each line of arguments on stdin.
_ANSWER = '''
import contextlib, io, json, sys
from bin import train
answers = []
for arguments in json.load(sys.stdin):
  with contextlib.redirect_stdout(io.StringIO()) as out:
    with contextlib.redirect_stderr(io.StringIO()) as err:
      status = train.main(['train', *arguments.split()])
  answers.append((status, out.getvalue(), err.getvalue()))
json.dump(answers, sys.stdout)
'''


@functools.cache
def _stub():
  """A TensorFlow that cannot be imported: mistakes must be answered before it is needed."""
  folder = tempfile.mkdtemp(dir=absltest.get_default_test_tmpdir())
  for name in ('tensorflow', 'tensorflow_federated'):
    with open(os.path.join(folder, f'{name}.py'), 'w', encoding='utf-8') as file:
      file.write('raise RuntimeError("imported too early")')
  return folder


@functools.cache
def _answers():
  """What the program says to each of `_MISTAKES`, and the folder that it was to write to."""
  root = os.path.join(tempfile.mkdtemp(dir=absltest.get_default_test_tmpdir()), 'runs')
  more = f'--root_dir={root} --clients_per_round=5'
  calls = [f'{arguments} {more}' for arguments, _, _ in _MISTAKES]
  done = subprocess.run(
      [sys.executable, '-c', _ANSWER], input=json.dumps(calls), capture_output=True, text=True,
      env={**_ENVIRON, 'PYTHONPATH': os.pathsep.join([_stub(), *sys.path])}, check=False,
  )
  if done.returncode:
    raise AssertionError(done.stderr)
  answers = json.loads(done.stdout)
  return {case[0]: answer for case, answer in zip(_MISTAKES, answers, strict=True)}, root


class MistakeTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = os.path.join(self.create_tempdir().full_path, 'runs')

  @parameterized.parameters(*_MISTAKES)
  def test_one_line_status_two_and_nothing_written(self, arguments, flag, allowed):
    answers, root = _answers()
    status, out, err = answers[arguments]
    self.assertEqual(status, 2, err)
    self.assertLen(err.splitlines(), 1, err)
    self.assertIn(flag, err)
    self.assertIn(allowed, err)
    self.assertEqual(out, '')
    self.assertEmpty(os.listdir(root) if os.path.exists(root) else [])

  def test_a_file_of_flags_may_be_a_pipe(self):
    read, written = os.pipe()
    self.addCleanup(os.close, read)
    os.write(written, b'--clients=0\n')
    os.close(written)
    status, _, err = _run_here(f'--flagfile=/dev/fd/{read}')
    self.assertEqual(status, 2)
    self.assertIn('--clients must be', err)

  def test_a_value_of_two_lines_is_told_in_one(self):
    status, _, err = _run_here('--noise=loud\nand clear')
    self.assertEqual(status, 2)
    self.assertLen(err.splitlines(), 1)

  def test_a_process_ends_with_that_status(self):
    arguments = f'--root_dir={self.root} --method=fedavgg --clients_per_round=5'
    answers, _ = _answers()
    status, out, err = _run(*arguments.split(), path=[_stub()])
    self.assertEqual([status, out, err], answers['--method=fedavgg'])

  def test_unwritable_directory(self):
    # A file where the folder should be: permissions do not stop root.
    blocker = self.create_tempfile(content='x').full_path
    status, _, err = _run(f'--root_dir={blocker}', path=[_stub()])
    self.assertEqual(status, 2)
    self.assertIn(f'--root_dir {blocker}', err)
    self.assertLen(err.splitlines(), 1)

  def test_labels_out_of_range_in_a_scene(self):
    dataset = sources.load(sources.DataSpec('digits'))
    spec = scene_lib.SceneSpec(partition.PartitionSpec('iid', 5), noise.NoiseSpec('none'))
    built = scene_lib.build(dataset, spec, 0)
    built.noisy_label[3] = 10
    path = os.path.join(self.create_tempdir().full_path, 'scene.npz')
    scene_lib.save(built, path)
    status, _, err = _run(
        f'--root_dir={self.root}', f'--scene={path}', '--clients_per_round=5',
        path=[_stub()],
    )
    self.assertEqual(status, 2)
    self.assertIn('label 10 of example 3 is out of range', err)

  @parameterized.parameters(('--help', '--label_epsilon'), ('--list_methods', 'feddpcont'))
  def test_help_needs_no_tensorflow(self, argument, expected):
    status, out, err = _run(argument, path=[_stub()])
    self.assertEqual(status, 0, err)
    self.assertIn(expected, out)


if __name__ == '__main__':
  absltest.main()
