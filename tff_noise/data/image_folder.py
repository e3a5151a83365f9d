"""Data sets that are folders of image files, a folder for each class."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tff_noise import errors
from tff_noise import types
from tff_noise.data import names

SUFFIXES = ('.jpg', '.jpeg', '.png')
DEFAULT_SIZE = 224

# Of ImageNet, which networks for photographs are used to.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def standardisation(
    mean: Sequence[float], std: Sequence[float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
  """Returns `pixel_scale` and `pixel_offset` of `(x / 255 - mean) / std`, one of each a channel."""
  scale = tuple(1 / (255 * s) for s in std)
  offset = tuple(-m / s for m, s in zip(mean, std, strict=True))
  return scale, offset


def image_shape(image_size: int) -> tuple[int, int, int]:
  """Returns the shape that colour images are brought to; 0 stands for `DEFAULT_SIZE`."""
  if image_size < 0:
    raise types.UsageError(
        f'--image_size={image_size} is not a number of pixels: give 1 or more, or 0 for the '
        f'usual {DEFAULT_SIZE}'
    )
  side = image_size or DEFAULT_SIZE
  return side, side, 3


class _Entry(NamedTuple):
  path: str
  name: str
  is_dir: bool
  is_file: bool


def _entries(directory):
  """Returns the visible entries of a folder in the order of their names."""
  try:
    with os.scandir(directory) as entries:
      found = [
          _Entry(e.path, e.name, e.is_dir(), e.is_file())
          for e in entries if not e.name.startswith('.')
      ]
  except OSError as error:
    raise types.UsageError(
        f'{directory} cannot be read ({error.strerror}): a folder with a folder of images for '
        'each class is expected there'
    ) from error
  for entry in found:
    if not names.is_utf8(entry.name):
      raise types.UsageError(
          f'{directory} holds {os.fsencode(entry.name)!r}, whose name is not UTF-8: rename it'
      )
  return sorted(found, key=lambda e: e.name)


def _class_folders(directory):
  """Returns the names of the class folders in `directory`, sorted."""
  entries = _entries(directory)
  for entry in entries:
    if not entry.is_dir:
      raise types.UsageError(
          f'{entry.path} is not in the folder of a class: {directory} may hold folders only, one '
          'for each class; move or remove it'
      )
    if names.has_control(entry.name):
      raise types.UsageError(
          f'{directory} holds {entry.name!r}, whose name has a line break or another control '
          'character: rename it'
      )
  if not entries:
    raise types.UsageError(
        f'{directory} holds no class: it must have a folder of images for each class'
    )
  return [entry.name for entry in entries]


def _images(directory):
  """Returns the paths of the images of one class, sorted."""
  entries = _entries(directory)
  for entry in entries:
    if os.path.islink(entry.path) and not os.path.exists(entry.path):
      raise types.UsageError(
          f'{entry.path} is a link to what is not there: bring it back, or remove the link'
      )
    if not entry.name.lower().endswith(SUFFIXES) or not entry.is_file:
      raise types.UsageError(
          f'{entry.path} is no image file: the folder of a class may hold only files that end in '
          f'{", ".join(SUFFIXES)}; move or remove it'
      )
  if not entries:
    raise types.UsageError(
        f'{directory} holds no image: put files that end in {", ".join(SUFFIXES)} there, or '
        'remove the folder'
    )
  return [os.fsencode(entry.path) for entry in entries]


def read_labelled(directory: str, class_names: Sequence[str]) -> types.Examples:
  """Lists the images of a folder that has a folder for each class.

  Args:
    directory: The folder.
    class_names: The classes that there are; not all of them need a folder.

  Returns:
    The absolute paths, sorted by class name and file name, and the classes' positions in
    `class_names`.

  Raises:
    types.UsageError: If a folder is missing, empty, of an unknown class, or holds other files.
  """
  directory = os.path.abspath(directory)
  ids = {name: k for k, name in enumerate(class_names)}
  paths, labels = [], []
  for name in _class_folders(directory):
    if name not in ids:
      raise types.UsageError(
          f'{os.path.join(directory, name)} is the folder of an unknown class: the classes are '
          f'{", ".join(class_names)}; rename or remove it'
      )
    found = _images(os.path.join(directory, name))
    paths += found
    labels += [ids[name]] * len(found)
  return types.Examples(np.array(paths, np.bytes_), np.array(labels, np.int32))


def read_any(directory: str, class_names: Sequence[str]) -> types.Examples:
  """Lists images by class as `read_labelled`, or, side by side in a folder, of unknown class.

  Raises:
    types.UsageError: If the folder has both, neither, or other files.
  """
  directory = os.path.abspath(directory)
  if any(entry.is_dir for entry in _entries(directory)):
    return read_labelled(directory, class_names)
  paths = np.array(_images(directory), np.bytes_)
  return types.Examples(paths, np.full(len(paths), types.UNKNOWN, np.int32))


def load(data_dir: str, image_size: int = 0) -> types.Dataset:
  """Lists a data set laid out as `train/<class>/*.jpg` and `test/<class>/*.jpg`.

  Args:
    data_dir: The folder with `train` and `test`.
    image_size: The side of the square that images are brought to; 0 for `DEFAULT_SIZE`.

  Raises:
    types.UsageError: If anything else lies there, or less than two classes.
  """
  shape = image_shape(image_size)
  for part in ('train', 'test'):
    if not os.path.isdir(os.path.join(data_dir, part)):
      raise types.UsageError(
          f'{os.path.join(data_dir, part)} is no folder: --data_dir must hold train/ and test/, '
          'each with a folder of images for each class'
      )
  class_names = _class_folders(os.path.join(data_dir, 'train'))
  if len(class_names) < 2:
    raise types.UsageError(
        f'{os.path.join(data_dir, "train")} has one class only, {class_names[0]}: give at least '
        'two classes a folder'
    )
  train = read_labelled(os.path.join(data_dir, 'train'), class_names)
  test = read_labelled(os.path.join(data_dir, 'test'), class_names)
  scale, offset = standardisation(IMAGENET_MEAN, IMAGENET_STD)
  return types.Dataset(
      name='image_folder',
      train_x=train.x,
      train_y=train.y,
      test_x=test.x,
      test_y=test.y,
      num_classes=len(class_names),
      image_shape=shape,
      pixel_scale=scale,
      pixel_offset=offset,
      class_names=tuple(class_names),
  )


def _read_image(path, shape):
  """Returns uint8 `shape`, the pixels of one image file."""
  from PIL import Image  # Only where image files are read.

  height, width, channels = shape
  try:
    with Image.open(path) as image:
      converted = _of_bytes(image).convert('L' if channels == 1 else 'RGB')
      resized = converted.resize((width, height), Image.Resampling.BILINEAR)
  # Pillow's decoders raise these for files that are damaged, cut off, no images, or too large.
  except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
    reason = errors.first_line(error)
    raise types.UsageError(
        f'{path} cannot be read as an image ({reason}): replace or remove it'
    ) from error
  return np.asarray(resized, np.uint8).reshape(shape)


def _of_bytes(image):
  """The image with a byte a pixel: Pillow cuts what is larger off at 255."""
  from PIL import Image

  if image.mode.startswith('I;16'):
    # The higher byte, as TensorFlow's decoder has it.
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
  if image.mode in ('I', 'F'):
    raise ValueError(f'its pixels are of mode {image.mode}, neither 8 nor 16 bits')
  return image


def read_pixels(
    paths: np.ndarray, image_shape: tuple[int, int, int], largest: int = 255
) -> np.ndarray:
  """Reads image files, for use with a data set whose images are arrays.

  Args:
    paths: Bytes `[n]`.
    image_shape: (height, width, channels), with 1 channel for grey or 3 for RGB; images of
      another size are resized bilinearly.
    largest: What becomes of the largest pixel that a file can have, `Dataset.largest_pixel`.

  Returns:
    uint8 `[n, height, width, channels]`.

  Raises:
    types.UsageError: If an image cannot be read, or images cannot have so many channels.
  """
  if image_shape[2] not in (1, 3):
    raise types.UsageError(
        f'image files have 1 channel (grey) or 3 (RGB), not the {image_shape[2]} that this data '
        'set has: they cannot be used with it'
    )
  pixels = np.empty((len(paths), *image_shape), np.uint8)
  for i, path in enumerate(paths):
    pixels[i] = _read_image(os.fsdecode(path), image_shape)
  return pixels if largest == 255 else np.round(pixels * (largest / 255)).astype(np.uint8)
