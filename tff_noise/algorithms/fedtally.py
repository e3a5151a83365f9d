"""FedTally: a filter of noisy labels that needs nothing but sums over clients.

A method of this package's own; no paper. The server's model is the likelihood of each class, every
client is a channel through which labels went, and all that the server learns of channels are sums
of bounded numbers. In round t clients receive, besides the model w, the probabilities a of noise
rates eta_1 ... eta_G, the table R (K x K; row j: which class it is if the label j is wrong), and
the sharpness gamma. A client with examples (x_i, y_i), which keeps nothing between rounds unless
`elr_weight` is given:

  `r_i = softmax(gamma f(x_i; w))`                                       one more forward pass
  `L_i(eta) = (1 - eta) r_i(y_i) + eta sum_k R[y_i, k] r_i(k)`
  `post_g ~ a_g prod_i L_i(eta_g)`,  `eta = sum_g post_g eta_g`          empirical Bayes
  `c_i = (1 - eta) r_i(y_i) / L_i(eta)`                                  is the label right
  `v_i(k) = R[y_i, k] r_i(k) / sum_l R[y_i, l] r_i(l)`                   which one if it is not
  `q_i = c_i onehot(y_i) + (1 - c_i) v_i`
  local SGD on `CE(q, softmax(f(x) + log K pi))`, `pi(k) = (sum_i q_i(k) + 1) / (n + K)`

and its update counts as `n max(1 - eta, .02)` examples, once labels are filtered (not so on the
bases median and arfl, which weigh clients themselves). Summed over clients, and nothing else, are
post (G numbers), `W[j, k] = sum of (1 - c_i) v_i(k) where y_i = j` (K x K), and a histogram H of
how certain `softmax(f(x_i; w))` is, beside how often its first class is the label (2 x 100). The
server adds them up, each round counting 0.9 times the one after it: R are W's rows, shrunk by 5
examples to no preference. In the first rounds (`warm_up_share`), until the model knows something,
`q_i = onehot(y_i)`. With --temperature f is f / T in r and H, as in the loss.

It is one step a round of EM for the model of Dawid and Skene (1979; with a learner in place of
votes: Raykar et al., JMLR 2010) in which clients are annotators, with one rate each and a shared
table of confusions (a hierarchy of annotators: Paun et al., TACL 2018). Clients as Dawid and
Skene's annotators are not new in federated learning: FedDS (Dong et al., Information Sciences 745,
2026) weighs clients at the server by reliabilities estimated so. Nor are noise rates estimated by
client, as in FedLN (Tsouvalas et al., 2024) and FNRE (Rong et al., 2026), or filters that clients
make together, as FedDiv's average of mixtures of losses (Li et al., AAAI 2024) and CLC's consensus
by class (Zeng et al., TIST 2022), or correction for confused classes in federated learning, as in
FedEFC (Yu, Ahn & Kang, 2025) and FedBeat (Wang et al., 2024), whose clients train a network of
confusions together, or a model that judges for another, as FedFixer's (Ji et al., AAAI 2024). Of
FedDS, FedLN, FNRE, CLC, FedEFC, FedBeat and FedFixer the abstracts alone were read. Logit
adjustment is Menon et al.'s (ICLR 2021), by client as in FedLC (Zhang et al., ICML 2022); the
anchor below is Patrini et al.'s (CVPR 2017) assumption about the surest examples. The prior over
rates, where it is learned, is the nonparametric one of Kiefer and Wolfowitz (1956). Eight queries
of a search engine found no other method that infers clients' noise rates and lets nothing of them
leave a client but into sums; "of this package's own" says no more than that.

Off until a measurement earns them their place (benchmarks/NOTES.md has the first):
- `learned_prior`: a follows the sum of post, 2 % of it uniform.
- `noise_by_class`: each class's own rate e_j and the client's own R, by three steps of EM that
  start from eta and R (10 examples of shrinkage each).
- `average`: r_i are of the mean theta of the models so far, `theta <- b theta + (1 - b) w` with
  `b = min(average, t / (t + 4))`, which clients receive too, and which is evaluated.
- `mixup_alpha`: of inputs and of q.
- `elr_weight` above 0: a noise that all clients share is learned by heart sooner or later, and then
  the model agrees with it. ELR's regulariser (Liu et al., NeurIPS 2020; `elr.py`) slows that down:
  `+ lambda mean_i log(1 - <p_i, t_i>)`, `t_i <- beta t_i + (1 - beta) p_i`, with lambda =
  elr_weight, beta = elr_beta, and p of the adjusted logits, whatever the temperature. t_i is kept
  by its client between rounds, and nobody else sees it. (Targets of the mean model, which no client
  would have to keep, were tried: they feed on themselves.)
- `loss_q` above 0: two heads. A bounded loss learns wrong labels more slowly, but r_i has to be of
  a proper one, or it is surer than it is right. So the network is trained by the generalised
  cross-entropy of Zhang & Sabuncu (NeurIPS 2018), `sum_k q_i(k) (1 - p_k^s) / s` with s = loss_q
  and p of the adjusted logits, while `CE(q, softmax(u + log K pi))` trains u, a dense layer on
  the network's features without a gradient to them; r_i and H are of u. The network is what is
  evaluated; while labels are not filtered and s stays it is GCE's with adjusted logits. The
  training loss that is told is the sum of both.
- `least_q` below `loss_q`: noise that rates do not explain is the loss's to bear. After each round
  `s <- clip(1.5 (anchor - mean eta), least_q, loss_q)`, sent to clients, with the anchor below.
  Where all have the same noise rates stay near 0 and the anchor, until labels are learned by heart,
  does not, so s is large; where noise differs the filter takes its share, and without noise the
  anchor falls. Rates are means over clients, not examples. (NARL-Adjuster, Ding et al., 2023, whose
  abstract alone was read, meta-learns a q for each example.)
- `held_out`: this share of each client's examples, drawn once, is never trained on, and H counts
  nothing else: a model agrees with labels that it has learned by heart, whatever they are worth.
- `max_sharpness` above 1, with `held_out`: noise that is the same at all clients is explained by a
  model that has learned it, with eta = 0. The anchor is the share of labels that the surest
  `top_share` of H's predictions deny; from the second fifth of the rounds on
  `gamma <- clip(gamma exp(.3 (anchor - mean eta)), 1, max_sharpness)`. A guard leaves gamma as it
  is where the sums do not show that the model is better than the labels: they agree in a share
  `A = T (1 - anchor) + (1 - T) anchor / (K - 1)` of examples if it is right in T of them and errs
  without regard to the label, and `T >= 1 - anchor` has to hold. A model that errs in its surest
  predictions too makes labels look worse than they are: then agreement falls from the surest to
  the others, so `T >= 0.8` has to hold as well; or it is low everywhere, so `anchor <= 0.75`.

What it cannot see: more than half of a class labelled as one other class, which looks as if the
names were swapped; noise that all clients share in all images of a kind; a client that lies in its
sums, which are bounded but not checked.

With --training_labels=private all of this is computed from reports, and the known flips are part of
every rate: `1 - (1 - eta_g) a - eta_g b`, with a the probability of keeping a label and b that of
each other, by which a wrong one may become right again. pi is that of the reports until they are
filtered: close to uniform, so that little is adjusted. With client DP nothing but updates may
leave a client: then nothing is tallied, R and a stay as they are at first, and weights are equal;
what is protected is what FedAvg's noise protects, at ELR's cost where clients keep targets.
`average` is refused there; --average_models evaluates such a mean, and the last model judges.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_noise import rng
from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.algorithms import averaged_model
from tff_noise.algorithms import elr
from tff_noise.algorithms import parameters
from tff_noise.clients import label_loss
from tff_noise.clients import loops
from tff_noise.clients import mixup
from tff_noise.clients import program
from tff_noise.clients import seeds
from tff_noise.federated import computation
from tff_noise.federated import task as task_lib
from tff_noise.models import keras_model
from tff_noise.models import losses
from tff_noise.uplink import uplink

# eta_g: fine where clean clients have to be told from those with one label in twenty wrong.
RATES = np.array([0, 0.02, *np.arange(1, 20) / 20], np.float32)
# Of 1 - max p, twenty to a power of ten: with noisy labels a calibrated model is seldom very sure.
BINS, _BINS_A_DECADE = 100, 20

# What clients receive.
PRIOR, TABLE, SHARPNESS, AVERAGED, LOSS_Q = (
    'noise_rate_prior', 'correction_table', 'sharpness', 'averaged_model', 'loss_q'
)
# What they send.
POSTERIORS, CORRECTIONS, SURE, AGREED = (
    'noise_rates', 'corrections', 'certainty', 'certain_and_agreed'
)

_MEMORY = 0.9
_PRIOR_SCALE, _PRIOR_CLIENTS, _UNIFORM_SHARE = 0.1, 20.0, 0.02
_TABLE_SHRINKAGE = 5.0
_SMALLEST_WEIGHT = 0.02
_EM_STEPS, _EM_SHRINKAGE = 3, 10.0
_SHARPNESS_STEP, _SHARPNESS_FROM = 0.3, 0.2
_LEAST_RIGHT, _MOST_NOISE = 0.8, 0.75
_Q_OF_UNEXPLAINED = 1.5
_TINY = 1e-12


def first_prior() -> np.ndarray:
  """Returns float32 `[G]`, a at first: `exp(-eta / 0.1)`, few noisy clients until shown."""
  weights = np.exp(-RATES / _PRIOR_SCALE)
  return weights / weights.sum()


def first_table(num_classes: int) -> np.ndarray:
  """Returns float32 `[K, K]`, R without preference: `1 / (K - 1)` beside a diagonal of 0."""
  return ((1 - np.eye(num_classes)) / (num_classes - 1)).astype(np.float32)


def log_likelihoods(
    r: tf.Tensor, labels: tf.Tensor, table: tf.Tensor, rates: tf.Tensor
) -> tf.Tensor:
  """Returns float32 `[n, G]`, log L_i(eta_g).

  Args:
    r: float32 `[n, K]`, probabilities of the classes.
    labels: int32 `[n]`.
    table: float32 `[K, K]`, R.
    rates: float32 `[G]`.
  """
  of_label, of_others = _two_ways(r, labels, tf.gather(table, labels))
  # L_i(eta) = (1 - eta) r_i(y_i) + eta sum_k R[y_i, k] r_i(k).
  mixed = (1 - rates) * of_label[:, tf.newaxis] + rates * of_others[:, tf.newaxis]
  return tf.math.log(mixed + 1e-8)


def rates_of_reports(rates: Any, keep_probability: float, num_classes: int) -> Any:
  """Returns how often reports are wrong whose labels are with these rates, of any shape.

  Args:
    rates: From 0 to 1.
    keep_probability: a, of a label; each other is reported with `b = (1 - a) / (K - 1)`.
    num_classes: K.
  """
  other = (1 - keep_probability) / (num_classes - 1)
  return 1 - (1 - rates) * keep_probability - rates * other


def _two_ways(r, labels, rows):
  """float32 `[n]` both: how likely each label is where it is right, and where it is wrong."""
  of_label = tf.gather(r, labels, axis=1, batch_dims=1)
  return of_label, tf.reduce_sum(rows * r, axis=1)


def posterior(log_likelihoods_: tf.Tensor, prior: tf.Tensor) -> tf.Tensor:
  """Returns float32 `[G]`, post of log L_i, `[n, G]`, and a; a itself for no examples."""
  # post_g ~ a_g prod_i L_i(eta_g).
  return tf.nn.softmax(tf.reduce_sum(log_likelihoods_, axis=0) + tf.math.log(prior + 1e-6))


class Filtered(NamedTuple):
  """What a client thinks of its labels.

  Attributes:
    clean: float32 `[n]`, c_i.
    wrong: float32 `[n, K]`, `(1 - c_i) v_i`.
  """

  clean: tf.Tensor
  wrong: tf.Tensor


def filtered(r: tf.Tensor, labels: tf.Tensor, table: tf.Tensor, rates: tf.Tensor) -> Filtered:
  """Returns c and (1 - c) v.

  Args:
    r: float32 `[n, K]`.
    labels: int32 `[n]`.
    table: float32 `[K, K]`.
    rates: float32 `[K]`, how often each label is wrong.
  """
  rows = tf.gather(table, labels)
  of_label, of_others = _two_ways(r, labels, rows)
  e = tf.gather(rates, labels)
  right = (1 - e) * of_label
  # c_i = (1 - e) r_i(y_i) / L_i(e).
  clean = right / (right + e * of_others + _TINY)
  # v_i(k) = R[y_i, k] r_i(k) / sum_l R[y_i, l] r_i(l).
  v = rows * r / (of_others + _TINY)[:, tf.newaxis]
  return Filtered(clean, (1 - clean)[:, tf.newaxis] * v)


def filtered_by_class(
    r: tf.Tensor, labels: tf.Tensor, table: tf.Tensor, rate: tf.Tensor
) -> Filtered:
  """Returns `filtered` after three steps of EM on each label's rate and the client's own table.

    `e_j = (sum of (1 - c_i) where y_i = j + 10 eta) / (n_j + 10)`
    `rho(k) = (sum_i (1 - c_i) v_i(k) + 10 m(k)) / (sum_i (1 - c_i) + 10)`, m the mean of R's rows
    `R_c[j, k] ~ R[j, k] rho(k) / m(k)`

  Args:
    r: float32 `[n, K]`.
    labels: int32 `[n]`.
    table: float32 `[K, K]`, R.
    rate: float32 `[]`, eta, from which the classes' rates start.
  """
  num_classes = table.shape[0]
  n = tf.reduce_sum(tf.one_hot(labels, num_classes), axis=0)
  mean_row = tf.reduce_mean(table, axis=0)

  def step(_, progress):
    _, own_table = progress
    found = filtered(r, labels, own_table, progress[0])
    wrong = tf.math.unsorted_segment_sum(1 - found.clean, labels, num_classes)
    rates = (wrong + _EM_SHRINKAGE * rate) / (n + _EM_SHRINKAGE)
    of_class = tf.reduce_sum(found.wrong, axis=0) + _EM_SHRINKAGE * mean_row
    rho = of_class / (tf.reduce_sum(wrong) + _EM_SHRINKAGE)
    moved = table * (rho / mean_row)
    return rates, moved / tf.reduce_sum(moved, axis=1, keepdims=True)

  rates, own_table = loops.repeat(_EM_STEPS, step, (tf.fill([num_classes], rate), table))
  return filtered(r, labels, own_table, rates)


def certainty_bins(probabilities: tf.Tensor) -> tf.Tensor:
  """Returns int32 `[n]`, the bin of H: `floor(-20 log10(1 - max p))`, at most 99, of `[n, K]`."""
  doubt = tf.maximum(1 - tf.reduce_max(probabilities, axis=1), 1e-6)
  # Of images that are not finite nothing is sent in the end, but a bin they need.
  doubt = tf.where(tf.math.is_finite(doubt), doubt, 1.0)
  decades = -tf.math.log(doubt) / np.float32(np.log(10))
  return tf.minimum(tf.cast(_BINS_A_DECADE * decades, tf.int32), BINS - 1)


def _teacher(client, p):
  """The logits of the model that judges labels."""
  weights = None
  if p.average:
    # Before there is a mean, the model is its own.
    weights = tf.cond(
        tf.equal(client.round_num, 1),
        lambda: client.weights, lambda: client.received[AVERAGED],
    )
  predicted = client.predict(weights=weights)
  return predicted[1] if p.loss_q else predicted


def client(
    task: task_lib.Task, p: parameters.FedTallyParams, warm_up: int, *, tallies: bool = True
) -> program.ClientProgram:
  """Judges its labels, trains on what it makes of them, and tallies.

  Args:
    task: What is trained.
    p: The parameters.
    warm_up: Rounds in which it trains on the labels as they are.
    tallies: Whether anything but the update is sent.
  """
  form, num_classes = task.training.loss, task.num_classes
  held_out_seed = rng.tf_seed(task.seed, 'fedtally: held out')
  # What is left of the labels' own noise after q has no flips in it.
  of_targets = form._replace(keep_probability=1.0)
  most_examples = max(1, int(task.client_sizes.max()))

  def filters(client):
    return client.round_num > warm_up

  def columns(client):
    labels, received = client.labels, client.received
    # As the loss has them: softmax(f / T) is what is fitted to labels.
    logits = _teacher(client, p) / form.temperature
    # Of an example that overflows nothing is known, and its client's others count.
    known = tf.reduce_all(tf.math.is_finite(logits), axis=1, keepdims=True)
    logits = tf.where(known, logits, tf.zeros_like(logits))
    sure = tf.nn.softmax(logits)
    r = tf.nn.softmax(received[SHARPNESS] * logits)
    rates = rates_of_reports(RATES, form.keep_probability, num_classes)
    found = log_likelihoods(r, labels, received[TABLE], rates)
    rate = tf.reduce_sum(posterior(found, received[PRIOR]) * rates)  # eta = sum_g post_g eta_g.
    if p.noise_by_class:
      judged = filtered_by_class(r, labels, received[TABLE], rate)
    else:
      judged = filtered(r, labels, received[TABLE], tf.fill([num_classes], rate))
    given = tf.one_hot(labels, num_classes)
    # q_i = c_i onehot(y_i) + (1 - c_i) v_i.
    q = judged.clean[:, tf.newaxis] * given + judged.wrong
    targets = tf.where(filters(client), q, given)
    agreed = tf.equal(tf.argmax(sure, axis=1, output_type=tf.int32), labels)
    counted, visit = tf.ones_like(agreed), None
    if p.held_out:
      seed = seeds.fold(held_out_seed, client.id)
      counted = tf.random.stateless_uniform(tf.shape(labels), seed) < p.held_out
      visit = tf.logical_not(counted)
      # A client of which nothing is left trains on all: then nothing tells how good the model is.
      counted = tf.logical_and(counted, tf.reduce_any(visit))
    return program.Columns({
        'targets': targets,
        # The same for all.
        'adjustment': tf.zeros_like(targets) + label_loss.log_prior(targets),
        'log_likelihoods': found,
        'wrong': judged.wrong,
        'bins': certainty_bins(sure),
        'counted': tf.cast(counted, tf.int32),
        'agreed': tf.cast(tf.logical_and(counted, agreed), tf.int32),
    }, visit=visit)

  def loss(s):
    q = s.columns['targets']
    if p.mixup_alpha:
      q = mixup.mixed(q, s.columns[mixup.OTHERS], s.columns[mixup.SHARE])
    adjustment = form.temperature * s.columns['adjustment']
    value = of_heads(s, adjustment, q, of_targets)
    if form.keep_probability < 1:
      # While q are the reports themselves, their own distribution is the model's flipped.
      of_reports = of_heads(s, adjustment, q, form)
      value = tf.where(filters(s.client), value, of_reports)
    if not p.elr_weight:
      return value
    # + lambda mean_i log(1 - <p_i, t_i>), p = softmax(f(x) + log K pi).
    adjusted = s.logits + s.columns['adjustment']
    targets = elr.next_targets(tf.gather(s.carry, s.positions), adjusted, p.elr_beta)
    return value + p.elr_weight * elr.regulariser(adjusted, targets), targets

  def of_heads(s, adjustment, q, form):
    if not p.loss_q:
      return losses.soft_cross_entropy(s.logits + adjustment, q, form)
    used, teacher = s.logits
    loss_q = s.client.received[LOSS_Q] if p.follows_anchor else p.loss_q
    # sum_k q_i(k) (1 - p_k^s) / s, and CE(q, softmax(u + log K pi)).
    bounded = losses.soft_generalised_cross_entropy(used + adjustment, q, q=loss_q, form=form)
    return bounded + losses.soft_cross_entropy(teacher + adjustment, q, form)

  def final(result):
    found, received = result.columns, result.client.received
    post = posterior(found['log_likelihoods'], received[PRIOR])
    rate = tf.reduce_sum(post * RATES)  # eta, known flips apart.
    trusted = tf.where(filters(result.client), tf.maximum(1 - rate, _SMALLEST_WEIGHT), 1.0)
    weight = result.num_examples * trusted
    own = {elr.TARGETS: result.carry} if p.elr_weight else {}
    if not tallies:
      return program.Sent(weight=weight, own=own)
    # H's two rows.
    sure, agreed = (
        # On GPUs bincount is refused where operations have to be deterministic.
        tf.reduce_sum(
            tf.one_hot(tf.boolean_mask(found['bins'], found[name] > 0), BINS, dtype=tf.int32), 0
        )
        for name in ('counted', 'agreed')
    )
    # W[j, k] = sum of (1 - c_i) v_i(k) where y_i = j.
    wrong = tf.math.unsorted_segment_sum(found['wrong'], result.client.labels, num_classes)
    return program.Sent(
        weight=weight, own=own,
        sums={POSTERIORS: post, CORRECTIONS: wrong, SURE: sure, AGREED: agreed},
    )

  receives = {
      PRIOR: first_prior(), TABLE: first_table(num_classes), SHARPNESS: np.float32(1)
  }
  if p.average:
    receives[AVERAGED] = averaged_model.zeros(task.model)
  if p.follows_anchor:
    receives[LOSS_Q] = np.float32(p.loss_q)
  trained = program.ClientProgram(
      loss=loss,
      columns=columns,
      transform=mixup.transform(p.mixup_alpha) if p.mixup_alpha else None,
      final=final,
      receives=receives,
      sums=_sums(num_classes, most_examples) if tallies else (),
  )
  return elr.keeping_targets(trained, num_classes) if p.elr_weight else trained


def _sums(num_classes, most_examples):
  return (
      uplink.UplinkSum(
          POSTERIORS, np.float32, 0.0, 1.0,
          'how likely each noise rate is that of its labels: their sum is how rates are spread '
          'over clients', shape=(len(RATES),),
      ),
      uplink.UplinkSum(
          CORRECTIONS, np.float32, 0.0, float(most_examples),
          'how many of each label it takes for wrong and for which class instead: what wrong '
          'labels are corrected by', shape=(num_classes, num_classes),
      ),
      uplink.UplinkSum(
          SURE, np.int32, 0, most_examples,
          'on how many of its images the model is how certain, for the anchor', shape=(BINS,),
      ),
      uplink.UplinkSum(
          AGREED, np.int32, 0, most_examples,
          'how many of these have the label that the model gives them', shape=(BINS,),
      ),
  )


def anchor(sure: np.ndarray, agreed: np.ndarray, top_share: float) -> float:
  """Returns the share of labels that the surest predictions deny; 1 where there are none.

  Args:
    sure: float64 `[B]`, examples by bin, the surest last.
    agreed: float64 `[B]`, how many of them have the label predicted.
    top_share: Of all examples, in (0, 1]; whole bins are taken until they hold as many.
  """
  counts = np.cumsum(sure[::-1])
  if counts[-1] <= 0:
    return 1.0
  last = np.searchsorted(counts, top_share * counts[-1])
  return float(1 - agreed[::-1][: last + 1].sum() / counts[last])


def is_better_than_labels(
    sure: np.ndarray, agreed: np.ndarray, noise: float, num_classes: int
) -> bool:
  """Whether the model is right at least as often as labels, as far as its agreement tells.

  `A = T (1 - noise) + (1 - T) noise / (K - 1)` is solved for T, which has to be .8 at least: a
  smaller one says that agreement falls from the surest predictions to the others, so that the
  surest, by which noise is told, may err too. So they may where noise is above .75.

  Args:
    sure: float64 `[B]`, see `anchor`.
    agreed: float64 `[B]`.
    noise: The share of labels that are wrong, in [0, 1].
    num_classes: K.
  """
  if sure.sum() <= 0:
    return False
  by_chance = noise / (num_classes - 1)
  if by_chance >= 1 - noise:
    return False  # Labels that say nothing tell nothing of the model.
  right = (agreed.sum() / sure.sum() - by_chance) / (1 - noise - by_chance)
  return bool(right >= max(1 - noise, _LEAST_RIGHT) and noise <= _MOST_NOISE)


def next_sharpness(gamma: float, anchor_: float, rate: float, most: float) -> float:
  """Returns `clip(gamma exp(.3 (anchor - rate)), 1, most)`, rate the mean of eta."""
  return float(np.clip(gamma * np.exp(_SHARPNESS_STEP * (anchor_ - rate)), 1.0, most))


def next_loss_q(anchor_: float, rate: float, least: float, most: float) -> float:
  """Returns `clip(1.5 (anchor - rate), least, most)`, rate the mean of eta."""
  return float(np.clip(_Q_OF_UNEXPLAINED * (anchor_ - rate), least, most))


def _tallied(records: algorithm.Records, sums: Mapping[str, np.ndarray]) -> algorithm.Records:
  """Returns what the server remembers of all rounds' sums after those of one more."""
  return {
      name: _MEMORY * records[name] + np.asarray(sums[name], np.float64)
      for name in (POSTERIORS, CORRECTIONS, SURE, AGREED)
  }


