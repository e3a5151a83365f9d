"""Tests of the losses."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import types
from tff_noise.models import losses

_LOGITS = np.array([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]], np.float32)
_LABELS = np.array([1, 0], np.int32)


def _log_softmax(logits):
  return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


class LossesTest(parameterized.TestCase):

  def test_cross_entropy_is_the_mean_of_minus_log_probability(self):
    expected = -np.mean(_log_softmax(_LOGITS)[[0, 1], _LABELS])
    self.assertAlmostEqual(losses.cross_entropy(_LOGITS, _LABELS).numpy(), expected, places=6)

  @parameterized.parameters(
      {'form': types.CrossEntropy()},
      {'form': types.CrossEntropy(0.1, 2.0, 'rescale', keep_probability=0.7)},
  )
  def test_soft_cross_entropy_is_linear_in_its_targets(self, form):
    ones = np.eye(3, dtype=np.float32)
    each = [losses.cross_entropy(_LOGITS[:1], np.array([k]), form).numpy() for k in range(3)]
    targets = np.array([[0.2, 0.7, 0.3]], np.float32)
    value = losses.soft_cross_entropy(_LOGITS[:1], targets, form).numpy()
    self.assertAlmostEqual(value, (targets[0] * each).sum(), places=5)
    given = losses.soft_cross_entropy(_LOGITS, ones[_LABELS], form).numpy()
    self.assertAlmostEqual(given, losses.cross_entropy(_LOGITS, _LABELS, form).numpy(), places=5)

  def test_symmetric_cross_entropy_by_hand(self):
    logits, label = np.array([[2.0, 1.0, 0.0]], np.float32), np.array([1], np.int32)
    for forward, reverse, expected in (
        (1.0, 0.0, 1.407606), (0.0, 1.0, 6.956308), (0.1, 1.0, 7.097068)
    ):
      value = losses.symmetric_cross_entropy(logits, label, forward=forward, reverse=reverse)
      self.assertAlmostEqual(value.numpy(), expected, places=5)

  def test_reverse_cross_entropy_is_that_of_the_definition(self):
    # Prediction and label in each other's place, and 1e-4 for the label's zeros.
    p, one = np.exp(_log_softmax(_LOGITS)), np.eye(3)[_LABELS]
    expected = -np.mean(np.sum(p * np.log(np.maximum(one, 1e-4)), axis=1))
    value = losses.symmetric_cross_entropy(_LOGITS, _LABELS, forward=0.0, reverse=1.0)
    self.assertAlmostEqual(value.numpy(), expected, places=5)

  def test_contrastive_loss_is_a_difference_of_logits_where_the_floor_is_far(self):
    # CE(y) - CE(y') = z_y' - z_y: the log-sum-exp cancels at beta = 1.
    contrast = np.array([2, 1])
    expected = np.mean(_LOGITS[[0, 1], contrast] - _LOGITS[[0, 1], _LABELS])
    loss = losses.contrastive_cross_entropy(_LOGITS, _LABELS, contrast, weight=1.0, floor=1e-12)
    self.assertAlmostEqual(loss.numpy(), expected, places=5)

  def test_contrast_with_the_own_label_cancels(self):
    loss = losses.contrastive_cross_entropy(_LOGITS, _LABELS, _LABELS, weight=1.0, floor=1e-8)
    self.assertAlmostEqual(loss.numpy(), 0, places=6)

  def test_weight_zero_is_cross_entropy(self):
    expected = losses.cross_entropy(_LOGITS, _LABELS).numpy()
    sampled = losses.contrastive_cross_entropy(
        _LOGITS, _LABELS, np.array([0, 0]), weight=0.0, floor=1e-8
    )
    self.assertAlmostEqual(sampled.numpy(), expected, places=5)
    prior = np.ones(3, np.float32) / 3
    mean = losses.expected_contrastive_cross_entropy(
        _LOGITS, _LABELS, prior, weight=0.0, floor=1e-8
    )
    self.assertAlmostEqual(mean.numpy(), expected, places=5)

  @parameterized.parameters(1e-8, 0.1)
  def test_expected_contrast_is_the_mean_of_sampled_ones(self, floor):
    # At floor .1 the third class of each example is below it.
    prior = np.array([0.2, 0.5, 0.3], np.float32)
    expected = losses.expected_contrastive_cross_entropy(
        _LOGITS, _LABELS, prior, weight=0.7, floor=floor
    ).numpy()
    sampled = sum(
        p * losses.contrastive_cross_entropy(
            _LOGITS, _LABELS, np.array([k, k]), weight=0.7, floor=floor
        ).numpy()
        for k, p in enumerate(prior)
    )
    self.assertAlmostEqual(expected, sampled, places=5)

  def test_loss_is_bounded_below(self):
    logits = np.array([[1000.0, -1000.0]], np.float32)
    labels, contrast = np.array([0]), np.array([1])
    loss = losses.contrastive_cross_entropy(logits, labels, contrast, weight=2.0, floor=1e-8)
    self.assertAlmostEqual(loss.numpy(), 2 * np.log(1e-8), places=3)

  def test_gradient_stops_where_the_contrast_has_won_and_not_before(self):
    # Without the floor it would be +-1 for ever, and the logits would run away.
    def gradient(margin):
      logits = tf.constant([[margin, 0.0]])
      with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = losses.contrastive_cross_entropy(
            logits, tf.constant([0]), tf.constant([1]), weight=1.0, floor=1e-4
        )
      return tape.gradient(loss, logits).numpy()

    # -log(1e-4) = 9.2.
    np.testing.assert_allclose(gradient(9.0), [[-1, 1]], atol=1e-6)
    np.testing.assert_allclose(gradient(12.0), [[0, 0]], atol=1e-4)

  def test_wrong_side_is_always_pushed_back(self):
    # The own label keeps its full gradient, however unlikely the model thinks it.
    logits = tf.constant([[-50.0, 50.0]])
    with tf.GradientTape() as tape:
      tape.watch(logits)
      loss = losses.contrastive_cross_entropy(
          logits, tf.constant([0]), tf.constant([1]), weight=1.0, floor=1e-8
      )
    np.testing.assert_allclose(tape.gradient(loss, logits).numpy(), [[-1, 1]], atol=1e-6)

  def test_smoothed_and_tempered_by_hand(self):
    # z / 2 = (log 1, log 3): p = (1/4, 3/4). s = .2: target (.9, .1) for label 0.
    logits = 2 * np.log(np.array([[1.0, 3.0]], np.float32))
    form = types.CrossEntropy(label_smoothing=0.2, temperature=2.0)
    expected = -(0.9 * np.log(0.25) + 0.1 * np.log(0.75))
    loss = losses.cross_entropy(logits, np.array([0]), form).numpy()
    self.assertAlmostEqual(loss, expected, places=5)
    rescaled = form._replace(temperature_reading='rescale')
    loss = losses.cross_entropy(logits, np.array([0]), rescaled).numpy()
    self.assertAlmostEqual(loss, 4 * expected, places=5)

  def test_rescaled_gradient_has_the_size_of_the_untempered_one(self):
    # Near z = 0 the gradient of T^2 l(z / T) in z is T (p - e_y): divided, it is 1 / T of plain.
    def gradient(form):
      logits = tf.zeros([1, 4])
      with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = losses.cross_entropy(logits, tf.constant([1]), form)
      return tape.gradient(loss, logits).numpy()

    plain = gradient(types.CrossEntropy())
    np.testing.assert_allclose(gradient(types.CrossEntropy(0.0, 10.0)), plain / 10, rtol=1e-5)
    np.testing.assert_allclose(
        gradient(types.CrossEntropy(0.0, 10.0, 'rescale')), 10 * plain, rtol=1e-5
    )

  def test_almost_no_smoothing_is_cross_entropy(self):
    plain = losses.cross_entropy(_LOGITS, _LABELS).numpy()
    general = losses.cross_entropy(_LOGITS, _LABELS, types.CrossEntropy(1e-9)).numpy()
    self.assertAlmostEqual(plain, general, places=5)

  def test_expected_contrast_is_the_mean_of_sampled_ones_for_every_form(self):
    prior = np.array([0.2, 0.5, 0.3], np.float32)
    form = types.CrossEntropy(0.1, 3.0, 'rescale')
    expected = losses.expected_contrastive_cross_entropy(
        _LOGITS, _LABELS, prior, weight=0.7, floor=1e-8, form=form
    ).numpy()
    sampled = sum(
        p * losses.contrastive_cross_entropy(
            _LOGITS, _LABELS, np.array([k, k]), weight=0.7, floor=1e-8, form=form
        ).numpy()
        for k, p in enumerate(prior)
    )
    self.assertAlmostEqual(expected, sampled, places=4)


class FlippedLabelsTest(parameterized.TestCase):
  """The loss of labels that are reports of randomised response."""

  # p = (.5, .3, .2); with a = .8 and b = .1 the reports have .7 p + .1 = (.45, .31, .24).
  _LOGITS = np.log(np.array([[0.5, 0.3, 0.2]], np.float32))
  _REPORTED = (0.45, 0.31, 0.24)

  @parameterized.parameters(0, 1, 2)
  def test_by_hand(self, label):
    form = types.CrossEntropy(keep_probability=0.8)
    loss = losses.cross_entropy(self._LOGITS + 5, np.array([label]), form).numpy()
    self.assertAlmostEqual(loss, -np.log(self._REPORTED[label]), places=6)

  def test_with_smoothing_and_temperature_by_hand(self):
    form = types.CrossEntropy(0.3, 2.0, 'rescale', keep_probability=0.8)
    loss = losses.cross_entropy(2 * self._LOGITS, np.array([1]), form).numpy()
    # .3 is spread over three classes.
    expected = -(0.8 * np.log(0.31) + 0.1 * np.log(0.45) + 0.1 * np.log(0.24))
    self.assertAlmostEqual(loss, 4 * expected, places=5)

  def test_labels_that_are_always_kept_have_plain_cross_entropy(self):
    plain = losses.cross_entropy(_LOGITS, _LABELS).numpy()
    kept = types.CrossEntropy(keep_probability=1.0)
    self.assertEqual(kept, types.CrossEntropy())
    self.assertEqual(losses.cross_entropy(_LOGITS, _LABELS, kept).numpy(), plain)
    almost = types.CrossEntropy(keep_probability=1 - 1e-6)
    self.assertAlmostEqual(losses.cross_entropy(_LOGITS, _LABELS, almost).numpy(), plain, places=4)

  def test_its_minimiser_is_the_distribution_before_the_flips(self):
    clean = np.array([0.6, 0.3, 0.1], np.float32)
    reported = 0.7 * clean + 0.1

    def fitted(form):
      logits = tf.zeros([1, 3])

      @tf.function
      def step(logits):
        with tf.GradientTape() as tape:
          tape.watch(logits)
          loss = sum(
              r * losses.cross_entropy(logits, np.array([k]), form)
              for k, r in enumerate(reported)
          )
        return logits - 3.0 * tape.gradient(loss, logits)

      for _ in range(400):
        logits = step(logits)
      return tf.nn.softmax(logits)[0].numpy()

    np.testing.assert_allclose(
        fitted(types.CrossEntropy(keep_probability=0.8)), clean, atol=1e-3
    )
    # Plain cross-entropy learns the flips.
    np.testing.assert_allclose(fitted(types.CrossEntropy()), reported, atol=1e-3)

  def test_is_bounded_and_has_a_finite_gradient_however_sure_the_model_is(self):
    form = types.CrossEntropy(keep_probability=0.8)
    for margin in (50.0, 1e4):
      logits = tf.constant([[-margin, margin, 0.0]])
      with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = losses.cross_entropy(logits, tf.constant([0]), form)
      # No report is less likely than b.
      self.assertAlmostEqual(loss.numpy(), -np.log(0.1), places=5)
      np.testing.assert_allclose(tape.gradient(loss, logits).numpy(), np.zeros((1, 3)), atol=1e-6)

  def test_contrast_is_of_the_same_form(self):
    prior = np.array([0.2, 0.5, 0.3], np.float32)
    form = types.CrossEntropy(keep_probability=0.8)
    expected = losses.expected_contrastive_cross_entropy(
        self._LOGITS, np.array([0]), prior, weight=0.7, floor=1e-8, form=form
    ).numpy()
    by_hand = -np.log(0.45) + 0.7 * prior @ np.log(self._REPORTED)
    self.assertAlmostEqual(expected, by_hand, places=5)
    sampled = losses.contrastive_cross_entropy(
        self._LOGITS, np.array([0]), np.array([2]), weight=0.7, floor=1e-8, form=form
    ).numpy()
    self.assertAlmostEqual(sampled, -np.log(0.45) + 0.7 * np.log(0.24), places=5)


class GeneralisedCrossEntropyTest(parameterized.TestCase):

  # p_y = 1/4 and 1/25.
  _LOGITS = np.log(np.array([[0.25, 0.35, 0.4], [0.46, 0.5, 0.04]], np.float32))
  _LABELS = np.array([0, 2], np.int32)

  @parameterized.parameters(
      # (1 - 1/2) / .5 = 1 and (1 - 1/5) / .5 = 1.6.
      (0.5, 1.3),
      # Half the absolute error: 3/4 and 24/25.
      (1.0, 0.855),
      # .25^.7 = .3789291, .04^.7 = .1050611: (.8872441 + 1.2784841) / 2.
      (0.7, 1.0828641),
  )
  def test_by_hand(self, q, expected):
    loss = losses.generalised_cross_entropy(self._LOGITS + 7, self._LABELS, q=q).numpy()
    self.assertAlmostEqual(loss, expected, places=5)

  def test_of_soft_targets_it_is_the_mean_over_labels(self):
    targets = np.array([[0.5, 0.5, 0], [0, 0.25, 0.75]], np.float32)
    found = losses.soft_generalised_cross_entropy(self._LOGITS, targets, q=1.0).numpy()
    # 1 - p: .5 x .75 + .5 x .65 and .25 x .5 + .75 x .96.
    self.assertAlmostEqual(found, (0.7 + 0.845) / 2, places=5)
    given = np.eye(3, dtype=np.float32)[self._LABELS]
    self.assertEqual(
        losses.soft_generalised_cross_entropy(self._LOGITS, given, q=0.7).numpy(),
        losses.generalised_cross_entropy(self._LOGITS, self._LABELS, q=0.7).numpy(),
    )

  @parameterized.parameters(1e-3, 0.5, 0.7, 1.0)
  def test_gradient_is_that_of_cross_entropy_times_a_power_of_p(self, q):
    logits = tf.constant(self._LOGITS)
    with tf.GradientTape() as tape:
      tape.watch(logits)
      loss = losses.generalised_cross_entropy(logits, self._LABELS, q=q)
    of_cross_entropy = np.exp(self._LOGITS) - np.eye(3)[self._LABELS]
    power = np.array([[0.25], [0.04]]) ** q
    np.testing.assert_allclose(
        tape.gradient(loss, logits).numpy(), power * of_cross_entropy / 2, atol=1e-6
    )

  @parameterized.parameters(1e-6, 1e-30, 1e-50)
  def test_without_q_it_is_cross_entropy(self, q):
    # `(1 - p^q) / q` has lost five of seven digits at the first, and is 0 / 0 at the last.
    loss = losses.generalised_cross_entropy(self._LOGITS, self._LABELS, q=q).numpy()
    self.assertAlmostEqual(loss, -np.log(0.25 * 0.04) / 2, places=5)

  @parameterized.parameters(0.01, 0.7, 1.0)
  def test_is_finite_and_flat_where_the_label_is_impossible(self, q):
    # exp(-2e4) is 0: the gradient of its power would be 0 times infinity.
    logits = tf.constant([[-1e4, 1e4, 0.0]])
    with tf.GradientTape(persistent=True) as tape:
      tape.watch(logits)
      loss = losses.generalised_cross_entropy(logits, tf.constant([0]), q=q)
      literal = (1 - tf.nn.softmax(logits)[:, 0] ** 0.7) / 0.7
    self.assertAlmostEqual(loss.numpy(), 1 / q, places=3)
    np.testing.assert_allclose(tape.gradient(loss, logits).numpy(), np.zeros((1, 3)), atol=1e-6)
    self.assertTrue(np.isnan(tape.gradient(literal, logits).numpy()).any())

  def test_of_smoothed_tempered_and_flipped_labels_by_hand(self):
    # p = (.5, .3, .2); with a = .8 reports have (.45, .31, .24). q = 1: 1 - p, of which .3 is
    # spread over three classes. T^2 = 4.
    logits = 2 * np.log(np.array([[0.5, 0.3, 0.2]], np.float32))
    form = types.CrossEntropy(0.3, 2.0, 'rescale', keep_probability=0.8)
    loss = losses.generalised_cross_entropy(logits, np.array([1]), q=1.0, form=form).numpy()
    self.assertAlmostEqual(loss, 4 * (0.8 * 0.69 + 0.1 * 0.55 + 0.1 * 0.76), places=5)
    small = losses.generalised_cross_entropy(logits, np.array([1]), q=1e-6, form=form).numpy()
    of_cross_entropy = losses.cross_entropy(logits, np.array([1]), form).numpy()
    self.assertAlmostEqual(small, of_cross_entropy, places=4)


class TransitionTest(parameterized.TestCase):
  """Losses that are corrected by a transition matrix."""

  _T = np.array([[0.8, 0.2, 0], [0.1, 0.7, 0.2], [0, 0.3, 0.7]], np.float32)
  _Z = np.array([[2, 1, 0]], np.float32)

  def _with_gradient(self, loss, logits, *args, **kwargs):
    logits = tf.constant(logits)
    with tf.GradientTape() as tape:
      tape.watch(logits)
      value = loss(logits, *args, **kwargs)
    return value.numpy(), tape.gradient(value, logits).numpy()

  @parameterized.parameters(
      (0, 0.585791, [-0.290796, 0.200765, 0.090031]),
      (1, 1.104528, [0.263728, -0.272251, 0.008522]),
      (2, 2.189550, [0.665241, -0.192415, -0.472826]),
  )
  def test_forward_by_hand(self, label, expected, gradient):
    value, slope = self._with_gradient(
        losses.forward_corrected_cross_entropy, self._Z, np.int32([label]), self._T
    )
    self.assertAlmostEqual(value, expected, places=5)
    np.testing.assert_allclose(slope, [gradient], atol=1e-5)

  @parameterized.parameters(
      (0, 0.225788, [-0.637789, 0.668971, -0.031182]),
      (1, 1.134879, [0.877362, -1.452241, 0.574879]),
      (2, 2.953061, [0.574332, 0.972001, -1.546333]),
  )
  def test_backward_by_hand(self, label, expected, gradient):
    value, slope = self._with_gradient(
        losses.backward_corrected_cross_entropy, self._Z, np.int32([label]), self._T
    )
    self.assertAlmostEqual(value, expected, places=5)
    np.testing.assert_allclose(slope, [gradient], atol=1e-5)

  def test_backward_is_unbiased(self):
    each = [
        losses.backward_corrected_cross_entropy(self._Z, np.int32([y]), self._T).numpy()
        for y in range(3)
    ]
    np.testing.assert_allclose(self._T @ each, -_log_softmax(self._Z)[0], atol=1e-5)

  def test_of_symmetric_noise_forward_is_the_loss_of_flipped_labels(self):
    logits, label = np.arange(10, dtype=np.float32)[np.newaxis] / 3, np.int32([3])
    symmetric = np.full((10, 10), 0.4 / 9, np.float32)
    np.fill_diagonal(symmetric, 0.6)
    value = losses.forward_corrected_cross_entropy(logits, label, symmetric).numpy()
    self.assertAlmostEqual(value, 2.709864, places=5)
    flipped = types.CrossEntropy(keep_probability=0.6)
    self.assertAlmostEqual(losses.cross_entropy(logits, label, flipped).numpy(), value, places=5)
    # And the identity of labels that were flipped like this is the same.
    identity = np.eye(10, dtype=np.float32)
    also = losses.forward_corrected_cross_entropy(logits, label, identity, flipped).numpy()
    self.assertAlmostEqual(also, value, places=5)

  @parameterized.parameters(
      (types.CrossEntropy(),), (types.CrossEntropy(0.1, 2.0, 'rescale'),),
      (types.CrossEntropy(keep_probability=0.8),),
  )
  def test_identity_corrects_nothing(self, form):
    expected = losses.cross_entropy(_LOGITS, _LABELS, form).numpy()
    identity = np.eye(3, dtype=np.float32)
    forward = losses.forward_corrected_cross_entropy(_LOGITS, _LABELS, identity, form).numpy()
    self.assertAlmostEqual(forward, expected, places=5)
    if form.keep_probability == 1:
      backward = losses.backward_corrected_cross_entropy(_LOGITS, _LABELS, identity, form).numpy()
      self.assertAlmostEqual(backward, expected, places=5)
      for attached in (False, True):
        weighted = losses.reweighted_cross_entropy(
            _LOGITS, _LABELS, identity, attached=attached, form=form
        ).numpy()
        self.assertAlmostEqual(weighted, expected, places=5)

  @parameterized.parameters(
      losses.forward_corrected_cross_entropy, losses.backward_corrected_cross_entropy
  )
  def test_matrix_that_excludes_a_label_has_a_finite_loss(self, loss):
    excludes = np.array([[1, 0, 0], [1, 0, 0], [0, 0, 1]], np.float32)
    value, slope = self._with_gradient(loss, self._Z, np.int32([1]), excludes)
    self.assertTrue(np.isfinite(value) and np.isfinite(slope).all())

  def test_true_matrix_prefers_the_wrong_class_of_an_open_set_client(self):
    # FedDPCont, section 3.4: labels 2 and 3 where T says that they come of class 2 with 2/3, and of
    # class 3 with 3/4: forward correction is least at f_3 = 1.
    t = np.eye(4, dtype=np.float32)
    t[2], t[3] = [0, 1 / 3, 2 / 3, 0], [0, 1 / 4, 3 / 4, 0]
    sure = 40 * np.eye(4, dtype=np.float32)
    value = [
        losses.forward_corrected_cross_entropy(sure[[k]], np.int32([2]), t).numpy() for k in (2, 3)
    ]
    np.testing.assert_allclose(value, [0.405465, 0.287682], atol=1e-5)

  @parameterized.parameters(
      (False, [0.491308, -0.557799, 0.066491]), (True, [0.073905, -0.055663, -0.018243])
  )
  def test_reweighting_by_hand(self, attached, gradient):
    logits, labels = np.array([[2, 1, 0], [0, 1, 2]], np.float32), np.int32([1, 2])
    value, slope = self._with_gradient(
        losses.reweighted_cross_entropy, logits, labels, self._T, attached=attached
    )
    self.assertAlmostEqual(value, 0.783243, places=5)
    for i, (beta, plain) in enumerate(((0.738541, 1.407606), (1.292698, 0.407606))):
      of_one, _ = self._with_gradient(
          losses.reweighted_cross_entropy, logits[[i]], labels[[i]], self._T, attached=attached
      )
      self.assertAlmostEqual(of_one / plain, beta, places=5)
    np.testing.assert_allclose(2 * slope[0], gradient, atol=1e-5)

  def test_reweighting_moves_the_labels_column_of_the_matrix(self):
    t = tf.constant(self._T)
    with tf.GradientTape() as tape:
      tape.watch(t)
      value = losses.reweighted_cross_entropy(self._Z, np.int32([1]), t, attached=True)
    slope = tape.gradient(value, t).numpy()
    np.testing.assert_allclose(slope[:, 1], [-2.087014, -0.767769, -0.282447], atol=1e-5)
    np.testing.assert_array_equal(slope[:, [0, 2]], np.zeros((3, 2)))

  def test_reweighting_divides_by_no_zero(self):
    value, slope = self._with_gradient(
        losses.reweighted_cross_entropy, self._Z, np.int32([1]), np.zeros((3, 3), np.float32),
        attached=True,
    )
    self.assertTrue(np.isfinite(value) and np.isfinite(slope).all())

  def test_the_floor_of_the_contrastive_term_is_a_probability_under_every_temperature(self):
    logits = tf.constant([[16.0, 0.0, 0.0]])
    for reading, temperature in (('divide', 10.0), ('rescale', 10.0)):
      form = types.CrossEntropy(temperature=temperature, temperature_reading=reading)
      with tf.GradientTape() as tape:
        tape.watch(logits)
        value = losses.contrastive_cross_entropy(
            logits, tf.constant([0]), tf.constant([1]), weight=1.0, floor=1e-8, form=form
        )
      # CE(y) - CE(y') = z_y' - z_y, over T, times T^2 where gradients are rescaled.
      scale = temperature if reading == 'rescale' else 1 / temperature
      np.testing.assert_allclose(tape.gradient(value, logits), [[-scale, scale, 0]], atol=1e-4)


if __name__ == '__main__':
  absltest.main()
