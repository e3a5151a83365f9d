"""Tests of the labels of CIFAR-N, on small files of every published format."""

import io
import os
import pathlib
import pickle
import zipfile

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.data import human_labels

_N = 60
_CLEAN = np.random.default_rng(0).integers(0, 10, _N)
# Which image of the original release is number i in the other order.
_ORDER = np.random.default_rng(1).permutation(_N)


def _noisy(seed, share=0.3, num_classes=10, clean=_CLEAN):
  rng = np.random.default_rng(seed)
  return np.where(rng.random(len(clean)) < share, rng.integers(0, num_classes, len(clean)), clean)


def _columns10():
  names = ('worse_label', 'aggre_label', 'random_label1', 'random_label2', 'random_label3')
  return {'clean_label': _CLEAN, **{name: _noisy(i + 2) for i, name in enumerate(names)}}


def _columns100(name):
  return {
      'clean_label': _CLEAN * 10,
      name: _noisy(9, num_classes=100, clean=_CLEAN * 10),
      # The published file has these too, as lists.
      'clean_coarse_label': (_CLEAN * 2).tolist(),
  }


def _torch_zip(path, value, protocol=2):
  """What `torch.save` writes since version 1.6."""
  with zipfile.ZipFile(path, 'w', zipfile.ZIP_STORED) as archive:
    archive.writestr('archive/data.pkl', pickle.dumps(value, protocol))
    archive.writestr('archive/version', '3\n')


def _torch_legacy(path, value, protocol=2):
  """What `torch.save` wrote before."""
  system = {
      'protocol_version': 1001, 'little_endian': True,
      'type_sizes': {'short': 2, 'int': 4, 'long': 4},
  }
  with open(path, 'wb') as file:
    # The last are the keys of tensors, of which there are none.
    for part in (0x1950A86A20F9469CFC6C, 1001, system, value, []):
      pickle.dump(part, file, protocol)


def _npz(path, value):
  np.savez(path, **value)


def _npy(path, value):
  np.save(path, np.array(value, object) if isinstance(value, dict) else value)


class _Test(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.create_tempdir().full_path)

  def load(self, which='worse', clean=_CLEAN, num_classes=10):
    return human_labels.load(which, [str(self.root)], clean, num_classes)

  def assert_refused(self, message, *args, **kwargs):
    with self.assertRaisesRegex(types.UsageError, message) as raised:
      self.load(*args, **kwargs)
    self.assertNotIn('\n', str(raised.exception))


class FormatTest(_Test):

  @parameterized.product(
      case=(
          ('CIFAR-10_human.npz', _npz), ('cifar10n_labels.npz', _npz), ('CIFAR-10_human.npy', _npy),
          ('CIFAR-10_human_ordered.npy', _npy), ('CIFAR-10_human.pt', _torch_zip),
          ('CIFAR-10_human.pt', _torch_legacy),
      ),
      choice=(
          ('worse', 'worse_label'), ('aggre', 'aggre_label'), ('random1', 'random_label1'),
          ('random2', 'random_label2'), ('random3', 'random_label3'),
      ),
  )
  def test_cifar10n(self, case, choice):
    (name, write), (which, column) = case, choice
    write(self.root / name, _columns10())
    labels = self.load(which)
    self.assertEqual(labels.dtype, np.int32)
    np.testing.assert_array_equal(labels, _columns10()[column])

  @parameterized.parameters(
      ('CIFAR-100_human.pt', _torch_zip, 'noisy_label'),
      ('CIFAR-100_human.pt', _torch_legacy, 'noisy_label'),
      ('CIFAR-100_human.npy', _npy, 'noise_label'),
      ('CIFAR-100_human.npz', _npz, 'noise_label'),
      ('cifar100n_labels.npz', _npz, 'noisy_label'),
      ('CIFAR-100_human_ordered.npy', _npy, 'noise_label'),
  )
  def test_cifar100n(self, name, write, column):
    write(self.root / name, _columns100(column))
    labels = self.load('fine', _CLEAN * 10, 100)
    np.testing.assert_array_equal(labels, _columns100(column)[column])

  @parameterized.parameters(2, 3, 4, 5)
  def test_protocols_and_lists(self, protocol):
    lists = {name: labels.tolist() for name, labels in _columns10().items()}
    scalars = {name: list(labels) for name, labels in _columns10().items()}
    for write in (_torch_zip, _torch_legacy):
      for value in (_columns10(), lists, scalars):
        write(self.root / 'CIFAR-10_human.pt', value, protocol)
        np.testing.assert_array_equal(self.load(), _columns10()['worse_label'])

  @parameterized.parameters(np.int64, np.uint8, np.dtype('>i4'))
  def test_plain_vector(self, dtype):
    _npy(self.root / 'CIFAR-10_human.npy', _noisy(7).astype(dtype))
    np.testing.assert_array_equal(self.load(''), _noisy(7))
    self.assert_refused(
        r'_human\.npy holds one set of labels and .*: leave --human_labels=aggre out', 'aggre'
    )

  def test_choices(self):
    self.assertEqual(human_labels.CHOICES[10][0], 'worse')
    self.assertEqual(human_labels.CHOICES[100], ('fine',))


