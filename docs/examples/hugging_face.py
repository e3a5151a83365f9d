"""A data set of the Hugging Face hub as a file for --dataset=npz.

  python3 -m venv hub && hub/bin/pip install datasets pillow absl-py
  hub/bin/python -m docs.examples.hugging_face ylecun/mnist mnist.npz [IMAGE LABEL]
  python -m bin.train --dataset=npz --data_dir=mnist.npz --model=cnn --partition=iid --noise=none

In an environment of its own, as `datasets` wants a newer NumPy than TensorFlow Federated does.
IMAGE and LABEL are names of columns, if they are not `image` and `label`. The hub is not reached by
tests: they run `write` on a stand-in.
"""

import sys

import numpy as np

from tff_noise import types
from tff_noise.data import adapters

# Modes of Pillow whose numbers are no brightness; others are taken as they are.
_COLOURS = ('P', 'PA', 'LA', 'RGBA', 'CMYK', 'YCbCr')


def write(dataset, path, image='image', label='label'):
  """Writes the splits 'train' and 'test' of a `datasets.DatasetDict`, as if one client had all.

  Args:
    dataset: Its examples are mappings with an image (PIL) and a label.
    path: The file.
    image: Name of the images' column.
    label: Name of the labels' column, a `datasets.ClassLabel`.

  Raises:
    types.UsageError: If it has not these splits and columns.
  """
  _require('split', ('train', 'test'), dataset)
  features = dataset['train'].features
  _require('column', (image, label), features)
  names = getattr(features[label], 'names', None)
  if names is None:
    raise types.UsageError(
        f'the column {label} has no class names: make it one of classes by '
        f'dataset.class_encode_column({label!r})'
    )
  train, test = (
      [(pixels(example[image]), example[label]) for example in dataset[split]]
      for split in ('train', 'test')
  )
  adapters.write_npz(path, [train], test=test, class_names=names)


def pixels(image):
  """Returns `[height, width]` or `[height, width, 3]`; palettes and alpha become colours."""
  if not hasattr(image, 'mode'):
    raise types.UsageError(f'the column of images holds a {type(image).__name__}, which is none')
  return np.asarray(image.convert('RGB') if image.mode in _COLOURS else image)


def _require(kind, names, found):
  missing = [name for name in names if name not in found]
  if missing:
    raise types.UsageError(f'it has no {kind} {" and ".join(missing)}; it has {", ".join(found)}')


def main():
  """Loads a data set by its name on the hub, and writes it; returns the exit status."""
  if len(sys.argv) not in (3, 5):
    print('hugging_face: give the name of a data set and of the file, and both columns or none, '
          'as in its docstring', file=sys.stderr)
    return 2
  try:
    import datasets
  except ImportError as error:
    print(f'hugging_face: the package datasets cannot be loaded ({error}): see the docstring for '
          'an environment of its own', file=sys.stderr)
    return 2
  name, path, *columns = sys.argv[1:]
  try:
    write(datasets.load_dataset(name), path, *columns)
  except (types.UsageError, OSError, ValueError, RuntimeError) as error:  # The hub's are such.
    print(f'hugging_face: {name}: {error}', file=sys.stderr)
    return 2
  return 0


if __name__ == '__main__':
  sys.exit(main())
