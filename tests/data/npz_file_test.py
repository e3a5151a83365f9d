"""Tests of a user's own `.npz` file."""

import pathlib
import zipfile

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.data import npz_file

_N = 20


def _arrays(**changes):
  """A small valid data set; None among `changes` takes an array away."""
  rng = np.random.default_rng(0)
  arrays = {
      'x': rng.integers(0, 256, (_N, 4, 5, 3), np.uint8),
      'y': np.arange(_N) % 3,
      'x_test': rng.integers(0, 256, (6, 4, 5, 3), np.uint8),
      'y_test': np.arange(6) % 3,
  } | changes
  return {name: value for name, value in arrays.items() if value is not None}


def _without_test(**changes):
  return _arrays(x_test=None, y_test=None, **changes)


class _Test(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.create_tempdir().full_path)
    self.path = self.root / 'own.npz'

  def load(self, arrays):
    np.savez(self.path, **arrays)
    return npz_file.load(str(self.path))

  def assert_refused(self, message, arrays=None):
    if arrays is not None:
      np.savez(self.path, **arrays)
    with self.assertRaisesRegex(types.UsageError, message) as raised:
      npz_file.load(str(self.path))
    self.assertNotIn('\n', str(raised.exception))


class ContentTest(_Test):

  def test_where_examples_lie_in_the_file(self):
    arrays = _without_test(client=np.arange(_N) // 2)
    dataset = self.load(arrays)
    np.testing.assert_array_equal(dataset.train_x, arrays['x'][dataset.train_rows])
    np.testing.assert_array_equal(dataset.test_x, arrays['x'][dataset.test_rows])
    self.assertCountEqual([*dataset.train_rows, *dataset.test_rows], range(_N))
    dataset = self.load(_arrays())
    self.assertIsNone(dataset.train_rows)
    self.assertIsNone(dataset.test_rows)

  def test_with_a_test_set(self):
    arrays = _arrays()
    dataset = self.load(arrays)
    for name, field in (('x', 'train_x'), ('y', 'train_y'), ('x_test', 'test_x'),
                        ('y_test', 'test_y')):
      np.testing.assert_array_equal(getattr(dataset, field), arrays[name])
    self.assertEqual((dataset.name, dataset.num_classes), ('npz', 3))
    self.assertEqual(dataset.image_shape, (4, 5, 3))
    self.assertEqual((dataset.train_x.dtype, dataset.train_y.dtype), (np.uint8, np.int32))
    self.assertEqual((dataset.pixel_scale, dataset.pixel_offset), (1 / 255, 0.0))
    self.assertEqual(dataset.class_names, ('0', '1', '2'))
    self.assertIsNone(dataset.human_y)
    self.assertIsNone(dataset.client)
    self.assertIsNone(dataset.similar_class)

  def test_grey_images_get_a_channel(self):
    arrays = _arrays()
    dataset = self.load(arrays | {'x': arrays['x'][..., 0], 'x_test': arrays['x_test'][..., :1]})
    self.assertEqual(dataset.image_shape, (4, 5, 1))
    np.testing.assert_array_equal(dataset.train_x[..., 0], arrays['x'][..., 0])

  def test_clean_labels(self):
    clean = (np.arange(_N) + 1) % 3
    dataset = self.load(_arrays(clean_y=clean))
    np.testing.assert_array_equal(dataset.train_y, clean)
    np.testing.assert_array_equal(dataset.human_y, np.arange(_N) % 3)
    self.assertEqual(dataset.human_y.dtype, np.int32)

  def test_clients_are_counted_in_ascending_order(self):
    dataset = self.load(_arrays(client=np.resize([70, -5, 70, 8], _N)))
    self.assertEqual(dataset.client[:4].tolist(), [2, 0, 2, 1])
    self.assertEqual(dataset.client.dtype, np.int32)

  def test_features_are_taken_as_they_are(self):
    x = np.random.default_rng(0).normal(size=(_N, 3))
    dataset = self.load(_arrays(x=x, x_test=x[:6]))
    self.assertEqual((dataset.image_shape, dataset.pixel_scale), ((3,), 1.0))
    np.testing.assert_array_equal(dataset.train_x, x.astype(np.float32))
    for changed, message in (
        ({'x': np.where(x > 1, np.inf, x), 'x_test': x[:6]}, 'features that are not finite'),
        ({'x': 1e300 * x, 'x_test': x[:6]}, 'not finite as float32'),
        ({'x': x}, 'x_test is uint8 of shape .* x is float32'),
        ({'x': x[:, :, None]}, r'or floats \[n, d\]'),
    ):
      with self.assertRaisesRegex(types.UsageError, message):
        self.load(_arrays(**changed))

  def test_class_names(self):
    dataset = self.load(_arrays(class_names=np.array(['a', 'b', 'ü'])))
    self.assertEqual(dataset.class_names, ('a', 'b', 'ü'))
    self.assert_refused(
        'class_names has a name twice', _arrays(class_names=np.array(['a', 'b', 'a']))
    )

  def test_number_of_classes_is_over_both_kinds_of_labels(self):
    self.assertEqual(self.load(_arrays(clean_y=np.arange(_N) % 7)).num_classes, 7)

  def test_a_class_that_is_a_label_alone_needs_a_name(self):
    arrays = _arrays(y=np.arange(_N) % 4, clean_y=np.arange(_N) % 3)
    with self.assertRaisesRegex(types.UsageError, r'no example has the true class 3 \(clean_y\)'):
      self.load(arrays)
    dataset = self.load({**arrays, 'class_names': np.array(list('abcd'))})
    self.assertEqual(dataset.num_classes, 4)

  @parameterized.parameters(
      ('y', 1 + np.arange(_N) % 3, 'no example of x has label 0, but one has 3: .* number the 3'),
      ('y', 1000 * (np.arange(_N) % 3), 'no example of x has label 1, but one has 2000'),
      ('clean_y', np.full(_N, 6), 'no example of x has label 3, but one has 6'),
      ('y_test', np.full(6, 3), 'y_test has label 3, which no example of x has'),
  )
  def test_a_class_without_examples_is_refused(self, name, labels, message):
    with self.assertRaisesRegex(types.UsageError, message):
      self.load(_arrays(**{name: labels}))

  @parameterized.parameters(np.uint8, np.int16, np.dtype('>i8'), np.uint64)
  def test_integer_types(self, dtype):
    dataset = self.load(_arrays(y=(np.arange(_N) % 3).astype(dtype)))
    np.testing.assert_array_equal(dataset.train_y, np.arange(_N) % 3)

  def test_folder_with_one_file(self):
    expected = self.load(_arrays())
    (self.root / 'readme.txt').touch()
    (self.root / '.hidden.npz').touch()
    np.testing.assert_array_equal(npz_file.load(str(self.root)).train_x, expected.train_x)


class SplitTest(_Test):

  def test_every_example_is_used_once_and_keeps_what_belongs_to_it(self):
    x = np.arange(_N, dtype=np.uint8).reshape(_N, 1, 1)
    clean, client = np.arange(_N) % 4, np.arange(_N) % 3
    dataset = self.load({
        'x': x, 'y': (clean + 1) % 4, 'clean_y': clean, 'client': client,
    })
    train, test = dataset.train_x[:, 0, 0, 0].astype(int), dataset.test_x[:, 0, 0, 0].astype(int)
    self.assertLen(test, _N // 5)
    self.assertEqual(sorted([*train, *test]), list(range(_N)))
    np.testing.assert_array_equal(dataset.train_y, train % 4)
    np.testing.assert_array_equal(dataset.human_y, (train + 1) % 4)
    np.testing.assert_array_equal(dataset.client, train % 3)
    # What people called it is no truth to test against.
    np.testing.assert_array_equal(dataset.test_y, test % 4)

  def test_split_is_pinned(self):
    # Another split would make accuracies incomparable.
    x = np.arange(_N, dtype=np.uint8).reshape(_N, 1, 1)
    np.random.seed(3)
    dataset = self.load({'x': x, 'y': np.arange(_N) % 2})
    self.assertEqual(dataset.test_x.ravel().tolist(), [8, 10, 18, 19])

  def test_every_client_keeps_a_training_example(self):
    for only in range(_N):
      client = np.full(_N, 9)
      client[only] = 4
      dataset = self.load(_without_test(client=client))
      self.assertEqual(np.bincount(dataset.client)[0], 1)
    # See the split that is pinned: of 8 and 18, 10 and 19 one is trained on.
    client = np.zeros(_N, int)
    client[[8, 18]], client[[10, 19]] = 1, 2
    x = np.arange(_N, dtype=np.uint8).reshape(_N, 1, 1)
    dataset = self.load({'x': x, 'y': np.arange(_N) % 2, 'client': client})
    self.assertLen(dataset.test_y, 4)
    self.assertEqual(np.bincount(dataset.client).tolist(), [14, 1, 1])

  def test_the_test_set_is_filled_from_clients_with_more(self):
    # Fifteen clients of one example, and one of five, of which four may be tested on.
    client = np.minimum(np.arange(_N), 15)
    dataset = self.load(_without_test(client=client))
    self.assertLen(dataset.test_y, 4)
    self.assertEqual(np.bincount(dataset.client).tolist(), [1] * 16)
    self.assert_refused(
        'each client holds one example, which it trains on', _without_test(client=np.arange(_N))
    )

  def test_a_class_that_is_all_in_the_test_set_is_refused(self):
    y = np.zeros(_N, int)
    y[8] = 1  # See the split that is pinned.
    self.assert_refused(
        'all examples with label 1 are among the fifth that is set aside for the test',
        {'x': np.zeros((_N, 2, 2), np.uint8), 'y': y},
    )

  def test_too_few(self):
    arrays = {'x': np.zeros((4, 2, 2), np.uint8), 'y': np.arange(4)}
    self.assert_refused('of 4 examples none can be set aside for the test; give 5 or more', arrays)


class MistakeTest(_Test):

  @parameterized.parameters(
      ('x', 'has no x: it must hold x'), ('y', 'has no y: it must hold x'),
      ('x_test', 'has only one of x_test and y_test'),
      ('y_test', 'has only one of x_test and y_test'),
  )
  def test_missing_array(self, name, message):
    self.assert_refused(rf'own\.npz {message}', _arrays(**{name: None}))

  def test_missing_both(self):
    self.assert_refused('has no x and no y:', {'images': np.zeros(3)})

  def test_unknown_array(self):
    self.assert_refused(
        "has 'clean', 'clients', which nothing reads: it must hold .* client,",
        _arrays(clients=np.arange(_N), clean=np.arange(_N)),
    )

  @parameterized.product(
      name=('x', 'x_test'),
      kind=(((_N, 4, 5, 3), 'f4'), ((_N, 4, 5, 3), 'i8'), ((_N, 4), 'u1'),
            ((_N, 1, 4, 5, 3), 'u1'), ((0, 4, 5, 3), 'u1'), ((_N, 0, 5, 3), 'u1')),
  )
  def test_images(self, name, kind):
    shape, dtype = kind
    self.assert_refused(
        rf'{name} must be uint8 \[n, height, width\] or .* found {np.dtype(dtype)} of shape',
        _arrays(**{name: np.zeros(shape, dtype)}),
    )

  def test_test_images_of_another_shape(self):
    self.assert_refused(
        r'x_test is uint8 of shape \(5, 4, 3\), x is uint8 of shape \(4, 5, 3\)',
        _arrays(x_test=np.zeros((6, 5, 4, 3), np.uint8)),
    )

  @parameterized.product(
      name=('y', 'clean_y'),
      kind=(((_N,), 'f4'), ((_N - 1,), 'i4'), ((_N, 1), 'i4'), ((_N,), '?'), ((_N,), 'U3')),
  )
  def test_integers(self, name, kind):
    shape, dtype = kind
    self.assert_refused(
        rf'{name} must be {_N} integers, one for each image, found ',
        _arrays(**{name: np.zeros(shape, dtype)}),
    )

  @parameterized.parameters(
      ((_N,), 'f4'), ((_N - 1,), 'i4'), ((_N, 1), 'U3'), ((_N,), '?'), ((_N,), 'S3')
  )
  def test_clients(self, shape, dtype):
    self.assert_refused(
        f'client must be {_N} integers or texts, one for each image, found ',
        _arrays(client=np.zeros(shape, dtype)),
    )

  def test_test_labels(self):
    self.assert_refused('y_test must be 6 integers', _arrays(y_test=np.arange(5)))

  @parameterized.parameters(('y', -1), ('clean_y', -2), ('y_test', -1), ('y', 2**31))
  def test_label_out_of_range(self, name, label):
    y = np.zeros(6 if name == 'y_test' else _N, np.int64)
    y[3] = label
    self.assert_refused(f'{name} has label {label}, labels are 0 to K-1', _arrays(**{name: y}))

  def test_one_class(self):
    self.assert_refused(
        'all labels are 0: give examples of at least two',
        _arrays(y=np.zeros(_N, int), y_test=np.zeros(6, int)),
    )

  @parameterized.parameters((['a', 'b'],), (['a', 'b', 'c', 'd'],), ([1, 2, 3],), ([['a']],))
  def test_class_names(self, names):
    self.assert_refused(
        'class_names must be 3 texts, one for each label', _arrays(class_names=np.array(names))
    )


class DamageTest(_Test):

  def test_cuts(self):
    np.savez_compressed(self.path, **_arrays())
    whole = self.path.read_bytes()
    for length in range(0, len(whole), 97):
      self.path.write_bytes(whole[:length])
      self.assert_refused(r'own\.npz cannot be read')

  def test_changed_bytes(self):
    np.savez_compressed(self.path, **_arrays())
    whole = bytearray(self.path.read_bytes())
    changed = whole.copy()
    changed[len(whole) // 3] ^= 255
    self.path.write_bytes(changed)
    self.assert_refused(r'own\.npz cannot be read')

  def test_garbage(self):
    self.path.write_bytes(b'\x80\x02garbage')
    self.assert_refused('cannot be read')

  def test_one_array_under_the_name_of_an_archive(self):
    with open(self.path, 'wb') as file:
      np.save(file, np.zeros(3))
    self.assert_refused('cannot be read .*one array, not an archive')

  def test_a_member_that_is_no_array(self):
    np.savez(self.path, **{n: a for n, a in _arrays().items() if n != 'y'})
    with zipfile.ZipFile(self.path, 'a') as archive:
      archive.writestr('y.npy', b'')
    self.assert_refused('cannot be read .*y is no array')

  def test_a_class_name_that_no_file_could_have(self):
    self.assert_refused(
        'no text that UTF-8 has', _arrays(class_names=np.array(['a', 'caf\udce9', 'c']))
    )

  def test_a_class_name_with_a_line_break(self):
    self.assert_refused(
        "class_names has 'a.r', with a line break", _arrays(class_names=np.array(['a\r', 'b', 'c']))
    )

  def test_python_objects(self):
    self.assert_refused(
        'cannot be read .*allow_pickle=False', _arrays(class_names=np.array(['a', None, 'c']))
    )

  def test_no_file(self):
    with self.assertRaisesRegex(types.UsageError, 'no.npz is neither a file nor a folder: give an'):
      npz_file.load(str(self.root / 'no.npz'))

  def test_no_or_several_files_in_a_folder(self):
    with self.assertRaisesRegex(types.UsageError, 'holds no .npz file: it must hold exactly one'):
      npz_file.load(str(self.root))
    for name in ('b.npz', 'a.npz'):
      np.savez(self.root / name, **_arrays())
    with self.assertRaisesRegex(types.UsageError, r'holds a\.npz, b\.npz: it must hold exactly'):
      npz_file.load(str(self.root))


if __name__ == '__main__':
  absltest.main()