class PlaceTest(_Test):

  def test_directories_in_their_order(self):
    for folder, seed in (('b', 5), ('c', 6)):
      (self.root / folder).mkdir()
      _npz(self.root / folder / 'CIFAR-10_human.npz',
           {'clean_label': _CLEAN, 'worse_label': _noisy(seed)})
    places = [str(self.root / folder) for folder in ('a', 'b', 'c')]
    labels = human_labels.load('worse', places, _CLEAN, 10)
    np.testing.assert_array_equal(labels, _noisy(5))

  def test_file_in_the_order_of_the_release_is_preferred(self):
    _torch_zip(self.root / 'CIFAR-10_human.pt', _columns10())
    _npy(self.root / 'CIFAR-10_human_ordered.npy',
         {name: labels[_ORDER] for name, labels in _columns10().items()})
    np.testing.assert_array_equal(self.load(), _columns10()['worse_label'])

  def test_missing(self):
    _npz(self.root / 'CIFAR-100_human.npz', _columns100('noisy_label'))  # Of the other data set.
    self.assert_refused(
        r'^cifar10n: no CIFAR-10_human\.npz or CIFAR-10_human\.pt or .*CIFAR-10_human_ordered\.npy '
        rf'in {self.root}; put one of them there, they are published at http://www\.noisylabels'
        r'\.com, nothing is downloaded'
    )


