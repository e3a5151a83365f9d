"""Tests of what a run is made from."""

import importlib
import io
import os
import sys
from unittest import mock

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized
from PIL import Image

from tff_noise import types
from tff_noise.program import flags
from tff_noise.program import inputs
from tff_noise.program import own_code
from tff_noise.program import run_directory


def _config(*arguments):
  return flags.config_from(flags.parse(['train', *arguments]))


def _dataset(**changes):
  values = {
      'name': 'npz', 'train_x': np.arange(8, dtype=np.uint8).reshape(2, 2, 2, 1),
      'train_y': np.array([0, 1], np.int32), 'test_x': np.zeros((1, 2, 2, 1), np.uint8),
      'test_y': np.array([1], np.int32), 'num_classes': 2, 'image_shape': (2, 2, 1),
      'pixel_scale': 1.0, 'pixel_offset': 0.0, 'class_names': ('a', 'b'), **changes,
  }
  return types.Dataset(**values)


class InputsTest(parameterized.TestCase):

  def test_each_part_has_a_digest_of_its_own(self):
    first = inputs.digests(_config(), _dataset())
    self.assertEqual(
        list(first), ['training images', 'training labels', 'test images', 'test labels']
    )
    changed = inputs.digests(_config(), _dataset(train_x=_dataset().train_x[::-1]))
    self.assertEqual([name for name in first if first[name] != changed[name]], ['training images'])

  def test_numbers_of_another_type_or_shape_are_other_numbers(self):
    x = _dataset().train_x
    digests = {
        inputs.digests(_config(), _dataset(train_x=values))['training images']
        for values in (x, x.astype(np.int8), x.reshape(2, 4, 1, 1))
    }
    self.assertLen(digests, 3)

  def test_what_the_server_has_is_in_them(self):
    examples = types.Examples(_dataset().test_x, _dataset().test_y)
    found = inputs.digests(_config(), _dataset(validation=examples, public=_dataset().test_x))
    self.assertEqual(found['validation images'], found['public images'])
    other = inputs.digests(_config(), _dataset(validation=examples._replace(x=examples.x + 1)))
    self.assertNotEqual(found['validation images'], other['validation images'])

  def test_names_of_classes_are_shown_and_not_computed_with(self):
    run = run_directory.RunDirectory(self.create_tempdir().full_path)
    then = inputs.recorded(_config(), _dataset())
    run_directory.write_json(run.file('config.json'), {'inputs': then})
    other = _dataset(class_names=('b', 'a'))
    with self.assertRaisesRegex(types.UsageError, 'made from other class names: bring back'):
      inputs.check(run, inputs.recorded(_config(), other))
    inputs.check(run, inputs.digests(_config(), other))

  def test_clients_that_are_called_otherwise_are_other_inputs(self):
    owned = _dataset(client=np.array([0, 1, 0], np.int32), client_names=('w', 'x'))
    recorded = inputs.recorded(_config(), owned)
    self.assertNotIn('client names', inputs.digests(_config(), owned))
    run = run_directory.RunDirectory(self.create_tempdir().full_path)
    run_directory.write_json(run.file('config.json'), {'inputs': recorded})
    for names in (('w', 'y'), ()):
      with self.assertRaisesRegex(types.UsageError, 'made from other client names: bring back'):
        inputs.check(run, inputs.recorded(_config(), owned._replace(client_names=names)))
    # Runs of earlier versions have none recorded.
    del recorded['client names']
    run_directory.write_json(run.file('config.json'), {'inputs': recorded})
    inputs.check(run, inputs.recorded(_config(), owned))

  def test_image_files_are_told_by_name_and_content_wherever_they_lie(self):
    def digest(*contents, name='cat'):
      folder = self.create_tempdir()
      contents = {f'{name}/{i}.jpg': c for i, c in enumerate(contents)} | {'dog/0.jpg': 'd'}
      paths = [
          folder.create_file(p, content=b'\x89PNG IEND' + c.encode(), mode='wb')
          for p, c in contents.items()
      ]
      names = np.array([path.full_path for path in paths], np.bytes_)
      return inputs.digests(_config(), _dataset(train_x=names))['training images']

    self.assertEqual(digest('ab', 'c'), digest('ab', 'c'))
    for other in (digest('aa', 'c'), digest('a', 'bc'), digest('ab', 'c', name='cow')):
      self.assertNotEqual(digest('ab', 'c'), other)

  @parameterized.parameters(b'', b'RIFF0000WEBP', None)
  def test_what_is_no_image_is_named(self, content):
    folder = self.create_tempdir()
    path = os.path.join(folder.full_path, 'caf\udce9.jpg')  # A name that is not UTF-8.
    if content is not None:
      with open(path, 'wb') as file:
        file.write(content)
    names = np.array([os.fsencode(path)], np.bytes_)
    with self.assertRaisesRegex(types.UsageError, r'\.jpg (is neither JPEG|cannot be read)'):
      inputs.digests(_config(), _dataset(train_x=names))
    with open(path, 'wb') as file:
      file.write(b'\x89PNG IEND')
    self.assertLen(inputs.digests(_config(), _dataset(train_x=names))['training images'], 16)

  @parameterized.parameters(
      ('JPEG', {}), ('JPEG', {'progressive': True}), ('PNG', {}), ('JPEG', {'exif': b'with'}),
  )
  def test_an_image_that_is_cut_off_is_named(self, form, options):
    file = io.BytesIO()
    image = Image.fromarray(np.random.RandomState(1).randint(0, 255, (40, 40, 3)).astype(np.uint8))
    if options.get('exif'):  # A preview, which has its own end.
      image.resize((8, 8)).save(file, form)
      options = {'exif': b'Exif\0\0' + file.getvalue()}
      file = io.BytesIO()
    image.save(file, form, **options)
    whole = file.getvalue()
    path = self.create_tempfile('a.img', content=whole, mode='wb').full_path
    names = np.array([os.fsencode(path)], np.bytes_)

    def read(content):
      with open(path, 'wb') as file:
        file.write(content)
      return inputs.digests(_config(), _dataset(train_x=names))

    read(whole)
    read(whole + b'\xff\xda more')
    for size in (len(whole) // 2, len(whole) - 20):
      with self.assertRaisesRegex(types.UsageError, r'a\.img is cut off: replace or remove it'):
        read(whole[:size])

  def test_what_the_scene_was_drawn_from_may_go_but_not_change(self):
    matrix = self.create_tempfile(content='0.9,0.1').full_path
    config = _config('--noise=matrix', f'--noise_matrix={matrix}', '--openset_q=0.5')
    run = run_directory.RunDirectory(self.create_tempdir().full_path)
    then = inputs.recorded(config, _dataset())
    self.assertIn('--noise_matrix', then)
    self.assertNotIn('--openset_q', then)  # A number.
    # What noise is drawn from is the same when the file is gone.
    self.assertNotIn('--noise_matrix', inputs.digests(config, _dataset()))
    run_directory.write_json(run.file('config.json'), {'inputs': then})
    inputs.check(run, then)
    with open(matrix, 'w', encoding='utf-8') as file:
      file.write('0.8,0.2')
    with self.assertRaisesRegex(types.UsageError, 'was made from other --noise_matrix: bring'):
      inputs.check(run, inputs.recorded(config, _dataset()))
    os.remove(matrix)
    inputs.check(run, inputs.recorded(config, _dataset()))

  def test_files_that_flags_name_are_in_them_and_those_of_a_checkpoint(self):
    folder = self.create_tempdir()
    folder.create_file('weights.index', content='index')
    values = folder.create_file('weights.data-00000-of-00001', content='a')
    config = _config(f'--weights={os.path.join(folder.full_path, "weights")}')
    before = inputs.digests(config, _dataset())
    folder.create_file('weights.notes', content='of nobody')
    self.assertEqual(inputs.digests(config, _dataset()), before)
    values.write_text('b')
    after = inputs.digests(config, _dataset())
    self.assertEqual([name for name in before if before[name] != after[name]], ['--weights'])

  def test_all_files_of_ones_own_code_are_in_them(self):
    folder = self.create_tempdir()
    folder.create_file('mine_of_inputs/__init__.py', content='')
    folder.create_file(
        'mine_of_inputs/method.py', content=(
            'import json\nimport numpy\nfrom tff_noise import types\nfrom . import near\n'
            'def build():\n  import far_of_inputs.deep\n'
            'PLACE, NOT = "mine_of_inputs.placed:build", "a text: of no module"\n'
        )
    )
    folder.create_file('mine_of_inputs/near.py', content='from .nearer import x')
    folder.create_file('mine_of_inputs/placed.py', content='import os.path')
    folder.create_file('mine_of_inputs/unused.py', content='')
    nearer = folder.create_file('mine_of_inputs/nearer.py', content='x = 1')
    deep = folder.create_file('far_of_inputs/deep.py', content='import mine_of_inputs.method')
    with mock.patch.object(sys, 'path', [folder.full_path, *sys.path]):
      paths = own_code.sources_of('mine_of_inputs.method:METHOD')
      self.assertEqual(
          [os.path.relpath(path, folder.full_path) for path in paths],
          ['far_of_inputs/deep.py', *(f'mine_of_inputs/{name}.py' for name in (
              '__init__', 'method', 'near', 'nearer', 'placed'
          ))],
      )
      config = _config('--model=mine_of_inputs.method:METHOD')
      before = inputs.digests(config, _dataset())
      for name, file in (('nearer', nearer), ('deep', deep)):
        file.write_text('x = 2')
        now = inputs.digests(config, _dataset())
        changed = [key for key in before if before[key] != now[key]]
        self.assertEqual(changed, [f'--model ({name}.py)'])
        before = now
    self.assertNotIn('mine_of_inputs', sys.modules)

  def test_what_is_not_found_before_code_runs_is_refused(self):
    folder = self.create_tempdir()
    folder.create_file('hides_of_inputs.py', content=(
        'import sys\nsys.path.insert(0, "lib")\nimport helper_of_nobody.deep\n'
    ))
    folder.create_file('tries_of_inputs.py', content=(
        'try:\n  import helper_of_nobody\nexcept ImportError:\n  pass\nimport os, tensorflow\n'
    ))
    folder.create_file('there_of_inputs/__init__.py', content='__path__.append("lib")')
    folder.create_file('adds_of_inputs.py', content='import there_of_inputs.added\n')
    compiled = folder.create_file('compiled_of_inputs.pyc', content='of another time')
    with mock.patch.object(sys, 'path', [folder.full_path, *sys.path]):
      with self.assertRaisesRegex(types.UsageError, 'imports helper_of_nobody.deep, which is not'):
        own_code.sources_of('hides_of_inputs:METHOD')
      with self.assertRaisesRegex(types.UsageError, 'imports there_of_inputs.added, which is not'):
        own_code.sources_of('adds_of_inputs:METHOD')
      self.assertLen(own_code.sources_of('tries_of_inputs:METHOD'), 1)
      self.assertEqual(own_code.sources_of('compiled_of_inputs:METHOD'), [compiled.full_path])
      self.assertEqual(
          own_code.places([
              'loss=tries_of_inputs:loss', 'text=no_module_at_all:x', 'mu=0.1',
              'networks=cnn+adds_of_inputs:small',
          ]),
          ['tries_of_inputs:loss', 'adds_of_inputs:small'],
      )

  def test_what_another_finder_finds_is_digested_too(self):
    # As setuptools has it of a package that is installed so that it can be edited.
    folder = self.create_tempdir()
    place = folder.create_file('edited_of_inputs/__init__.py', content='').full_path
    method = folder.create_file('edited_of_inputs/method.py', content='METHOD = 1\n').full_path

    class Finder:

      @staticmethod
      def find_spec(name, path=None, target=None):
        del path, target  # Unused.
        if name == 'edited_of_inputs':
          return importlib.util.spec_from_file_location(name, place)
        return None

    with mock.patch.object(sys, 'meta_path', [*sys.meta_path, Finder]):
      self.assertEqual(own_code.sources_of('edited_of_inputs.method:METHOD'), [place, method])
    self.assertEmpty(own_code.sources_of('edited_of_inputs.method:METHOD'))

  @parameterized.parameters(
      ('jointopt', 'retrain:LENGTH', '--stages=retrain:3'),
      ('lc', 'restart', '--param=restart=true'),
  )
  def test_what_takes_all_stages_for_one_training_is_refused_where_one_starts_anew(
      self, method, said, argument
  ):
    path = self.create_tempfile('w.h5').full_path
    for flag in (f'--weights={path}', '--early_stopping=2'):
      config = _config(f'--method={method}', flag, argument)
      with self.assertRaisesRegex(types.UsageError, f'^{flag.partition("=")[0]} .*{said}'):
        inputs.require(config, begun=False)
      inputs.require(config, begun=True)
      inputs.require(_config(f'--method={method}', flag), begun=False)

  def test_a_file_that_may_not_be_read_is_told(self):
    path = self.create_tempfile('w.h5').full_path
    config = _config('--method=gce', f'--weights={path}')
    with mock.patch.object(inputs, 'open', side_effect=PermissionError(13, 'Denied'), create=True):
      with self.assertRaisesRegex(types.UsageError, rf'^{path} cannot be read \(Denied\)'):
        inputs._of_files([config.weights])

  def test_a_file_of_q_is_needed_where_the_scene_is_drawn_alone(self):
    config = _config('--partition=openset_uniform', '--openset_q=no.csv')
    inputs.require(config, begun=True)
    with self.assertRaisesRegex(types.UsageError, '^--openset_q=no.csv: no such file'):
      inputs.require(config, begun=False)

  def test_a_run_that_was_made_from_others_is_refused_with_what_differs(self):
    run = run_directory.locate(self.create_tempdir().full_path, 'run')
    os.mkdir(run.path)
    then = inputs.digests(_config(), _dataset())
    run_directory.write_json(run.file('config.json'), {'inputs': then})
    inputs.check(run, then)
    now = {**then, 'test labels': '0' * 16, 'owners': '1' * 16}
    differs = 'other test labels, owners: bring back'
    with self.assertRaisesRegex(types.UsageError, differs) as caught:
      inputs.check(run, now)
    # An audit is no place to be told how a ledger is removed.
    self.assertNotIn('--overwrite', str(caught.exception))

  def test_data_and_the_code_of_a_model_are_checked_apart(self):
    run = run_directory.RunDirectory(self.create_tempdir().full_path)
    code = {'--method (own.py)': '0' * 16, '--model (net.py)': '0' * 16}
    then = {**inputs.recorded(_config(), _dataset()), **code}
    run_directory.write_json(run.file('config.json'), {'inputs': then})
    with self.assertRaisesRegex(types.UsageError, r'made from other --method \(own.py\), --model'):
      inputs.check(run, inputs.recorded(_config(), _dataset()))
    with self.assertRaisesRegex(types.UsageError, r'other --model \(net.py\): .* the SavedModel'):
      inputs.check_model(run, _config())
    inputs.check_data(run, _dataset())
    for other in ({'test_y': np.array([0], np.int32)}, {'client': np.array([0, 1])}):
      with self.assertRaisesRegex(types.UsageError, 'made from other (test labels|owners): bring'):
        inputs.check_data(run, _dataset(**other))


if __name__ == '__main__':
  absltest.main()
