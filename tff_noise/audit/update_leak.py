"""What a client's update tells a curious server about the client's labels.

FedDPCont's theorem 1 is about the flipped labels that clients report. Its clients then train on
their true local (noisy) labels and send the result, to which no theorem applies. The bias of the
last layer shows what that is worth. At beta = 1 cross-entropies cancel, `CE(y) - CE(y') = z_y' -
z_y`: the gradient of the logits is `e_y' - e_y`, whatever the model and the image. A step on a
batch of size B moves the bias by `lr / B * (hist(y) - hist(y'))`, and the server knows the
distribution of y', because it is what the server itself sent. Plain cross-entropy gives `p - e_y`,
and the server has to guess the mean prediction p. FedTally's clients train on soft targets q, and
of their sums W says how many of each label they took for wrong, and for which class: `hist(y)_j =
hist(q)_j + sum_k W_jk - sum_k W_kj`. (Their predictions are adjusted by the shares of q; to solve
for these too made the attack no better.)

**An attack that fails proves nothing.** It is one attack, without background knowledge about the
client and without memory over rounds. One that succeeds shows that there is no protection.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from tff_noise import rng
from tff_noise import types
from tff_noise.algorithms import fedtally
from tff_noise.algorithms import parameters
from tff_noise.audit import arms
from tff_noise.privacy import estimator
from tff_noise.privacy import mechanism as mechanism_lib

_FLOOR = parameters.FedDPContParams().log_floor


def num_local_steps(num_examples: int, training: types.LocalTraining) -> int:
  """Returns a client's steps in a round; the last batch of an epoch may be smaller."""
  return training.epochs * math.ceil(num_examples / training.batch_size)


def recovered_histogram(
    bias_update: np.ndarray,
    *,
    learning_rate: float,
    num_steps: float,
    num_labels: int,
    reference: np.ndarray,
    keep_probability: float = 1.0,
    below_floor: float = 0.0,
) -> np.ndarray:
  """Returns the server's estimate of a client's counts of labels, from what the bias did.

  The gradient of the logits is `e_y' - e_y` with FedDPCont at beta = 1, and `p - e_y` with plain
  cross-entropy. Averaged over the steps of plain SGD that moves the bias by
  `lr * steps * (hist(y) / n - r)`, r being the distribution of y', or the mean prediction. Solved
  for the histogram this is

      n * (move / (lr * steps) + r)

  With y' known, and batches that divide the examples, it is exact. With the distribution alone
  known, each count is off by what the draws of y' scatter, a standard deviation of about
  `sqrt(n r (1 - r) / epochs)`; where the last batch is smaller its examples count for more, which
  vanishes on average over the shuffles. With plain cross-entropy all depends on a guess of the mean
  prediction over the local steps, which the server has only for images of its own.

  The floor of `losses.contrastive_cross_entropy` takes part of this away, without being meant to.
  Where y' has a probability below it, `e_y' - e_y` becomes `p - e_y`, which fades as the model
  learns y. If that is so for a share s of the pairs, the estimate tends to
  `(1 - s) * hist(y) + s * n * r`: towards what the server knows anyway. Models soon become sure of
  themselves; on the digits s is near a half after the local training of the very first round, and
  the attack on later rounds is the weaker for it (`Attack.below_floor`). It is no guarantee: the
  server can estimate s on images of its own and undo what it does on average.

  On labels that are reports, the loss knows the flips, and the gradient above is multiplied by
  `(a - b) p_k / ((a - b) p_k + b)`, k being the label; that is a - b while predictions are uniform,
  which is taken for all of them.

  Args:
    bias_update: float `[K]`, the bias of the logits after local training minus before; of a mean of
      updates, as if it were one client's.
    learning_rate: Step size of plain local SGD, without momentum and weight decay; positive.
    num_steps: Local steps, positive; their mean over a cohort need not be whole.
    num_labels: n, what the estimate sums to (if `bias_update` sums to 0).
    reference: float `[K]`, r.
    keep_probability: a, if labels are reports of randomised response.
    below_floor: s, as far as the server knows it, in [0, 1); 0 with plain cross-entropy.

  Returns:
    float64 `[K]`; entries may be negative.

  Raises:
    ValueError: If a step size, number of steps or probability is out of range.
  """
  move = np.asarray(bias_update, np.float64)
  num_classes = len(move)
  if not learning_rate > 0 or not num_steps > 0:
    raise ValueError(
        f'expected a positive learning rate and number of steps, got {learning_rate}, {num_steps}'
    )
  if not 1 / num_classes < keep_probability <= 1:
    raise ValueError(f'keep_probability must be in (1/{num_classes}, 1], got {keep_probability}')
  if not 0 <= below_floor < 1:
    raise ValueError(f'below_floor must be in [0, 1), got {below_floor}')
  # a - b is 1 without flips.
  slope = (1 - below_floor) * (num_classes * keep_probability - 1) / (num_classes - 1)
  return num_labels * (move / (learning_rate * num_steps * slope) + np.asarray(reference))


