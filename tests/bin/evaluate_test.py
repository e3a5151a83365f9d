"""Tests of the evaluation of a run's models, and of what it writes."""

import csv
import dataclasses
import json
import os
import tempfile
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized
from PIL import Image

from bin import evaluate
from bin import train
from tff_noise import types
from tff_noise.data import sources
from tff_noise.evaluation import evaluation
from tff_noise.evaluation import examples
from tff_noise.evaluation import page
from tff_noise.program import data as data_lib
from tff_noise.program import flags
from tff_noise.report import runs

_RUN = None


def _run():
  """A run that is trained once for all tests."""
  global _RUN
  if _RUN is None:
    root = tempfile.mkdtemp(dir=absltest.get_default_test_tmpdir())
    status = train.main([
        'train', f'--root_dir={root}', '--run_name=a', '--method=fedavg', '--rounds=4',
        '--clients=6', '--clients_per_round=3', '--validation_fraction=0.1',
    ])
    assert status == 0
    _RUN = os.path.join(root, 'a')
  return runs.read_run(_RUN)


class EvaluateTest(parameterized.TestCase):

  def test_says_what_the_run_said(self):
    run = _run()
    found = evaluation.evaluate(run, 'final', examples.Source('test'))
    numbers = found.numbers()
    self.assertAlmostEqual(numbers['accuracy'], run.summary['final_test_accuracy'], places=6)
    np.testing.assert_array_equal(found.confusion, runs.read_confusion(run))
    clients = runs.read_clients(run)
    np.testing.assert_allclose(found.by_client, clients['test_accuracy'], rtol=1e-6)
    self.assertAlmostEqual(
        numbers['worst_tenth_client_accuracy'], run.summary['worst_tenth_client_accuracy'],
    )
    self.assertNotIn('client_names', numbers)
    named = found._replace(client_names=tuple(f'ward {i}' for i in range(6)))
    self.assertLen(named.numbers()['client_names'], len(numbers['accuracy_by_client']))
    path = page.write(named, self.create_tempdir().full_path)
    with open(path, encoding='utf-8') as file:
      text = file.read()
    self.assertIn(f'client ward {np.argmin(found.by_client)}<', text)
    self.assertIn(f'{len(found.labels)} predictions on the test set<', text)
    self.assertIn('mean of the accuracy by class on the test set, weighted', text)
    best = evaluation.evaluate(run, 'best_validation', examples.Source('validation'))
    self.assertAlmostEqual(
        best.numbers()['accuracy'], float(np.nanmax(run.metrics['validation_accuracy'])), places=6
    )
    self.assertEqual(list(found.models), [
        'models/best_validation', 'models/best_validation.keras', 'models/final',
        'models/final.keras',
    ])

  def test_computes_in_full_precision_as_runs_do(self):
    enabled, seen = tf.config.experimental.tensor_float_32_execution_enabled, []

    def watch(*arguments):
      seen.append(enabled())
      raise types.UsageError('seen')

    with mock.patch.object(evaluation, 'evaluate', watch):
      self.assertEqual(evaluate.main(['evaluate', f'--run_dir={_run().path}']), 2)
    self.assertEqual(seen, [False])

  def test_what_is_written_agrees_with_itself(self):
    found = evaluation.evaluate(_run(), 'final', examples.Source('test'))
    folder = self.create_tempdir().full_path
    path = page.write(found, folder)
    with open(os.path.join(folder, 'predictions.csv'), encoding='utf-8') as file:
      rows = list(csv.DictReader(file))
    right = [row['true_class'] == row['predicted_class'] for row in rows]
    with open(os.path.join(folder, 'evaluation.json'), encoding='utf-8') as file:
      numbers = json.load(file)
    self.assertAlmostEqual(np.mean(right), numbers['accuracy'])
    with open(os.path.join(folder, 'confusion.csv'), encoding='utf-8') as file:
      matrix = np.array([row[1:] for row in csv.reader(file)][1:], int)
    self.assertEqual(matrix.sum(), len(rows))
    self.assertEqual(np.trace(matrix), sum(right))
    with open(path, encoding='utf-8') as file:
      self.assertNotRegex(file.read(), r'(src|href)="(?!#|data:)')

  @parameterized.parameters(True, False)
  def test_a_held_out_example_is_named_by_its_row(self, has_rows):
    load_dataset = data_lib.load_dataset

    def loaded(config):
      dataset = load_dataset(config)
      rows = 7 + np.arange(len(dataset.train_y)) if has_rows else None
      return dataset._replace(train_rows=rows)

    with mock.patch.object(data_lib, 'load_dataset', loaded):
      dataset, found, names = examples.load(_run(), examples.Source('validation'))
    at = np.array([int(name) for name in names]) - 7 * has_rows
    np.testing.assert_array_equal(dataset.train_x[at], found.x)
    self.assertGreater(at[-1], len(at))

  def test_images_of_unknown_class_get_predictions(self):
    folder = self.create_tempdir()
    digits = sources.load(sources.DataSpec('digits'))
    for i in range(3):
      # Of digits 16 is white, of files 255.
      pixels = np.round(digits.test_x[i, :, :, 0] * (255 / 16)).astype(np.uint8)
      Image.fromarray(pixels).save(os.path.join(folder.full_path, f'{i}.png'))
    found = evaluation.evaluate(_run(), 'final', examples.Source('test', images=folder.full_path))
    self.assertFalse(found.is_labelled)
    own = evaluation.evaluate(_run(), 'final', examples.Source('test'))
    np.testing.assert_allclose(found.probabilities, own.probabilities[:3], atol=1e-5)
    # A matrix of another evaluation does not stay beside it; a run's own does.
    page.write(own, folder.full_path)
    self.assertIn('Nobody knows the true classes', _text(page.write(found, folder.full_path)))
    self.assertFalse(os.path.exists(os.path.join(folder.full_path, 'confusion.csv')))
    run = self.create_tempdir()
    run.create_file('confusion.csv', '1,0')
    page.write(found, run.full_path)
    self.assertTrue(os.path.exists(os.path.join(run.full_path, 'confusion.csv')))

  def test_an_image_that_cannot_be_read_is_named(self):
    folder = self.create_tempdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(os.path.join(folder.full_path, '0.png'))
    with open(os.path.join(folder.full_path, '1.png'), 'wb') as file:
      file.write(b'no image')
    source = examples.Source('test', images=folder.full_path)
    with self.assertRaisesRegex(types.UsageError, '/1.png is missing, or no JPEG or PNG'):
      evaluation.evaluate(_run(), 'final', source)

  def test_an_image_that_is_gone_is_named(self):
    found = examples.load

    def load(run, source):
      loaded = found(run, source)
      os.remove(os.path.join(folder.full_path, '1.png'))
      return loaded

    folder = self.create_tempdir()
    for i in range(2):
      Image.fromarray(np.zeros((8, 8), np.uint8)).save(os.path.join(folder.full_path, f'{i}.png'))
    source = examples.Source('test', images=folder.full_path)
    with (
        mock.patch.object(examples, 'load', load),
        self.assertRaisesRegex(types.UsageError, '/1.png is missing, or no JPEG or PNG'),
    ):
      evaluation.evaluate(_run(), 'final', source)

  def test_folders_of_images_have_names_of_their_own(self):
    names = {examples.Source('test', images=f'/images/{n}/').name for n in 'ab'}
    self.assertEqual(names, {'images_a', 'images_b'})

  def test_other_data_have_no_clients(self):
    found = evaluation.evaluate(_run(), 'final', examples.Source('test', dataset='digits'))
    self.assertIsNone(found.by_client)
    self.assertNotIn('clients', found.text())

  def test_classes_are_known_by_their_names(self):
    run, other = _run(), sources.load(sources.DataSpec('digits'))
    # Numbers are names, too, where both are of them: of folders '10' is before '2'.
    for names in (tuple('9876543210'), tuple('0123456789'), tuple('abcdefghij')):
      run = run._replace(class_names=names)
      # The same images, of classes that are numbered the other way round.
      turned = other._replace(test_y=9 - other.test_y, class_names=names[::-1])
      with mock.patch.object(sources, 'load', lambda spec, turned=turned: turned):
        found = evaluation.evaluate(run, 'final', examples.Source('test', dataset='digits'))
      self.assertAlmostEqual(
          found.numbers()['accuracy'], run.summary['final_test_accuracy'], places=6
      )
      self.assertEqual(tuple(found.class_names), names)
    nameless = other._replace(class_names=tuple('0123456789'))
    with mock.patch.object(sources, 'load', lambda spec: nameless):
      found = evaluation.evaluate(run, 'final', examples.Source('test', dataset='digits'))
    self.assertAlmostEqual(
        found.numbers()['accuracy'], run.summary['final_test_accuracy'], places=6
    )
    others = other._replace(class_names=(*names[:-1], 'z'))
    with mock.patch.object(sources, 'load', lambda spec: others):
      with self.assertRaisesRegex(types.UsageError, 'the same classes, with the same names'):
        evaluation.evaluate(run, 'final', examples.Source('test', dataset='digits'))

  def test_data_of_another_kind_are_refused(self):
    run, other = _run(), sources.load(sources.DataSpec('digits'))
    for changed, message in (
        (other._replace(test_x=other.test_x[:, :4]), 'takes images of'),
        (other._replace(num_classes=3), 'tells 10 classes apart, the data have 3'),
    ):
      with mock.patch.object(sources, 'load', lambda spec, data=changed: data):
        with self.assertRaisesRegex(types.UsageError, message):
          evaluation.evaluate(run, 'final', examples.Source('test', dataset='digits'))

  def test_other_pixels_are_on_the_scale_of_the_run(self):
    other = sources.load(sources.DataSpec('digits'))
    files = self.create_tempdir().full_path
    paths = []
    for i in range(3):
      paths.append(os.path.join(files, f'{i}.png'))
      pixels = np.round(other.test_x[i, :, :, 0] * (255 / 16)).astype(np.uint8)
      Image.fromarray(pixels).save(paths[-1])
    source = examples.Source('test', dataset='image_folder', data_dir=files)
    of_files = other._replace(
        test_x=np.array(paths, 'S'), test_y=other.test_y[:3], largest_pixel=255
    )
    with mock.patch.object(sources, 'load', lambda spec: of_files):
      found = evaluation.evaluate(_run(), 'final', source)
    own = evaluation.evaluate(_run(), 'final', examples.Source('test'))
    np.testing.assert_allclose(found.probabilities, own.probabilities[:3], atol=1e-5)

  def test_a_file_without_a_test_set_is_one(self):
    other = sources.load(sources.DataSpec('digits'))
    own = evaluation.evaluate(_run(), 'final', examples.Source('test'))
    file = os.path.join(self.create_tempdir().full_path, 'fresh.npz')
    source = examples.Source('test', dataset='npz', data_dir=file)
    few = np.flatnonzero(other.test_y < 4)  # A file need not have each class.
    for labels in (
        {'y': other.test_y[few]}, {'y': 9 - other.test_y[few], 'clean_y': other.test_y[few]},
    ):
      np.savez(file, x=other.test_x[few], **labels)
      found = evaluation.evaluate(_run(), 'final', source)
      np.testing.assert_allclose(found.probabilities, own.probabilities[few], atol=1e-5)
      np.testing.assert_array_equal(found.labels, other.test_y[few])
      self.assertIn(f'{len(few)} examples of {file}.', found.text())
    np.savez(
        file, x=other.train_x, y=other.train_y, x_test=other.test_x[few], y_test=other.test_y[few]
    )
    self.assertLen(evaluation.evaluate(_run(), 'final', source).labels, len(few))
    # Of what the run trained on, the fifth that it did not.
    np.savez(file, x=other.test_x, y=other.test_y)
    config = flags.config_of_run(_run().flags)
    for data_dir in (file, os.path.dirname(file)):
      own = dataclasses.replace(config, dataset='npz', data_dir=data_dir)
      self.assertLen(examples._other(_run(), own, source).test_y, len(other.test_y) // 5)
    np.savez(file, x=other.test_x, y=other.test_y + 1)
    with self.assertRaisesRegex(types.UsageError, 'y has label 10, and the model tells 10 classes'):
      evaluation.evaluate(_run(), 'final', source)
    np.savez(file, x=15 * other.test_x, y=other.test_y)  # A file does not say what its scale is.
    with self.assertRaisesRegex(types.UsageError, '=digits, whose pixels are 0 to 16.*0 to 255'):
      evaluation.evaluate(_run(), 'final', source)

  def test_images_for_a_model_of_features_are_refused(self):
    model = mock.Mock(
        inputs=[tf.TensorSpec([None, 20])], outputs=[tf.TensorSpec([None, 10])]
    )
    digits = sources.load(sources.DataSpec('digits'))
    with self.assertRaisesRegex(types.UsageError, r'takes features of \(20,\), these are images'):
      evaluation._predict([model], np.array([b'a.png']), digits, _run())

  def test_mistakes_are_one_line(self):
    for arguments in (
        [f'--run_dir={_run().path}', '--dataset=cifar'],
        [], ['--run_dir=/nowhere'], [f'--run_dir={_run().path}', '--on=test', '--images=d'],
        [f'--run_dir={_run().path}', '--data_dir=d'], [f'--run_dir={_run().path}', '--images=/x'],
        [f'--run_dir={_run().path}', f'--out_dir={_run().path}'],
    ):
      self.assertEqual(evaluate.main(['evaluate', *arguments]), 2)


def _text(path):
  with open(path, encoding='utf-8') as file:
    return file.read()


if __name__ == '__main__':
  absltest.main()
