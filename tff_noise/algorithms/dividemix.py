"""DivideMix: two networks that tell clean labels from wrong ones for each other (Li et al., 2020).

The paper (ICLR 2020) is not about federated learning. Here each client does it with its own
examples, and the server averages both networks, as in federated comparisons. Stage `warm_up` is
cross-entropy. In a round of stage `divide` a client first splits its examples, for each network m
by the losses of the other, o (algorithm 1, co-divide):

  `l_i = CE(o(x_i), y_i)`, scaled to [0, 1], and `w_i` the posterior of the smaller mean of a
  mixture of two Gaussians;  `X_m = {w_i > p_thr}`,  `U_m` the rest, whose labels are dropped.

Then it trains. In each step m has b examples of X_m and b of U_m, both in two augmentations:

  `q_u = sharpen(mean softmax of m and o, both augmentations of u)`                  (co-guessing)
  `r_x = sharpen(w_x y_x + (1 - w_x) mean softmax of m, both augmentations of x)` (co-refinement)
  `sharpen(p)_k = p_k^(1/T) / sum_j p_j^(1/T)`
  `l ~ Beta(alpha, alpha)`, `l <- max(l, 1 - l)`: each of the 4b images and targets is mixed with
  that of a permutation, `l a + (1 - l) b`                                             (MixMatch)
  `L = L_x + lambda_u(t) L_u + L_reg`

with L_x the cross-entropy of the first 2b, L_u the squared distance of the last 2b, a mean over
examples and classes, and `L_reg = sum_k pi_k log(pi_k / pbar_k)` with pbar the mean prediction of
all 4b and `pi_k = 1 / K`. What is evaluated is the sum of both networks' logits. No gradient flows
through targets. Clients send what FedAvg's do, of two models, and use nothing of earlier rounds;
they keep the mean of w_i over both networks for who looks at a simulation.

What the paper leaves open to federated learning, and the two public codes, LiJunnan1992/DivideMix
and the federated port that comparisons go back to (ElvinKim/FedRN):
* The split is made once a round, of the received networks on images that are not augmented. The
  port makes it in each local epoch, in part on augmented images; the central code in each epoch.
  One client with one local epoch a round (`--clients=1 --clients_per_round=1 --local_epochs=1`) is
  the central method, but for an optimizer that starts anew in each round.
* Both networks take their steps at the same time, each beside the other as it is then. In the codes
  one is trained for an epoch while the other rests.
* A step visits B examples that are clean for one network or both, and m learns from those of X_m;
  so each of X_m is seen once an epoch, as there, but b is smaller than B where the networks
  disagree. To each example that a step visits belongs one of U_m, in an order drawn for the epoch,
  which begins again when it is used up; m takes those that belong to its X_m. The last batch of an
  epoch has fewer of both; in the codes fewer of X alone.
* `lambda_u(t) = lambda_u min((t - t_w) / 16, 1)`, t counted in rounds, t_w of them warm-up, and
  within a round by local epochs; in the codes within an epoch by batches. The port begins at
  1 / 16. Paper and code choose lambda_u by the true noise, 0 to 150; 25 is the script's default.
* The warm-up takes a fifth of all rounds, as the port has it; FedCorr's comparison took 20 rounds,
  with 20 local epochs after it (`divide_epochs`). Central code has batches of 2 B there, and for
  asymmetric noise adds `sum_k p_k log p_k` (`warm_up_entropy=1`).
* Momentum is kept through a client's round; the port forgets it in each local epoch. The central
  code's weight decay is 5e-4, the port has none in this stage: here it is that of the flags.
* The mixture runs as in the central code, 10 iterations at most; in the port 100.
* A uniform pi pulls clients without some classes towards these; `prior=labels` is the shares of the
  client's own labels, as they were given.
* The codes guess with m in training mode and o not, which matters with batch norm. So does this:
  m sees its first augmentation of X as part of the batch, the other three together, then the mixed
  images, and moves its statistics by each. The second network guesses after the first has moved its
  own: with batch norm they are not quite alike.
* `evaluate=first` is one network's accuracy: the port reports each network's own.
* For 90 % noise the central code splits by the mean of five epochs' losses: not done.

Guards, where the codes stop with an error or go on with NaN: equal losses (also those of a single
example) are all clean, w = 1. Without any of U_m there is no L_u, and X_m is mixed with itself.
Where a batch has none of X_m, and so in the whole round if X_m is empty, m has no loss; momentum
and weight decay of the flags go on.

Pixels are mixed before they are normalised and rounded to bytes. --label_smoothing and
--temperature change the warm-up alone.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.algorithms import class_prior
from tff_noise.algorithms import parameters
from tff_noise.clients import gaussian_mixture
from tff_noise.clients import mixup
from tff_noise.clients import program
from tff_noise.clients import seeds
from tff_noise.federated import computation
from tff_noise.federated import task as task_lib
from tff_noise.models import keras_model
from tff_noise.models import losses

# Columns, `[n_c, 2]`: w, and whether an example is of X, for each network. A client keeps the mean
# of its w under the same name.
_POSTERIOR, _CLEAN = 'clean_posterior', 'clean'
# What is drawn for each visited example: one of U, for the network of this number.
_UNLABELLED = 'unlabelled_{}'
_NETWORKS = (0, 1)

_WARM_UP_SHARE = 0.2  # Of all rounds, where --stages does not say.

# Into a step's seed with `seeds.OWN + m`: for second views, views of U, and the mixture.
_SECOND, _U_FIRST, _U_SECOND, _SHARE, _ORDER = range(5)


def sharpen(p: tf.Tensor, temperature: float) -> tf.Tensor:
  """Returns float32 `[b, K]`, `p_k^(1/T) / sum_j p_j^(1/T)` of probabilities `[b, K]`, T > 0."""
  return tf.nn.softmax(tf.math.log(p) / temperature)


def _mean_prediction(logits):
  return tf.add_n([tf.nn.softmax(z) for z in logits]) / len(logits)


def co_guess(logits: Sequence[tf.Tensor], temperature: float) -> tf.Tensor:
  """Returns float32 `[b, K]`, q: of logits `[b, K]`, of each network and augmentation."""
  return sharpen(_mean_prediction(logits), temperature)


def co_refine(
    labels: tf.Tensor, posterior: tf.Tensor, logits: Sequence[tf.Tensor], temperature: float
) -> tf.Tensor:
  """Returns float32 `[b, K]`, r.

  Args:
    labels: int32 `[b]`, y.
    posterior: float32 `[b]`, w, in [0, 1].
    logits: float32 `[b, K]`, of each augmentation.
    temperature: T.
  """
  p = _mean_prediction(logits)
  w = posterior[:, tf.newaxis]
  return sharpen(w * tf.one_hot(labels, p.shape[1]) + (1 - w) * p, temperature)


def unlabelled_weight(t, warm_up: int, p: parameters.DivideMixParams) -> tf.Tensor:
  """Returns float32, `lambda_u(t)`, of t rounds of which `warm_up` were the warm-up."""
  if not p.ramp_rounds:
    return tf.constant(p.unlabelled_weight)
  risen = (tf.cast(t, tf.float32) - warm_up) / p.ramp_rounds
  return p.unlabelled_weight * tf.clip_by_value(risen, 0.0, 1.0)


def labelled_loss(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
  """Returns float32, L_x: the mean cross-entropy of logits to targets, float32 `[n, K]` both."""
  return tf.reduce_mean(-tf.reduce_sum(targets * tf.nn.log_softmax(logits), axis=1))


def unlabelled_loss(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
  """Returns float32, L_u: the mean over `[n, K]` of squared differences; 0 for n = 0."""
  squares = tf.math.squared_difference(tf.nn.softmax(logits), targets)
  return tf.math.divide_no_nan(tf.reduce_sum(squares), tf.cast(tf.size(squares), tf.float32))


def prior_penalty(logits: tf.Tensor, prior: tf.Tensor) -> tf.Tensor:
  """Returns float32, L_reg, at least 0, of logits `[n, K]` and pi float32 `[K]`, which may be 0."""
  log_mean = losses.log_mean_prediction(logits)
  return tf.reduce_sum(tf.math.xlogy(prior, prior) - prior * log_mean)


def objective(
    logits: tf.Tensor,
    targets: tf.Tensor,
    num_labelled: tf.Tensor,
    weight: tf.Tensor,
    prior: tf.Tensor,
    penalty_weight: float,
) -> tf.Tensor:
  """Returns float32, L of mixed images.

  Args:
    logits: float32 `[n, K]`.
    targets: float32 `[n, K]`.
    num_labelled: int32, how many of them are in L_x, at least 1; the rest is in L_u.
    weight: lambda_u(t).
    prior: float32 `[K]`, pi.
    penalty_weight: The factor of L_reg.
  """
  m = num_labelled
  return (
      labelled_loss(logits[:m], targets[:m])
      + weight * unlabelled_loss(logits[m:], targets[m:])
      + penalty_weight * prior_penalty(logits, prior)
  )


def cycled(unlabelled: tf.Tensor, count: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Returns int32 `[count]`, the positions of U in random order, again and again; -1 without any.

  Args:
    unlabelled: bool `[n_c]`, U.
    count: int32.
    seed: int32 `[2]`.
  """
  positions = tf.cast(tf.where(unlabelled)[:, 0], tf.int32)
  order = tf.random.experimental.stateless_shuffle(positions, seed)
  turns = tf.range(count) % tf.maximum(tf.size(order), 1)
  return tf.gather(tf.concat([order, [-1]], axis=0), turns)