def labels_from_reports(
    reports: np.ndarray, mechanism: mechanism_lib.RandomizedResponse
) -> np.ndarray:
  """Returns float `[K]`, shares of labels, from (estimated) shares of their reports, float `[K]`.

  The plain inverse, projected: with a client's few labels it is mostly the scatter of the flips.
  """
  a, b = mechanism.keep_probability, mechanism.other_probability
  return estimator.project_simplex((np.asarray(reports) - b) / (a - b))


def labels_of_targets(targets: np.ndarray, corrections: np.ndarray, num_labels: int) -> np.ndarray:
  """Returns float64 `[K]`, shares of labels, from those of the targets that FedTally made of them.

  Args:
    targets: float `[K]`, (estimated) shares of q.
    corrections: float `[K, K]`, W of one client.
    num_labels: n.
  """
  moved = corrections.sum(axis=1) - corrections.sum(axis=0)
  return estimator.project_simplex(targets + moved / num_labels)


class Attack(NamedTuple):
  """One attempt to recover a label distribution.

  Attributes:
    method: One of `arms.METHODS`, or '-' for who has seen no update.
    setting: What the server sees.
    rounds: Rounds that the model had been trained for before.
    target: Whose distribution: 'labels' or 'reports' of the client, or labels of the 'cohort'.
    victim: The numbers of the scene and of the client.
    truth: float64 `[K]`, the true shares.
    recovered: float64 `[K]` on the simplex.
    below_floor: Share of pairs of an example and a contrastive label whose contrastive term the
      floor had switched off, mean of before and after local training; nan where not measured.
  """

  method: str
  setting: str
  rounds: int
  target: str
  victim: tuple[int, int]
  truth: np.ndarray
  recovered: np.ndarray
  below_floor: float = math.nan

  @property
  def correlation(self) -> float:
    """Pearson's, over the classes; nan if one of both is constant."""
    if min(np.ptp(self.truth), np.ptp(self.recovered)) < 1e-9:
      return math.nan
    return float(np.corrcoef(self.truth, self.recovered)[0, 1])

  @property
  def total_variation(self) -> float:
    """Half the sum of absolute differences, in [0, 1]: the share of labels put in wrong classes."""
    return float(np.abs(self.truth - self.recovered).sum() / 2)


class Row(NamedTuple):
  """Means over the attacks of one kind.

  Attributes:
    method: As in `Attack`, and so `setting`, `rounds` and `target`.
    setting: See there.
    rounds: See there.
    target: See there.
    attacks: How many there were.
    correlation: Mean over those that have one; nan without any.
    total_variation: Mean.
    total_variation_error: Standard error of it over the attacks; nan for a single one.
    below_floor: Mean; nan where not measured.
  """

  method: str
  setting: str
  rounds: int
  target: str
  attacks: int
  correlation: float
  total_variation: float
  total_variation_error: float
  below_floor: float


class Demonstration(NamedTuple):
  """All attacks of a demonstration."""

  attacks: tuple[Attack, ...]

  def rows(self) -> tuple[Row, ...]:
    """Returns the means, in the order in which kinds of attacks first occur."""
    kinds = {}
    for attack in self.attacks:
      key = (attack.method, attack.setting, attack.rounds, attack.target)
      kinds.setdefault(key, []).append(attack)
    return tuple(_row(key, attacks) for key, attacks in kinds.items())


