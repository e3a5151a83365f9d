"""What happens to images between a client's storage and the model, inside its computation.

Pixels travel as bytes, or not at all: a data set of image files carries their paths, and each
batch is read where it is used.
"""

import tensorflow as tf

# FedCorr and most work on CIFAR: zeros around the image, then a crop of its former size.
_PADDING = 4

# How JPEG and PNG files begin.
_SIGNATURES = (b'\xff\xd8\xff', b'\x89PNG')


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
    known = [tf.equal(tf.strings.substr(content, 0, len(s)), s) for s in _SIGNATURES]
    tf.debugging.Assert(tf.reduce_any(known), ['neither JPEG nor PNG:', path])
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