def _warm_up_client(
    p: parameters.DivideMixParams, training: types.LocalTraining
) -> program.ClientProgram:
  """Cross-entropy of both networks."""

  def loss(s):
    return tf.add_n([
        losses.cross_entropy(z, s.labels, training.loss) - p.warm_up_entropy * losses.entropy(z)
        for z in s.logits
    ])

  return program.ClientProgram(loss)


def client(
    p: parameters.DivideMixParams, training: types.LocalTraining, warm_up: int, num_classes: int
) -> program.ClientProgram:
  """A split for each network, and steps on L of both.

  Args:
    p: The parameters.
    training: Local training.
    warm_up: t_w.
    num_classes: K.
  """

  def co_divide(client):
    of_other = [losses.example_losses(z, client.labels) for z in reversed(client.predict())]
    w = tf.stack([gaussian_mixture.clean_posterior(each) for each in of_other], axis=1)
    # A loss that is no number is kept: then the update is none either, and left out.
    clean = (w > p.threshold) | ~tf.math.is_finite(tf.stack(of_other, axis=1))
    return program.Columns({_POSTERIOR: w, _CLEAN: clean}, visit=tf.reduce_any(clean, axis=1))

  def draw(epoch):
    return {
        _UNLABELLED.format(m): cycled(
            tf.logical_not(epoch.columns[_CLEAN][:, m]), epoch.num_examples,
            seeds.fold(epoch.seed, m),
        )
        for m in _NETWORKS
    }

  def loss(s):
    return tf.add_n([
        tf.cond(
            tf.reduce_any(s.columns[_CLEAN][:, m]), lambda m=m: loss_of(m, s),
            lambda: tf.constant(0.0),
        )
        for m in _NETWORKS
    ])

  def loss_of(m, s):
    network, other = s.networks[m], s.networks[1 - m]
    seed = seeds.fold(s.seed, seeds.OWN + m)
    clean = s.columns[_CLEAN][:, m]
    x, labels, w, first, z_first, u = (
        tf.boolean_mask(v, clean) for v in (
            s.positions, s.labels, s.columns[_POSTERIOR][:, m], s.images, s.logits[m],
            s.columns[_UNLABELLED.format(m)],
        )
    )
    u = tf.boolean_mask(u, u >= 0)
    b_x, b_u = tf.size(x), tf.size(u)
    second = s.load(x, seeds.fold(seed, _SECOND))
    of_u = tf.concat([s.load(u, seeds.fold(seed, view)) for view in (_U_FIRST, _U_SECOND)], 0)

    # Targets: all that m and o say of images that are not mixed.
    z, _ = network(tf.concat([second, of_u], axis=0), True)
    z_second, *z_u = tf.split(z, [b_x, b_u, b_u])
    z_other = tf.cond(
        b_u > 0, lambda: other(of_u, False)[0], lambda: tf.zeros([0, num_classes])
    )
    z_u += tf.split(z_other, [b_u, b_u])
    q = co_guess(z_u, p.sharpening)
    r = co_refine(labels, w, [z_first, z_second], p.sharpening)
    targets = tf.stop_gradient(tf.concat([r, r, q, q], axis=0))

    images = tf.concat([first, second, of_u], axis=0)
    share, order = mixture(p.alpha, 2 * (b_x + b_u), seed)
    logits, _ = network(mixup.mixed(images, order, share), True)
    t = tf.cast(s.client.round_num - 1, tf.float64) + s.epoch / training.epochs
    return objective(
        logits, mixup.mixed(targets, order, share), 2 * b_x,
        unlabelled_weight(t, warm_up, p), s.carry, p.penalty_weight,
    )

  def keep(result):
    return program.Sent(own={_POSTERIOR: tf.reduce_mean(result.columns[_POSTERIOR], axis=1)})

  return program.ClientProgram(
      loss=loss,
      columns=co_divide,
      init=lambda client: class_prior.of(p.prior, client.labels, num_classes),  # pi
      draw=draw,
      final=keep,
      own={_POSTERIOR: program.PerExample(np.float32(np.nan))},
  )


