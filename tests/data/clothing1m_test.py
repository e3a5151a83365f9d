"""Tests of Clothing1M, on a few files in its layout."""

import os
import pathlib

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.data import clothing1m

_TRAIN = {
    'images/0/00/123,456.jpg': 7,
    'images/4/34/99,1.jpg': 0,
    'images/9/99/5,6.jpg': 13,
}
_TEST = {'images/1/11/7,8.jpg': 3, 'images/2/22/9,9.jpg': 12}


def _kv(labels):
  return ''.join(f'{key} {label}\n' for key, label in labels.items())


class Clothing1mTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.create_tempdir().full_path)

  def write(self, root=None, **changes):
    """Writes the data set; `changes` replace the content of files."""
    root = root or self.root
    contents = {
        'noisy_label_kv': _kv(_TRAIN) + 'images/unlisted.jpg 1\n',
        'clean_label_kv': _kv(_TEST) + 'images/4/34/99,1.jpg 5\n',
        'noisy_train_key_list': '\n'.join(_TRAIN) + '\n',
        'clean_test_key_list': '\n'.join(_TEST) + '\n',
    }
    root.mkdir(exist_ok=True)
    for name, content in (contents | changes).items():
      (root / f'{name}.txt').write_text(content)
    for key in (*_TRAIN, *_TEST):
      (root / key).parent.mkdir(parents=True, exist_ok=True)
      (root / key).touch()

  def load(self, **kwargs):
    return clothing1m.load(str(self.root), **kwargs)

  def assert_refused(self, message, **kwargs):
    with self.assertRaisesRegex(types.UsageError, message) as raised:
      self.load(**kwargs)
    self.assertNotIn('\n', str(raised.exception))

  @parameterized.parameters('', 'clothing1m', 'clothing1M')
  def test_content(self, folder):
    root = self.root / folder
    self.write(root)
    dataset = self.load()
    self.assertEqual(dataset.train_x.tolist(), [os.fsencode(root / key) for key in _TRAIN])
    self.assertEqual(dataset.test_x.tolist(), [os.fsencode(root / key) for key in _TEST])
    self.assertEqual(dataset.human_y.tolist(), [7, 0, 13])
    # A clean label is known for one of them only.
    self.assertEqual(dataset.train_y.tolist(), [types.UNKNOWN, 5, types.UNKNOWN])
    self.assertEqual(dataset.test_y.tolist(), [3, 12])

  def test_contract(self):
    self.write()
    dataset = self.load()
    self.assertEqual((dataset.name, dataset.num_classes), ('clothing1m', 14))
    self.assertEqual(dataset.image_shape, (224, 224, 3))
    for x in (dataset.train_x, dataset.test_x):
      self.assertEqual(x.dtype.kind, 'S')
      for path in x:
        self.assertTrue(os.path.isabs(path))
        self.assertTrue(os.path.isfile(path))
    for y in (dataset.train_y, dataset.test_y, dataset.human_y):
      self.assertEqual(y.dtype, np.int32)
    self.assertLen(dataset.class_names, 14)
    self.assertEqual((dataset.class_names[0], dataset.class_names[8]), ('T-Shirt', 'Down Coat'))
    np.testing.assert_allclose(
        np.array([255] * 3) * dataset.pixel_scale + dataset.pixel_offset,
        [(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225],
    )

  def test_relative_folder(self):
    self.write()
    before = os.getcwd()
    self.addCleanup(os.chdir, before)
    os.chdir(self.root.parent)
    dataset = clothing1m.load(self.root.name)
    self.assertEqual(dataset.train_x[0], os.fsencode(self.root.resolve() / next(iter(_TRAIN))))

  def test_image_size(self):
    self.write()
    self.assertEqual(self.load(image_size=64).image_shape, (64, 64, 3))
    self.assert_refused('--image_size=-1 is not a number of pixels', image_size=-1)

  def test_line_ends_and_blank_ends(self):
    self.write(
        noisy_label_kv=_kv(_TRAIN).replace('\n', '\r\n') + '\n\n',
        noisy_train_key_list='\r\n'.join(_TRAIN),
    )
    self.assertEqual(self.load().human_y.tolist(), [7, 0, 13])

  def test_a_million_lines_are_read_and_no_image_is_looked_for(self):
    keys = [f'images/{i % 10}/{i % 100:02}/{i},{i}.jpg' for i in range(1_000_000)]
    self.write(
        noisy_label_kv=_kv({key: i % 14 for i, key in enumerate(keys)}),
        noisy_train_key_list='\n'.join([next(iter(_TRAIN)), *keys[1:-1], next(iter(_TRAIN))]),
    )
    with open(self.root / 'noisy_label_kv.txt', 'a', encoding='utf-8') as file:
      file.write(_kv(_TRAIN))
    dataset = self.load()
    # Nearly none of their files is there; on a network disk a look at each takes minutes.
    self.assertEqual(dataset.human_y[5], 5)
    self.assertLen(dataset.train_x, 1_000_000)

  def test_nothing_is_there(self):
    self.assert_refused(
        r'^clothing1m: no noisy_label_kv\.txt, clean_label_kv\.txt, noisy_train_key_list\.txt, '
        rf'clean_test_key_list\.txt in {self.root} or {self.root}/clothing1m or .*; --data_dir '
        r'must hold them and images/; nothing is downloaded, .* on request by its authors \(Xiao '
        r'et al\. 2015, https://github\.com/Cysu/noisy_label\)'
    )

  def test_some_lists_are_missing(self):
    self.write()
    (self.root / 'clean_label_kv.txt').unlink()
    (self.root / 'clean_test_key_list.txt').unlink()
    self.assert_refused(
        rf'{self.root} lacks clean_label_kv\.txt, clean_test_key_list\.txt; .*Xiao et al\. 2015'
    )

  @parameterized.parameters(
      ('noisy_train_key_list', _TRAIN, 0), ('noisy_train_key_list', _TRAIN, -1),
      ('clean_test_key_list', _TEST, 0), ('clean_test_key_list', _TEST, -1),
  )
  def test_missing_image(self, name, keys, i):
    self.write()
    missing = self.root / list(keys)[i]
    missing.unlink()
    self.assert_refused(
        rf'^clothing1m: no image {missing}, which {name}\.txt lists; unpack the images into '
        rf'{self.root}/images'
    )

  @parameterized.parameters(
      ('noisy_label_kv', 'noisy_train_key_list', 'images/9/99/5,6.jpg'),
      ('clean_label_kv', 'clean_test_key_list', 'images/2/22/9,9.jpg'),
  )
  def test_key_without_a_label(self, labels_name, keys_name, key):
    labels = dict(_TRAIN | _TEST)
    del labels[key]
    self.write(**{labels_name: _kv(labels)})
    self.assert_refused(rf'/{keys_name}\.txt: {key} has no label in {labels_name}\.txt;')

  @parameterized.parameters('images/a.jpg', 'images/a.jpg x', 'a b 3', '', 'a.jpg 1.5', 'a --1')
  def test_malformed_line(self, line):
    self.write(noisy_label_kv=f'images/b.jpg 1\n{line}\n' + _kv(_TRAIN))
    self.assert_refused(
        rf"/noisy_label_kv\.txt:2: '{line}' is not a key and a label, as in 'images/0/00/123,456"
    )

  @parameterized.parameters(14, -1, 10**30)
  def test_label_out_of_range(self, label):
    self.write(clean_label_kv=_kv(_TEST) + f'a.jpg {label}\n')
    self.assert_refused(
        rf'/clean_label_kv\.txt:3: label {label} is out of range, labels are 0 to 13; correct'
    )

  def test_empty_list(self):
    self.write(noisy_train_key_list='\n')
    self.assert_refused(r'/noisy_train_key_list\.txt is empty: one key a line is expected')

  def test_blank_line_in_a_list(self):
    self.write(noisy_train_key_list='\n\n'.join(_TRAIN))
    self.assert_refused(r'/noisy_train_key_list\.txt:2: the line is empty')


if __name__ == '__main__':
  absltest.main()