def next_table(corrections: np.ndarray) -> np.ndarray:
  """Returns float32 `[K, K]`, R: rows of W's sums, shrunk by 5 examples to no preference."""
  table = np.maximum(corrections, 0) * (1 - np.eye(len(corrections)))
  table = table + _TABLE_SHRINKAGE * first_table(len(table))
  return (table / table.sum(axis=1, keepdims=True)).astype(np.float32)


def next_prior(posteriors: np.ndarray) -> np.ndarray:
  """Returns float32 `[G]`, a of the sum of post: 2 % of it uniform."""
  shares = posteriors / posteriors.sum()
  return ((shares + _UNIFORM_SHARE / len(shares)) / (1 + _UNIFORM_SHARE)).astype(np.float32)


def mean_rate(posteriors: np.ndarray) -> float:
  """Returns the mean of eta over clients, of the sum of post."""
  return float(posteriors @ RATES / posteriors.sum())


def warm_up_rounds(task: task_lib.Task, p: parameters.FedTallyParams) -> int:
  """Returns in how many rounds labels are left as they are."""
  return round(p.warm_up_share * task.rounds)


def build(task: task_lib.Task, p: parameters.FedTallyParams) -> algorithm.Algorithm:
  """Samples and trains in every round, and counts what clients send.

  Raises:
    types.UsageError: If parameters need sums and nothing but updates may leave a client.
  """
  tallies = task.aggregation.scalar is not None
  if not tallies and (p.learned_prior or p.max_sharpness > 1 or p.follows_anchor):
    raise types.UsageError(
        '--client_dp_noise: nothing but updates may leave a client, and learned_prior, '
        'max_sharpness and least_q of fedtally need sums: leave these parameters out'
    )
  if not tallies and p.average:
    raise types.UsageError(
        '--client_dp_noise cannot be given with --param=average=B of fedtally: leave it out, or '
        'give --average_models=B, which evaluates such a mean; labels are judged by the last model'
    )
  if p.loss_q:
    task = task.with_model(keras_model.with_probe(task.model))
  if p.average and task.optimizer is not None and task.optimizer.evaluated is not None:
    raise types.UsageError(
        '--param=average is of the global model, and with this --base clients are evaluated by '
        'models of their own: leave one of them out'
    )
  program_ = client(task, p, warm_up_rounds(task, p), tallies=tallies)
  train = computation.train('a round of train', task, program_)

  def round_(state, clients):
    first = state.weights
    output = clients.train(train, state, clients.sample(train, state))
    state = output.state
    t = state.round_num + 1
    if p.average:
      mean = first if t == 1 else state.received[AVERAGED]
      state = state.send(
          **{AVERAGED: averaged_model.next_mean(mean, state.weights, p.average, t)}
      )
    return counted(state, output.sums, t) if tallies and output.sums else state

  def counted(state, sums, t):
    found = _tallied(state.records, sums)
    posteriors, sure, agreed = (found[name] for name in (POSTERIORS, SURE, AGREED))
    state = state.record(**found).send(**{TABLE: next_table(found[CORRECTIONS])})
    if p.learned_prior:
      state = state.send(**{PRIOR: next_prior(posteriors)})
    noise = anchor(sure, agreed, p.top_share)
    # Known flips are part of what predictions deny.
    rate = rates_of_reports(
        mean_rate(posteriors), task.training.loss.keep_probability, task.num_classes
    )
    if p.follows_anchor:
      loss_q = next_loss_q(noise, rate, p.least_q, p.loss_q)
      state = state.send(**{LOSS_Q: np.float32(loss_q)})
    if p.max_sharpness == 1 or t <= _SHARPNESS_FROM * task.rounds:
      return state
    if not is_better_than_labels(sure, agreed, noise, task.num_classes):
      return state
    gamma = next_sharpness(float(state.received[SHARPNESS]), noise, rate, p.max_sharpness)
    return state.send(**{SHARPNESS: np.float32(gamma)})

  def evaluate(state, own):
    del own  # What clients keep is no model.
    weights = state.received[AVERAGED] if state.round_num else state.weights
    return [algorithm.Evaluated(task.model, weights)]

  def report_columns(state):
    if not tallies or not state.round_num:
      return {}
    records = state.records
    columns = {
        'anchor': anchor(records[SURE], records[AGREED], p.top_share),
        'mean_noise_rate': mean_rate(records[POSTERIORS]),
        'sharpness': float(state.received[SHARPNESS]),
    }
    if p.follows_anchor:
      columns['loss_q'] = float(state.received[LOSS_Q])
    return columns

  num_classes = task.num_classes
  return algorithm.Algorithm(
      round_, algorithm.computations_of(train), {'train': task.rounds},
      records={
          POSTERIORS: _PRIOR_CLIENTS * first_prior().astype(np.float64),
          CORRECTIONS: np.zeros((num_classes, num_classes)),
          SURE: np.zeros(BINS),
          AGREED: np.zeros(BINS),
      } if tallies else {},
      evaluate=evaluate if p.average else None,
      report=algorithm.Report(
          columns=report_columns,
          summary=_summary if tallies else lambda records: {},
          lines=lambda summary: _lines(summary['fedtally']) if tallies else (),
      ),
  )


def _summary(records: algorithm.Records) -> Mapping[str, object]:
  posteriors = records[POSTERIORS]
  return {
      'fedtally': {
          'rates': RATES.tolist(),
          'clients_by_rate': (posteriors / posteriors.sum()).tolist(),
          'mean_rate': mean_rate(posteriors),
          'table': next_table(records[CORRECTIONS]).tolist(),
      }
  }


def _lines(found):
  return [
      f'  noise rates     {found["mean_rate"]:.2f} on average over clients, as sums over them say'
  ]
