"""A data set of the Hugging Face hub as a file for --dataset=npz.

  pip install datasets
  python -m docs.examples.hugging_face ylecun/mnist mnist.npz
  python -m bin.train --dataset=npz --data_dir=mnist.npz --model=cnn

The hub is not reached by tests: they run `write` on a stand-in.
"""

import sys

import numpy as np

from tff_noise.data import adapters


def write(dataset, path, image='image', label='label'):
  """Writes the splits 'train' and 'test' of a `datasets.DatasetDict`, as if one client had all.

  Args:
    dataset: Its examples are mappings with an image (PIL) and a label.
    path: The file.
    image: Name of the images' column.
    label: Name of the labels' column, a `datasets.ClassLabel`.
  """
  names = dataset['train'].features[label].names
  train, test = (
      [(np.asarray(example[image]), example[label]) for example in dataset[split]]
      for split in ('train', 'test')
  )
  adapters.write_npz(path, [train], test=test, class_names=names)


def main():
  """Loads a data set by its name on the hub, and writes it."""
  try:
    import datasets
  except ImportError:
    sys.exit('hugging_face: it needs the package datasets: pip install datasets')
  if len(sys.argv) != 3:
    sys.exit('hugging_face: give the name of a data set and of the file, as in its docstring')
  name, path = sys.argv[1:]
  write(datasets.load_dataset(name), path)


if __name__ == '__main__':
  main()