def _row(key, attacks):
  distances = np.array([a.total_variation for a in attacks])
  n = len(attacks)
  return Row(
      *key,
      attacks=n,
      correlation=_mean([a.correlation for a in attacks]),
      total_variation=float(distances.mean()),
      total_variation_error=float(distances.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan,
      below_floor=_mean([a.below_floor for a in attacks]),
  )


def _mean(values):
  known = [v for v in values if not math.isnan(v)]
  return float(np.mean(known)) if known else math.nan


class _Seen(NamedTuple):
  """What the server has after a round: weights before and after, sums, and public numbers."""

  before: Any
  after: Any
  sums: Mapping[str, np.ndarray]
  num_steps: float


class _Round(NamedTuple):
  """One round to attack.

  Attributes:
    job: What runs.
    scene: The clients.
    setting: Its name.
    rounds: Rounds before it.
    victim: The numbers of the scene and of the client.
    cohort: int `[m]`, clients that take part, the victim among them.
  """

  job: arms.Job
  scene: arms.Scene
  setting: str
  rounds: int
  victim: tuple[int, int]
  cohort: np.ndarray

  @property
  def own(self) -> types.ClientExamples:
    """What the victim holds."""
    return self.scene.federation.clients[self.victim[1]]

  @property
  def contrastive(self) -> bool:
    """Whether the loss has contrastive labels."""
    return self.job.arm.method == 'feddpcont'

  @property
  def filtered(self) -> bool:
    """Whether clients train on other labels than their own: FedTally's, after the first rounds."""
    warm_up = parameters.FedTallyParams().warm_up_share * self.job.arm.config(0).rounds
    return self.job.arm.method == 'fedtally' and self.rounds >= round(warm_up)


def _shares(labels, num_classes):
  return mechanism_lib.histogram(labels, num_classes) / len(labels)


def _recover(task, seen, below_floor=0.0):
  """float64 `[K]`, shares on the simplex: the bias attack with what the server knows."""
  arm, scene = task.job.arm, task.scene
  # A filter takes flips out of its targets.
  is_flipped = arm.epsilon is not None and not task.filtered

  if task.contrastive:
    reference = scene.contrast(arm)
  else:
    # The best it can do for the path is the mean of both ends, on images of its own.
    reference = np.mean(
        [_predictions(task.job, w, scene.dataset.test_x).mean(axis=0) for w in seen[:2]], axis=0
    )
  estimate = recovered_histogram(
      # The last of the model's trainable weights is the bias of the logits.
      seen.after.trainable[-1] - seen.before.trainable[-1],
      learning_rate=task.job.training.learning_rate,
      num_steps=seen.num_steps,
      num_labels=len(task.own.y),
      reference=reference,
      keep_probability=scene.mechanism.keep_probability if is_flipped else 1.0,
      below_floor=below_floor,
  )
  return estimator.project_simplex(estimate / len(task.own.y))


def _predictions(job, weights, images):
  return special.softmax(job.logits(weights, images), axis=1)


def _below_floor(task, seen, images):
  """Share of (example, contrastive label) without a contrastive term, of one client."""
  if not task.contrastive:
    return math.nan
  if task.job.arm.epsilon is not None:
    return 0.0  # Of reports the loss is at most -log(b): the floor is never met.
  contrast = task.scene.contrast(task.job.arm)
  return float(
      np.mean([((_predictions(task.job, w, images) < _FLOOR) @ contrast).mean() for w in seen[:2]])
  )


def _attack(task, seen):
  """Returns the attacks on what was seen of one round."""
  scene, arm, own = task.scene, task.job.arm, task.own
  shares = functools.partial(_shares, num_classes=scene.federation.num_classes)
  attack = functools.partial(Attack, arm.method, rounds=task.rounds, victim=task.victim)
  found = _recover(task, seen)
  on_labels = functools.partial(attack, target='labels', truth=shares(own.y))
  if len(task.cohort) > 1:
    together = shares(np.concatenate([scene.federation.clients[i].y for i in task.cohort]))
    return [
        on_labels(task.setting, recovered=found),
        attack(task.setting, target='cohort', truth=together, recovered=found),
    ]
  floor = _below_floor(task, seen, own.x)
  if arm.epsilon is not None:
    reports = shares(scene.reports.clients[task.victim[1]].y)
    inverted = labels_from_reports(found, scene.mechanism)
    if task.filtered:  # Its targets are of labels already.
      inverted, found = found, labels_of_targets(found, seen.sums[fedtally.CORRECTIONS], len(own.y))
    return [
        attack(task.setting, target='reports', truth=reports, recovered=found, below_floor=floor),
        on_labels(task.setting, recovered=inverted, below_floor=floor),
    ]
  attacks = [on_labels(task.setting, recovered=found, below_floor=floor)]
  if task.filtered:
    both = labels_of_targets(found, seen.sums[fedtally.CORRECTIONS], len(own.y))
    attacks.append(on_labels(f'{task.setting} and sums', recovered=both))
  if task.contrastive:
    # On images of its own, the clients' being unknown.
    undone = _recover(task, seen, _below_floor(task, seen, scene.dataset.test_x))
    name = f'{task.setting}, floor undone'
    attacks.append(on_labels(name, recovered=undone, below_floor=floor))
  return attacks


def _mean_steps(task):
  """The mean of the cohort's local steps, weighted as its updates are."""
  sizes = task.scene.federation.sizes
  steps = [num_local_steps(int(sizes[i]), task.job.training) for i in task.cohort]
  equal = task.job.arm.noise is not None
  return float(np.average(steps, weights=None if equal else sizes[task.cohort]))


def _settings(method, noises):
  """Arms by name; the first is trained without protection."""
  return {
      'own update': arms.Arm(method),
      f'secure sum of {arms.COHORT}': arms.Arm(method, secure=True),
      **{f'DP-FedAvg, noise {z:g}': arms.Arm(method, noise=z) for z in noises},
      f'private labels, epsilon {arms.EPSILON}': arms.Arm(method, epsilon=arms.EPSILON),
  }


def _is_alone(arm):
  """Whether the server sees one client's update by itself."""
  return not arm.secure and arm.noise is None


def _cohort(arm, victim, seed):
  if _is_alone(arm):
    return np.array([victim])
  others = np.delete(np.arange(arms.CLIENTS), victim)
  draw = rng.generator(seed, 'audit: cohort of a victim', victim)
  return np.append(victim, draw.choice(others, arms.COHORT - 1, replace=False))


def _attack_all(jobs, scene, number, rounds, victims):
  """Returns the attacks on all settings of one method, at one age of the model.

  Args:
    jobs: By setting; the first is without protection.
    scene: What is attacked.
    number: Of the scene.
    rounds: The age.
    victims: The clients to attack.
  """
  attacks, unprotected, seed = [], None, scene.federation.seed
  for setting, job in jobs.items():
    process, state = job.process, job.state
    if _is_alone(job.arm):
      state = job.train(rounds, seed)
      start = process.get_model_weights(state)
      unprotected = unprotected or start
    else:
      # The same model: what differs is what of one round is seen.
      start = unprotected
    for victim in map(int, victims):
      cohort = _cohort(job.arm, victim, seed)
      task = _Round(job, scene, setting, rounds, (number, victim), cohort)
      # The state goes on: each attack meets other batches and other noise.
      state = process.set_model_weights(state, start)
      state, metrics = process.next(state, [job.datasets[i] for i in cohort])
      after, sums = process.get_model_weights(state), metrics['client_work']['train']
      attacks += _attack(task, _Seen(start, after, sums, _mean_steps(task)))
  return attacks


def _guesses(scene, number, victims):
  """Returns what who sees no update can say of each target."""
  num_classes = scene.federation.num_classes
  labels = [c.y for c in scene.federation.clients]
  attacks = []
  for name, guess in (
      ('no update: uniform', np.full(num_classes, 1 / num_classes)),
      ('no update: p_hat', scene.prior),
  ):
    for v in map(int, victims):
      cohort = _cohort(arms.Arm('fedavg', secure=True), v, scene.federation.seed)
      reported = guess @ scene.mechanism.transition_matrix()
      for target, held, guessed in (
          ('labels', labels[v], guess),
          ('cohort', np.concatenate([labels[i] for i in cohort]), guess),
          ('reports', scene.reports.clients[v].y, reported),
      ):
        truth = _shares(held, num_classes)
        attacks.append(Attack('-', name, 0, target, (number, v), truth, guessed))
  return attacks


def demonstrate(
    seed: int,
    *,
    methods: Sequence[str] = arms.METHODS,
    scenes: int = 2,
    victims: int = 6,
    rounds: Sequence[int] = (0, 20),
    noises: Sequence[float] = arms.NOISES,
) -> Demonstration:
  """Recovers clients' label histograms from single rounds of the default job.

  20 open-set clients of the digits with 40 % symmetric noise, the small perceptron, 5 epochs of
  plain SGD. The server sees one client's update; the secure sum over a cohort of 10, or DP-FedAvg's
  noisy mean of one at clipping norm 1, either of which it takes for the client's own; or the update
  of one client that trains on flipped labels alone. Call it in a runtime: `runtimes.local.runtime`.

  Args:
    seed: Of everything.
    methods: Among `arms.METHODS`.
    scenes: Federations to draw, at least 1.
    victims: Clients to attack in each, 1 to 20.
    rounds: Ages of the attacked model, in rounds; 0 is the first round.
    noises: DP-FedAvg's noise multipliers, positive.
  """
  dataset = arms.digits()
  attacks = []
  for i in range(scenes):
    federation = arms.draw_federation(dataset, rng.integer(seed, 'audit: scene', i))
    scene = arms.exchange_labels(dataset, federation)
    draw = rng.generator(seed, 'audit: victims', i)
    chosen = draw.choice(arms.CLIENTS, victims, replace=False)
    attacks += _guesses(scene, i, chosen)
    for method in methods:
      # Building a process takes seconds.
      jobs = {
          name: arms.prepare(arm, scene, seed) for name, arm in _settings(method, noises).items()
      }
      for age in rounds:
        attacks += _attack_all(jobs, scene, i, age, chosen)
  return Demonstration(tuple(attacks))