def mixture(alpha: float, count: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns l, float32, at least 1/2, and with which image each is mixed, int32 `[count]`."""
  order = tf.random.experimental.stateless_shuffle(tf.range(count), seeds.fold(seed, _ORDER))
  if not alpha:
    return tf.constant(1.0), order
  share = mixup.draw_share(seeds.fold(seed, _SHARE), alpha)
  return tf.maximum(share, 1 - share), order


def build(task: task_lib.Task, p: parameters.DivideMixParams) -> algorithm.Algorithm:
  """Samples and trains in every round: cross-entropy first, then DivideMix.

  Raises:
    types.UsageError: If there is no round, if labels are reports and would be replaced, or if the
      loss is not plain cross-entropy and nothing trains on it.
  """
  stages = stage_lengths(task)
  if stages['divide']:
    algorithm.require_labels_kept(task, 'dividemix', f'--stages=warm_up:{task.rounds},divide:0')
  if not stages['warm_up'] and task.training.loss != types.CrossEntropy():
    raise types.UsageError(
        '--label_smoothing and --temperature change the warm-up alone, and there is none: set '
        'its length, such as --stages=warm_up:1, or leave them out'
    )
  task = task.with_model(keras_model.several(task.model, 2, p.evaluate))
  longer = task.with_training(
      task.training._replace(epochs=p.divide_epochs or task.training.epochs)
  )
  warm_up = computation.train('a round of warm_up', task, _warm_up_client(p, task.training))
  divide = computation.train(
      'a round of divide', longer,
      client(p, longer.training, stages['warm_up'], task.num_classes),
  )

  def round_(state, clients):
    train = warm_up if state.round_num < stages['warm_up'] else divide
    return clients.train(train, state, clients.sample(train, state)).state

  return algorithm.Algorithm(
      round_, algorithm.computations_of(warm_up, divide), stages,
      times={warm_up.name: stages['warm_up'], divide.name: stages['divide']},
      report=algorithm.Report(
          columns=lambda s: {
              # At the start of the round.
              'unlabelled_weight': float(unlabelled_weight(s.round_num - 1, stages['warm_up'], p))
              if s.round_num > stages['warm_up'] else 0.0
          },
          posterior=_POSTERIOR,
      ),
  )


def stage_lengths(task: task_lib.Task) -> dict[str, int]:
  """Returns rounds by stage; see `algorithm.require_rounds` for errors."""
  return algorithm.two_stages(task, 'warm_up', round(_WARM_UP_SHARE * task.rounds), 'divide')
