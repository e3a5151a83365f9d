"""Tests of training on blends of images."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tests import federated_test_case
from tests import toy
from tests.clients import one_client
from tff_noise import types
from tff_noise.clients import mixup
from tff_noise.data import client_data
from tff_noise.models import keras_model
from tff_noise.models import losses


class MixupTest(federated_test_case.FederatedTestCase):

  def _shown(self, x, y, alpha, *, batch_size=3, round_num=1, client=0, columns=10):
    """Runs one step whose update shows what a batch of three was mixed to.

    Column i of the update is image i as the loss got it, columns 3 + i and 6 + i are the image
    times its own label and its other's, column 9 is image 0 times lambda.
    """
    inputs = tf.keras.Input(x.shape[1:], dtype=x.dtype.name)
    features = tf.keras.layers.Rescaling(1.0)(inputs)
    logits = tf.keras.layers.Dense(columns, use_bias=False)(features)

    def loss(s):
      labels, others = (
          tf.cast(v, tf.float32) for v in (s.labels, s.columns[mixup.OTHER_LABELS])
      )
      # The other's label by its place in the batch is the label that is given.
      same = tf.reduce_all(tf.equal(
          tf.gather(s.labels, s.columns[mixup.OTHERS]), s.columns[mixup.OTHER_LABELS]
      ))
      total = s.logits[0, 9] * s.columns[mixup.SHARE] / tf.cast(same, tf.float32)
      for k in range(3):
        total += s.logits[k, k] + s.logits[k, 3 + k] * labels[k] + s.logits[k, 6 + k] * others[k]
      return total

    shown = one_client.run(
        client_data.client_dataset(x, y, client),
        model=keras_model.from_keras(tf.keras.Model(inputs, [logits, features])),
        round_num=round_num,
        training={'epochs': 1, 'batch_size': batch_size, 'learning_rate': 1.0},
        loss=loss,
        transform=mixup.transform(alpha),
    ).update.trainable[0].T
    images, total = shown[:3], shown.sum(axis=1)
    return images, *(total[[k, k + 1, k + 2]] / total[:3] for k in (3, 6)), total[9] / total[0]

  @parameterized.parameters(np.uint8, np.float32)
  def test_blends_images_with_others_of_the_batch(self, dtype):
    x = np.random.default_rng(0).integers(1, 256, (3, 40)).astype(dtype)
    mixed_with_another = 0
    for round_num in range(1, 5):
      images, labels, others, share = self._shown(
          x, np.array([1, 2, 3]), 1.0, round_num=round_num
      )
      # The labels, 1 to 3, say which images these are.
      self.assertCountEqual(labels.round().tolist(), [1, 2, 3])
      self.assertCountEqual(others.round().tolist(), [1, 2, 3])
      np.testing.assert_allclose(labels, labels.round(), atol=1e-4)
      self.assertBetween(share, 0, 1)
      own, other = (x[k.round().astype(int) - 1].astype(float) for k in (labels, others))
      blended = share * own + (1 - share) * other
      if dtype is np.uint8:
        np.testing.assert_array_equal(images, images.round())
        self.assertLessEqual(np.abs(images - blended).max(), 0.5 + 1e-3)
      else:
        np.testing.assert_allclose(images, blended, atol=1e-2)
        self.assertFalse(np.array_equal(images, images.round()))
      mixed_with_another += (labels.round() != others.round()).sum()
    self.assertGreater(mixed_with_another, 0)

  @parameterized.parameters(np.uint8, np.float32)
  def test_off_leaves_images_and_labels_alone(self, dtype):
    x = np.random.default_rng(0).integers(1, 256, (3, 40)).astype(dtype)
    images, labels, others, share = self._shown(x, np.array([1, 2, 3]), 0.0)
    np.testing.assert_array_equal(images, x[labels.round().astype(int) - 1])
    np.testing.assert_array_equal(labels, others)
    self.assertEqual(share, 1)

  def test_off_trains_to_the_same_bits_as_a_loss_that_knows_no_mixup(self):
    def mixed(s):
      other = losses.cross_entropy(s.logits, s.columns[mixup.OTHER_LABELS])
      share = s.columns[mixup.SHARE]
      return share * one_client.cross_entropy(s) + (1 - share) * other

    training = {'epochs': 3, 'batch_size': 2, 'learning_rate': 0.3, 'momentum': 0.5}
    first, second = (
        one_client.run(toy.client(0, *one_client.EXAMPLES), training=training, **more)
        for more in ({}, {'loss': mixed, 'transform': mixup.transform(0.0)})
    )
    np.testing.assert_array_equal(first.update.trainable[0], second.update.trainable[0])
    self.assertEqual(first.sums, second.sums)

  @parameterized.parameters((1.0, 1 / 12), (0.2, 1 / 5.6), (8.0, 1 / 68))
  def test_share_follows_the_beta_distribution(self, alpha, variance):
    # Batches of one: the update of weight i is lambda of the batch with example i.
    count = 600
    inputs = tf.keras.Input((count,))
    logits = tf.keras.layers.Dense(1, use_bias=False)(inputs)
    shares = one_client.run(
        client_data.client_dataset(np.eye(count, dtype=np.float32), np.zeros(count), 0),
        model=keras_model.from_keras(tf.keras.Model(inputs, [logits, inputs])),
        training={'epochs': 1, 'batch_size': 1, 'learning_rate': 1.0},
        loss=lambda s: s.logits[0, 0] * s.columns[mixup.SHARE],
        transform=mixup.transform(alpha),
    ).update.trainable[0][:, 0]
    self.assertBetween(shares.min(), 0, 1)
    self.assertBetween(shares.max(), 0, 1)
    # Beta(a, a): mean 1/2, variance 1 / (4 (2 a + 1)); within 4 standard errors.
    self.assertAlmostEqual(shares.mean(), 0.5, delta=4 * np.sqrt(variance / count))
    self.assertAlmostEqual(shares.var(), variance, delta=0.2 * variance)
    # Each batch draws its own; float32 has few numbers next to 1.
    self.assertGreater(len(set(shares.tolist())), 0.9 * count)

  @parameterized.parameters({'round_num': 2}, {'client': 1})
  def test_draws_are_a_function_of_round_and_client(self, **change):
    x = np.random.default_rng(0).integers(1, 256, (3, 40)).astype(np.uint8)
    y = np.array([1, 2, 3])
    first, again, other = (self._shown(x, y, 1.0, **c) for c in ({}, {}, change))
    np.testing.assert_array_equal(first[0], again[0])
    self.assertNotEqual(first[3], other[3])

  def test_the_smallest_alpha_gives_almost_all_or_nothing(self):
    shares = np.array([mixup.draw_share(tf.constant([7, i]), 0.05) for i in range(300)])
    self.assertGreater(np.mean((shares < 1e-2) | (shares > 1 - 1e-2)), 0.7)
    self.assertAlmostEqual(shares.mean(), 0.5, delta=0.12)

  def test_alpha_below_what_float32_can_draw_is_refused(self):
    with self.assertRaisesRegex(types.UsageError, '^alpha of mixup must be 0, .* got 0.0001: '):
      mixup.draw_share(tf.constant([7, 0]), 1e-4)


if __name__ == '__main__':
  absltest.main()