class OrderTest(_Test):
  """TensorFlow Datasets has the images in another order."""

  def write_ordered(self, name='CIFAR-10_human_ordered.npy'):
    ordered = {name: labels[_ORDER] for name, labels in _columns10().items()}
    _npy(self.root / name, ordered)

  @parameterized.parameters('CIFAR-10_human_ordered.npy', 'CIFAR-10_human.npy')
  def test_other_order_is_refused(self, name):
    self.write_ordered(name)
    self.assert_refused(
        rf'{name}: its clean labels are not those of the images.*TensorFlow Datasets.*use '
        r'CIFAR-10_human\.pt of http://www\.noisylabels\.com, or put image_order_c10\.npy beside'
    )

  @parameterized.parameters(False, True)
  def test_other_order_is_undone(self, inverse):
    self.write_ordered()
    np.save(self.root / 'image_order_c10.npy', np.argsort(_ORDER) if inverse else _ORDER)
    np.testing.assert_array_equal(self.load(), _columns10()['worse_label'])

  def test_the_two_directions_differ(self):
    self.assertFalse(np.array_equal(_CLEAN[_ORDER], _CLEAN[np.argsort(_ORDER)]))

  def test_cifar100_has_its_own_order_file(self):
    _npy(self.root / 'CIFAR-100_human_ordered.npy', {
        'clean_label': (_CLEAN * 10)[_ORDER],
        'noise_label': _columns100('noise_label')['noise_label'][_ORDER],
    })
    np.save(self.root / 'image_order_c10.npy', _ORDER)
    self.assert_refused('put image_order_c100.npy beside', 'fine', _CLEAN * 10, 100)
    np.save(self.root / 'image_order_c100.npy', _ORDER)
    labels = self.load('fine', _CLEAN * 10, 100)
    np.testing.assert_array_equal(labels, _columns100('noise_label')['noise_label'])

  def test_order_file_is_not_used_where_the_order_is_right(self):
    _npz(self.root / 'CIFAR-10_human.npz', _columns10())
    (self.root / 'image_order_c10.npy').write_bytes(b'no array')
    np.testing.assert_array_equal(self.load(), _columns10()['worse_label'])

  def test_order_that_does_not_help(self):
    self.write_ordered()
    other = np.random.default_rng(5).permutation(_N)
    np.save(self.root / 'image_order_c10.npy', other)
    self.assert_refused('clean labels are not those of the images')

  @parameterized.parameters(
      ([0] * _N,), (list(range(_N - 1)),), (list(range(1, _N + 1)),), ([0.5] * _N,),
  )
  def test_order_that_is_no_permutation(self, order):
    self.write_ordered()
    np.save(self.root / 'image_order_c10.npy', np.array(order))
    self.assert_refused(
        rf'image_order_c10\.npy must hold each of the numbers 0 to {_N - 1} once'
    )

  def test_damaged_order(self):
    self.write_ordered()
    (self.root / 'image_order_c10.npy').write_bytes(b'no array')
    self.assert_refused(r'image_order_c10\.npy cannot be read')

  def test_vector_in_another_order(self):
    # There are no clean labels to compare: what is left is that next to none agree.
    clean = np.sort(_CLEAN)
    np.save(self.root / 'CIFAR-10_human.npy', np.roll(clean, _N // 2))
    self.assert_refused(r'only \d+\.\d% of its labels are those of the images', '', clean)


class MistakeTest(_Test):

  def test_missing_column(self):
    _npz(self.root / 'cifar10n_labels.npz', {'clean_label': _CLEAN, 'random_label1': _noisy(3)})
    self.assert_refused(
        r"cifar10n_labels\.npz has no column worse_label, only 'clean_label', 'random_label1'; "
        'choose among these with --human_labels'
    )

  def test_missing_clean_column(self):
    _npz(self.root / 'CIFAR-10_human.npz', {'worse_label': _noisy(3)})
    self.assert_refused("has no column clean_label, only 'worse_label'")

  def test_missing_column_of_cifar100(self):
    _npz(self.root / 'CIFAR-100_human.npz', {'clean_label': _CLEAN})
    self.assert_refused('has no column noisy_label or noise_label, only', 'fine', _CLEAN, 100)

  @parameterized.parameters('worse_label', 'clean_label')
  def test_wrong_length(self, column):
    _npz(self.root / 'CIFAR-10_human.npz', _columns10() | {column: _CLEAN[:-1]})
    self.assert_refused(f'has {_N - 1} labels, there are {_N} training images')

  def test_wrong_length_of_a_vector(self):
    np.save(self.root / 'CIFAR-10_human.npy', _CLEAN[:-1])
    self.assert_refused(f'has {_N - 1} labels, there are {_N} training images', '')

  @parameterized.parameters(10, -1)
  def test_out_of_range(self, label):
    labels = _noisy(3)
    labels[4] = label
    _npz(self.root / 'CIFAR-10_human.npz', _columns10() | {'worse_label': labels})
    self.assert_refused(f'label {label} of image 4 is out of range, labels are 0 to 9')

  def test_column_of_another_kind(self):
    for labels in (_CLEAN.astype(np.float32), _CLEAN[None], 'text', [1.5] * _N, None):
      _torch_zip(self.root / 'CIFAR-10_human.pt', _columns10() | {'worse_label': labels})
      self.assert_refused('its column worse_label is no vector of integers')

  def test_vector_of_another_kind(self):
    np.save(self.root / 'CIFAR-10_human.npy', _CLEAN / 2)
    self.assert_refused('its column of labels is no vector of integers', '')

  @parameterized.parameters(_torch_zip, _torch_legacy)
  def test_no_dictionary(self, write):
    write(self.root / 'CIFAR-10_human.pt', [1, 2])
    self.assert_refused('must hold a dictionary or a vector of labels, found list')


class _Mkdir:

  def __init__(self, path):
    self._path = path

  def __reduce__(self):
    return os.mkdir, (self._path,)


class DamageTest(_Test):

  @parameterized.parameters(
      ('CIFAR-10_human.npz', _npz), ('CIFAR-10_human.npy', _npy), ('CIFAR-10_human.pt', _torch_zip),
      ('CIFAR-10_human.pt', _torch_legacy),
  )
  def test_every_cut(self, name, write):
    write(self.root / name, _columns10())
    whole = (self.root / name).read_bytes()
    # The old torch format ends with a pickle that is not looked at.
    needed = len(whole) - (len(pickle.dumps([], 2)) if write is _torch_legacy else 0)
    for length in range(0, needed, 7):
      (self.root / name).write_bytes(whole[:length])
      self.assert_refused(rf'{name} (cannot be read|is refused)')

  @parameterized.parameters('npz', 'npy', 'pt')
  def test_garbage(self, suffix):
    (self.root / f'CIFAR-10_human.{suffix}').write_bytes(b'<html>404</html>' * 9)
    self.assert_refused(rf'CIFAR-10_human\.{suffix} cannot be read')

  @parameterized.parameters(_torch_zip, _torch_legacy)
  def test_torch_file_is_not_run(self, write):
    made = self.root / 'made'
    write(self.root / 'CIFAR-10_human.pt', {'worse_label': _Mkdir(str(made))})
    self.assert_refused(r'CIFAR-10_human\.pt is refused: it holds posix\.mkdir')
    self.assertFalse(made.exists())

  def test_npy_file_is_not_run(self):
    made = self.root / 'made'
    _npy(self.root / 'CIFAR-10_human.npy', {'worse_label': _Mkdir(str(made))})
    self.assert_refused(r'CIFAR-10_human\.npy is refused: it holds posix\.mkdir')
    self.assertFalse(made.exists())

  def test_npz_file_is_not_run(self):
    made = self.root / 'made'
    np.savez(self.root / 'CIFAR-10_human.npz', worse_label=np.array([_Mkdir(str(made))], object))
    self.assert_refused(r'CIFAR-10_human\.npz cannot be read .*allow_pickle=False')
    self.assertFalse(made.exists())

  def test_torch_tensors(self):
    # How a tensor is pickled: its storage is outside, under a persistent id.
    tensor = b'\x80\x02}U\x0bworse_label(U\x07storageU\x010tQs.'
    with zipfile.ZipFile(self.root / 'CIFAR-10_human.pt', 'w') as archive:
      archive.writestr('archive/data.pkl', tensor)
    self.assert_refused('is refused: it holds data outside the pickle')

  def test_zip_that_is_no_torch_file(self):
    for names in (('a/b',), ('a/data.pkl', 'b/data.pkl')):
      with zipfile.ZipFile(self.root / 'CIFAR-10_human.pt', 'w') as archive:
        for name in names:
          archive.writestr(name, pickle.dumps(_columns10(), 2))
      self.assert_refused('cannot be read .*no data.pkl')

  def test_pickle_that_is_no_torch_file(self):
    (self.root / 'CIFAR-10_human.pt').write_bytes(pickle.dumps(_columns10(), 2))
    self.assert_refused('cannot be read .*no torch file')

  def test_unknown_npy_version(self):
    file = io.BytesIO()
    np.lib.format.write_array(file, _CLEAN, version=(3, 0))
    (self.root / 'CIFAR-10_human.npy').write_bytes(file.getvalue())
    self.assert_refused(r'cannot be read .*version \(3, 0\)')


if __name__ == '__main__':
  absltest.main()
