"""FedDiv: one filter of noisy labels that all clients make together (Li et al., AAAI 2024).

The filter W is a mixture of two Gaussians (mu, sigma, pi; sigma are variances) over the clients'
losses. After `warm_up`, in each round of `train` client k, with the model theta and W as received,

  `clean_i = [posterior of W's lower component at l_i > 1/2]`                        (eq. 6, 7)
  `delta = ` the share of the others; at most 0.1 of a clean client, which trains on all it has
  `y^_i = argmax p(x_i; theta)` takes the label's place where not clean and `max p > zeta`  (eq. 8)
  `y~_i = argmax(f(x_i; theta_k) - xi log p^_k)`; of both sets are kept those with y^_i = y~_i
                                                                                     (eq. 9, 10)
  `L = CE of mixup batches + eta KL(uniform, mean prediction of the batch)`          (eq. 13 ... 15)
  `p^_k <- m p^_k + (1 - m) mean p(x_i; theta_k)`, uniform at first                     (eq. 12)
  `W_k` = W after EM on the losses under its trained model theta_k               (algorithm 2)

and the server takes `W <- sum_k n_k W_k / sum_k n_k` over the last W_k of every client (eq. 5). For
that the paper's server keeps each client's W_k, what its labels' noise looks like. Here the client
keeps it, and sends by how much its n_k W_k changed, six numbers, and n_k when it takes part first:
added up over the rounds, sums over clients are those of eq. 5, and the server needs nothing else.
(Secure sums round to fixed point each time: that adds up, too, to far less than W's own changes.)

The authors' repository (lijichang/FLNL-FedDiv) has the code in one commit, 918624c, and deleted it
in the next. What it does is the default where it is a rule, and what the paper prints where it is a
constant: the code's flags for xi and m have the defaults 0.2 and 0.5, the printed ones in each
other's place, and the type int, so that these cannot be given; zeta's is 0 there.

- Losses are cross-entropies of the softmax of the softmax, as in FedCorr's code
  (`sample_loss=single` is the formula), and go linearly to [0, 1] client by client.
- Variances are averaged by the squares of the clients' weights, as that of a mean: those of both
  components are smaller by about the number of clients, so that W calls nearly the same examples
  clean, with fewer doubts. `variances=paper` is eq. 5.
- EM takes 3 steps from W (`filter_steps`); the paper, until it ends.
- y~ is that of the client's model at the end of its last round, and is asked from its sixth round
  on (`sampler_from=5`); before that no example is relabelled. In the paper there is no such wait,
  and y~ is of the model in training, anew in each local epoch: `sampler_from=0` lifts the wait
  alone.
- Relabelled examples are used where delta > 0.2 (`relabel_above`), in the paper where > 0.1.
- p^ moves by the examples of which the debiased prediction is certain to .85, in the paper by all
  (`bias_confidence=0`).
- Trained is on given labels again in each round: relabelling lasts for one.

Where this differs from that code:
- The first W there is that of 1,000 points whose components are drawn by lot: both have the same
  mean, which of them is called clean is chance, and many rounds pass until they part. Here it is
  two halves of [0, 1]: means 1/4 and 3/4, variances 1/48, weights 1/2. (The paper does not say.)
- Equal losses are 0 / 0 in the code. Here they are all 0, and such a client changes no filter.
- W_k's components are ordered by their means, as in the paper; the code leaves them in W's order.
- A client of which no example is left sends the model as it came, as in the code; that does so too
  where what is left does not fill a batch, however small the client.
- Predictions are those of images as they are, the code's those of augmented ones.
- Statistics of batch norm move by mixed batches. The code lets the network see each batch unmixed
  first, in training, which moves them too.
- The penalty is multiplied by eta once; in the code twice. eta is 1 where clients have different
  classes and 0 elsewhere, in the paper; nobody knows that here, so it is `prior_weight`.
- The warm-up has the same loss on all examples. It is 5 rounds over all clients in the paper, which
  are `5 C / k` rounds of k clients here (its supplement counts so); there one client each.

Of labels that were flipped (--training_labels=private) the loss is right only while none is
replaced: `confidence=1` relabels none. Smoothing and temperature change the cross-entropy alone.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.algorithms import parameters
from tff_noise.clients import gaussian_mixture
from tff_noise.clients import mixup
from tff_noise.clients import program
from tff_noise.federated import computation
from tff_noise.federated import task as task_lib
from tff_noise.models import losses
from tff_noise.uplink import uplink

WARM_UP, TRAIN = 'warm_up', 'train'

# What clients receive: W, float32 [3, 2].
FILTER = 'filter'
# What they send: by how much their parts of W's sums changed.
MEANS, VARIANCES, WEIGHTS, SHARE = (
    'filter_means', 'filter_variances', 'filter_weights', 'filter_share'
)
# What they keep: what they added to these sums in all; p^; y~; in how many rounds they trained.
ADDED, BIAS, DEBIASED, VISITS = 'filter_added', 'class_bias', 'debiased_labels', 'visits'
# And what W said of its labels, for who looks at a simulation.
_POSTERIOR = 'clean_posterior'

# Means, variances and weights, of two halves of [0, 1].
FIRST_FILTER = np.array([[1 / 4, 3 / 4], [1 / 48, 1 / 48], [1 / 2, 1 / 2]], np.float32)

# Below which a variance is none; `gaussian_mixture` adds as much.
_SMALLEST_VARIANCE = 1e-6
# A class that is never predicted stays at a finite distance.
_SMALLEST_BIAS = 1e-12


def filter_losses(logits: tf.Tensor, labels: tf.Tensor, kind: str) -> tf.Tensor:
  """Returns float32 `[n]`, the losses that W is about, from 0 to 1.

  Args:
    logits: float32 `[n, K]`.
    labels: int32 `[n]`.
    kind: 'double_softmax', or a 'single' one.
  """
  if kind == 'double_softmax':
    logits = tf.nn.softmax(logits)
  each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  return gaussian_mixture.min_max(each)


def mixture_of(w: tf.Tensor) -> gaussian_mixture.Mixture:
  """Returns W, float32 `[3, 2]`, as a mixture."""
  return gaussian_mixture.given(*tf.unstack(tf.cast(w, tf.float64)))


def local_filter(x: tf.Tensor, w: tf.Tensor, steps: int) -> tf.Tensor:
  """Returns float32 `[3, 2]`, W_k: W after `steps` steps of EM on x, float32 `[n]`."""
  settings = gaussian_mixture.Settings(tolerance=0.0, max_iterations=steps)
  fitted = gaussian_mixture.fit(x, settings, mixture_of(w))
  return tf.cast(tf.stack([fitted.means, fitted.variances, fitted.weights]), tf.float32)


def debiased(logits: tf.Tensor, bias: tf.Tensor, strength: float) -> tf.Tensor:
  """Returns float32 `[n, K]`, F: `f(x) - xi log p^`, of logits and p^, float32 `[K]`."""
  return logits - strength * tf.math.log(tf.maximum(bias, _SMALLEST_BIAS))


def next_bias(
    logits: tf.Tensor, bias: tf.Tensor, p: parameters.FedDivParams
) -> tf.Tensor:
  """Returns float32 `[K]`, p^ after a round, of logits `[n, K]` of the trained model."""
  certainty = tf.reduce_max(tf.nn.softmax(debiased(logits, bias, p.debias)), axis=1)
  certain = tf.boolean_mask(tf.nn.softmax(logits), certainty > p.bias_confidence)
  moved = p.momentum * bias + (1 - p.momentum) * tf.reduce_mean(certain, axis=0)
  return tf.where(tf.shape(certain)[0] > 0, moved, bias)


class Selection(NamedTuple):
  """What a client trains on.

  Attributes:
    labels: int32 `[n]`.
    chosen: bool `[n]`.
    noise: float32 `[]`, delta.
    posterior: float32 `[n]`, how likely W finds each given label clean.
  """

  labels: tf.Tensor
  chosen: tf.Tensor
  noise: tf.Tensor
  posterior: tf.Tensor


def select(
    logits: tf.Tensor,
    labels: tf.Tensor,
    w: tf.Tensor,
    debiased_labels: tf.Tensor,
    visits: tf.Tensor,
    p: parameters.FedDivParams,
) -> Selection:
  """Returns what is trained on: filtering, relabelling, and what both models agree on.

  Args:
    logits: float32 `[n, K]`, of the received model.
    labels: int32 `[n]`, as given.
    w: float32 `[3, 2]`, W.
    debiased_labels: int32 `[n]`, y~; of no meaning where `visits` is 0, when all agree.
    visits: int32, in how many rounds the client has trained before.
    p: The parameters.
  """
  x = filter_losses(logits, labels, p.sample_loss)
  posterior = gaussian_mixture.smaller_posterior(x, mixture_of(w))
  clean = posterior > 0.5
  noise = 1 - tf.reduce_mean(tf.cast(clean, tf.float32))
  predicted = tf.argmax(logits, axis=1, output_type=tf.int32)  # y^
  confident = tf.reduce_max(tf.nn.softmax(logits), axis=1) > p.confidence
  agree = tf.equal(predicted, debiased_labels) | tf.equal(visits, 0)
  samples = visits >= p.sampler_from
  relabelled = ~clean & confident & agree & samples & (noise > p.relabel_above)
  kept = clean & (agree | ~samples)
  is_noisy = noise > p.clean_below
  return Selection(
      tf.where(is_noisy & relabelled, predicted, labels),
      kept | relabelled | ~is_noisy,
      noise,
      posterior,
  )


def prior_penalty(logits: tf.Tensor) -> tf.Tensor:
  """Returns float32 `[]`, `KL(uniform, q)` of the mean prediction q of logits `[b, K]`."""
  return -math.log(logits.shape[1]) - tf.reduce_mean(losses.log_mean_prediction(logits))


def _loss(p, training):
  """Equation 15."""

  def loss(s):
    value = mixup.loss(lambda labels: losses.cross_entropy(s.logits, labels, training.loss), s)
    if p.prior_weight:
      value += p.prior_weight * prior_penalty(s.logits)
    return value

  return loss


def _warm_up_client(
    p: parameters.FedDivParams, training: types.LocalTraining
) -> program.ClientProgram:
  """Local SGD on all examples."""
  return program.ClientProgram(loss=_loss(p, training), transform=mixup.transform(p.mixup_alpha))


def client(
    p: parameters.FedDivParams, training: types.LocalTraining, num_classes: int, most_examples: int
) -> program.ClientProgram:
  """Filters, trains, and fits W_k.

  Args:
    p: The parameters.
    training: Local training.
    num_classes: K.
    most_examples: Of any client; n_k is sent as a share of it.
  """
  mixed_loss = _loss(p, training)

  def columns(client):
    own = client.own
    found = select(
        client.predict(), client.labels, client.received[FILTER], own[DEBIASED], own[VISITS], p
    )
    return program.Columns(
        {'chosen': found.chosen, _POSTERIOR: found.posterior}, found.labels, found.chosen
    )

  def loss(s):
    # Where nothing was chosen epochs visit everything: then nothing is learned.
    learns = tf.reduce_any(s.columns['chosen'])
    return tf.where(learns, mixed_loss(s), 0.0), learns

  def final(result):
    client, own = result.client, result.client.own
    update, weights = tf.cond(
        result.carry, lambda: (result.update, result.weights),
        lambda: (
            tf.nest.map_structure(tf.zeros_like, result.update),
            tf.nest.map_structure(tf.add, result.weights, result.update),
        ),
    )
    logits = client.predict(weights=weights)
    x = filter_losses(logits, client.labels, p.sample_loss)
    share = tf.cast(client.num_examples, tf.float32) / most_examples
    by_row = [share, share**2 if p.variances == 'code' else share, share]
    w_k = local_filter(x, client.received[FILTER], p.filter_steps)
    added = tf.concat([tf.reshape(w_k * tf.stack(by_row)[:, tf.newaxis], [6]), [share]], axis=0)
    added = tf.where(tf.reduce_any(x > 0), added, own[ADDED])  # Of equal losses there is no W_k.
    mu, sigma, pi, n = tf.split(added - own[ADDED], [2, 2, 2, 1])
    certain = debiased(logits, own[BIAS], p.debias)
    return program.Sent(
        update=update,
        own={
            ADDED: added,
            BIAS: next_bias(logits, own[BIAS], p),
            DEBIASED: tf.argmax(certain, axis=1, output_type=tf.int32),
            VISITS: own[VISITS] + 1,
            _POSTERIOR: result.columns[_POSTERIOR],
        },
        sums={MEANS: mu, VARIANCES: sigma, WEIGHTS: pi, SHARE: n[0]},
    )

  def change_of(name, what):
    return uplink.UplinkSum(
        name, np.float32, -1.0, 1.0,
        f'by how much {what} of its losses\' two components changed, times its examples: the mean '
        'over all clients is the filter', shape=(2,),
    )

  return program.ClientProgram(
      loss=loss,
      columns=columns,
      transform=mixup.transform(p.mixup_alpha),
      init=lambda client: tf.constant(False),
      step=lambda s: (s.gradients, s.carry | s.found),
      final=final,
      own={
          ADDED: np.zeros(7, np.float32),
          BIAS: np.full(num_classes, 1 / num_classes, np.float32),
          DEBIASED: program.PerExample(np.int32(0)),
          VISITS: np.int32(0),
          _POSTERIOR: program.PerExample(np.float32(np.nan)),
      },
      receives={FILTER: FIRST_FILTER},
      sums=(
          change_of(MEANS, 'the means'),
          change_of(VARIANCES, 'the variances'),
          change_of(WEIGHTS, 'the weights'),
          uplink.UplinkSum(
              SHARE, np.float32, 0.0, 1.0,
              'its examples, when it takes part first: what the sums of these are divided by',
          ),
      ),
  )


def next_filter(totals: np.ndarray, variances: str) -> np.ndarray:
  """Returns float32 `[3, 2]`, W: equation 5 of what all clients added, `FIRST_FILTER` of nothing.

  Args:
    totals: float64 `[7]`: `sum_k n_k mu_k`, `sum_k n_k sigma_k` (of n_k^2 with 'code'),
      `sum_k n_k pi_k`, two each, and `sum_k n_k`.
    variances: 'code' or 'paper'.
  """
  n = totals[6]
  if n <= 0:
    return FIRST_FILTER
  mu, sigma, pi = totals[:6].reshape(3, 2) / n
  if variances == 'code':
    sigma = sigma / n
  # Secure sums round.
  sigma, pi = np.maximum(sigma, _SMALLEST_VARIANCE), np.clip(pi, 0, 1)
  return np.stack([mu, sigma, pi / pi.sum()]).astype(np.float32)


def stage_lengths(task: task_lib.Task, p: parameters.FedDivParams) -> Mapping[str, int]:
  """Returns the rounds of each stage; see `algorithm.require_rounds` for errors."""
  cost = math.ceil(p.warm_up_iterations * task.num_clients / task.clients_per_round)
  return algorithm.two_stages(task, WARM_UP, cost, TRAIN, main=TRAIN)


def build(task: task_lib.Task, p: parameters.FedDivParams) -> algorithm.Algorithm:
  """Samples and trains in every round; from those of `train` the server makes the filter.

  Raises:
    types.UsageError: If no round is left, or labels are reports and would be replaced.
  """
  if p.confidence < 1:
    algorithm.require_labels_kept(task, 'feddiv', '--param=confidence=1')
  stages = stage_lengths(task, p)
  warm_up = computation.train('a round of warm_up', task, _warm_up_client(p, task.training))
  program_ = client(p, task.training, task.num_classes, max(1, int(task.client_sizes.max())))
  train = computation.train('a round of train', task, program_)

  def round_(state, clients):
    if state.round_num < stages[WARM_UP]:
      return clients.train(warm_up, state, clients.sample(warm_up, state)).state
    output = clients.train(train, state, clients.sample(train, state))
    changes = [output.sums[name] for name in (MEANS, VARIANCES, WEIGHTS, SHARE)]
    totals = state.records['filter_totals'] + np.hstack(changes)
    state = output.state.record(filter_totals=totals)
    return state.send(**{FILTER: next_filter(totals, p.variances)})

  def report_columns(state):
    mu, _, pi = state.received[FILTER]
    return {
        'filter_clean_mean': float(mu[0]), 'filter_noisy_mean': float(mu[1]),
        'filter_clean_weight': float(pi[0]),
    }

  return algorithm.Algorithm(
      round_, algorithm.computations_of(warm_up, train), stages,
      records={'filter_totals': np.zeros(7)},
      times={warm_up.name: stages[WARM_UP], train.name: stages[TRAIN]},
      report=algorithm.Report(columns=report_columns, posterior=_POSTERIOR),
  )
