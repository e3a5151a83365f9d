"""What happens to images between a client's storage and the model, inside its computation.

Pixels travel as bytes, or not at all: a data set of image files carries their paths, and each
batch is read where it is used.
"""

import math

import tensorflow as tf

from tff_noise import types

# FedCorr and most work on CIFAR: zeros around the image, then a crop of its former size.
_PADDING = 4

# FedLSR's public code: of a second view, by how much brightness, contrast and saturation change at
# most, the hue, and how often these and grey are applied.
_JITTER, _HUE = 0.8, 0.2
_JITTER_SHARE, _GREY_SHARE = 0.8, 0.2
_RANGE = 255.0
_DEGREES = 30


def read(x: tf.Tensor, image_shape: tuple[int, int, int]) -> tf.Tensor:
  """Returns pixels uint8 `[b, height, width, channels]`.

  Args:
    x: Pixels, returned as they are; or string `[b]`, paths of JPEG or PNG files, which are decoded
      and brought to `image_shape` (bilinear, with antialiasing).
    image_shape: (height, width, channels).
  """
  if x.dtype != tf.string:
    return x
  height, width, channels = image_shape

  def read_one(path):
    content = tf.io.read_file(path)
    # The decoder does not say which file it could not decode.
    known = [tf.equal(tf.strings.substr(content, 0, len(s)), s) for s in types.IMAGE_SIGNATURES]
    # A text without the path, which is the client's: what is shown of errors has to be constant.
    tf.debugging.Assert(tf.reduce_any(known), ['a file is neither JPEG nor PNG'])
    image = tf.io.decode_image(content, channels=channels, expand_animations=False)
    image.set_shape([None, None, channels])
    resized = tf.image.resize(image, (height, width), antialias=True)
    return tf.saturate_cast(tf.round(resized), tf.uint8)

  return tf.map_fn(read_one, x, fn_output_signature=tf.TensorSpec(image_shape, tf.uint8))


def crop_and_flip(x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Shifts each image by up to 4 pixels, filling with zeros, and mirrors half of them.

  Args:
    x: `[b, height, width, channels]` with known height and width.
    seed: int32 `[2]`; the result is a function of `x` and it.

  Returns:
    The same shape and dtype.
  """
  height, width = x.shape[1:3]
  count = tf.shape(x)[0]
  seeds = tf.random.experimental.stateless_split(seed, 2)
  offset = tf.random.stateless_uniform(
      [count, 2], seeds[0], minval=0, maxval=2 * _PADDING + 1, dtype=tf.int32
  )
  padded = tf.pad(x, [[0, 0], [_PADDING, _PADDING], [_PADDING, _PADDING], [0, 0]])
  rows = offset[:, :1] + tf.range(height)
  columns = offset[:, 1:] + tf.range(width)
  mirrored = tf.random.stateless_uniform([count, 1], seeds[1]) < 0.5
  columns = tf.where(mirrored, tf.reverse(columns, [1]), columns)
  cropped = tf.gather(padded, rows, axis=1, batch_dims=1)
  cropped = tf.gather(cropped, columns, axis=2, batch_dims=1)
  return tf.ensure_shape(cropped, x.shape)


def mirror_and_recolour(x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Mirrors images, or not, changes their colours, or not, and makes them grey, or not.

  One draw for all of them: half of the time they are mirrored, in 0.8 of it brightness, contrast
  and saturation are multiplied by something in [0.2, 1.8) and the hue is turned by up to a fifth of
  its circle, in 0.2 of it they are grey.

  Args:
    x: `[b, height, width, 3]`, pixels in [0, 255].
    seed: int32 `[2]`; the result is a function of `x` and it.

  Returns:
    The same shape and dtype.
  """
  for_factors, for_hue, for_chances = tf.unstack(
      tf.random.experimental.stateless_split(seed, 3)
  )
  brightness, contrast, saturation = tf.unstack(
      tf.random.stateless_uniform([3], for_factors, 1 - _JITTER, 1 + _JITTER)
  )
  hue = tf.random.stateless_uniform([], for_hue, -_HUE, _HUE)
  chances = tf.random.stateless_uniform([3], for_chances)

  def recolour(pixels):
    pixels = _blend(pixels, 0.0, brightness)
    mean = tf.reduce_mean(tf.image.rgb_to_grayscale(pixels), axis=(1, 2, 3), keepdims=True)
    pixels = _blend(pixels, mean, contrast)
    pixels = _blend(pixels, tf.image.rgb_to_grayscale(pixels), saturation)
    return tf.image.adjust_hue(pixels, hue)

  def grey(pixels):
    return tf.repeat(tf.image.rgb_to_grayscale(pixels), 3, axis=-1)

  pixels = tf.cast(x, tf.float32) / _RANGE
  changes = (
      (0.5, lambda p: tf.reverse(p, [2])), (_JITTER_SHARE, recolour), (_GREY_SHARE, grey),
  )
  for (share, change), chance in zip(changes, tf.unstack(chances), strict=True):
    pixels = tf.cond(chance < share, lambda p=pixels, c=change: c(p), lambda p=pixels: p)
  return _as_pixels(pixels * _RANGE, x)


def rotate(x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Turns all images by one angle of up to 30 degrees, to the nearest pixels, filling with zeros.

  Args:
    x: `[b, height, width, channels]`.
    seed: int32 `[2]`; the result is a function of `x` and it.

  Returns:
    The same shape and dtype.
  """
  height, width = x.shape[1:3]
  largest = math.radians(_DEGREES)
  angle = tf.random.stateless_uniform([], seed, -largest, largest)
  cos, sin = tf.cos(angle), tf.sin(angle)
  # From where a pixel is to where it comes from, about the middle of the image.
  middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
  transform = tf.stack([
      cos, -sin, middle_x - cos * middle_x + sin * middle_y,
      sin, cos, middle_y - sin * middle_x - cos * middle_y, 0.0, 0.0,
  ])
  turned = tf.raw_ops.ImageProjectiveTransformV3(
      images=tf.cast(x, tf.float32), transforms=transform[tf.newaxis],
      output_shape=[height, width], interpolation='NEAREST', fill_mode='CONSTANT', fill_value=0.0,
  )
  return _as_pixels(turned, x)


def _blend(pixels, other, factor):
  """float32, `factor pixels + (1 - factor) other`, cut to [0, 1]."""
  return tf.clip_by_value(factor * pixels + (1 - factor) * other, 0.0, 1.0)


def _as_pixels(changed, x):
  """float32 `changed` in the shape and dtype of `x`; bytes are rounded."""
  if x.dtype.is_integer:
    changed = tf.round(changed)
  return tf.ensure_shape(tf.cast(changed, x.dtype), x.shape)
