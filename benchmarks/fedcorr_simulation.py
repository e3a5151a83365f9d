"""FedCorr's pre-processing of many federations at once, outside TFF: is its split to be trusted?

  python -m benchmarks.fedcorr_simulation --clients=50 --seeds=0-39

`split_guard` runs the program itself, 10 to 20 seconds a run; this trains 40 federations of digits
side by side, in half a second to a second for each. Scenes, LID, mixtures, relabelling and the
server's code are the program's; the digits' MLP, mixup and the proximal term are written again for
many clients at once. Batches, mixup and initial weights are drawn otherwise, so runs agree in
distribution. It prints what `split_guard` does, and the area under the ROC curve of LID. Clients
have to be of equal size.
"""

import sys
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import flags
from sklearn import metrics

from tff_noise.clients import gaussian_mixture
from tff_noise.clients import intrinsic_dimension
from tff_noise.clients import relabel
from tff_noise.data import scene as scene_lib
from tff_noise.program import command_line
from tff_noise.program import data
from tff_noise.program import flags as program_flags
from tff_noise.selection import noisy_clients

_FLAGS = flags.FlagValues()
flags.DEFINE_string('seeds', '0-39', 'First and last seed.', flag_values=_FLAGS)
flags.DEFINE_integer('clients', 50, 'C.', flag_values=_FLAGS)
flags.DEFINE_integer('neighbours', 20, 'k of LID.', flag_values=_FLAGS)
flags.DEFINE_list(
    'noise', ['0:0.5'] + [f'{rho}:{tau}' for rho in (0.2, 0.4, 0.6, 0.8) for tau in (0, 0.5)],
    'rho:tau of each setting.', flag_values=_FLAGS,
)
_BATCH, _EPOCHS, _STEP, _ITERATIONS = 32, 5, 0.1, 5
_BETA, _RATIO, _CONFIDENCE = 5.0, 0.5, 0.5


class Federations(NamedTuple):
  """S federations of C clients with n digits each.

  Attributes:
    seeds: Of each.
    x: float32 `[S, C, n, 64]`.
    given: int32 `[S, C, n]`, labels.
    clean: int32 `[S, C, n]`, the truth.
  """

  seeds: tuple[int, ...]
  x: np.ndarray
  given: np.ndarray
  clean: np.ndarray


def main(argv: list[str]) -> None:
  """Prints a row for each noise with and without the guard."""
  values, _ = command_line.parse(_FLAGS, argv, known_only=True)
  first, last = map(int, values.seeds.split('-'))
  print('| rho:tau | guard | runs | anybody called | recall | precision | labels | after | AUC |')
  print('| --- | --- | --- | --- | --- | --- | --- | --- | --- |')
  for setting in values.noise:
    drawn = draw(range(first, last + 1), values.clients, *setting.split(':'))
    for guard in (False, True):
      numbers = preprocess(drawn, guard=guard, neighbours=values.neighbours)
      shown = ' | '.join(f'{v:.3f}' if np.isfinite(v) else '–' for v in numbers[1:])
      print(
          f'| {setting} | {str(guard).lower()} | {len(drawn.seeds)} | {numbers[0]:.0f} | {shown} |',
          flush=True,
      )


def draw(seeds, clients, rho, tau) -> Federations:
  """Returns the program's own scenes."""
  found = []
  for seed in seeds:
    config = program_flags.config_from(program_flags.parse([
        'simulation', '--method=fedcorr', '--allow_per_client_disclosure', '--partition=iid',
        '--noise=client_uniform', f'--noise_rho={rho}', f'--noise_tau={tau}',
        f'--clients={clients}', f'--seed={seed}', '--rounds=1000',
    ]))
    dataset = data.load_dataset(config)
    scene = data.load_scene(config, dataset, None)
    ids = np.stack(scene_lib.examples_of(scene))
    x = dataset.train_x[ids].reshape(*ids.shape, -1) / np.float32(16)
    found.append((x, scene.noisy_label[ids], scene.clean_label[ids]))
  return Federations(tuple(seeds), *map(np.stack, zip(*found, strict=True)))


def preprocess(federations: Federations, *, guard: bool, neighbours: int):
  """Returns runs in which anybody was called, and means of recall, precision, labels and AUC."""
  seeds, x, given, clean = federations
  count, clients, n = given.shape
  rows, labels = np.arange(count), given.copy()
  random = np.random.default_rng([seeds[0], clients, int(guard)])
  weights = _initial(count, random)
  lid = np.full((count, _ITERATIONS, clients), np.nan)
  noise, losses = np.zeros((count, clients)), np.zeros((count, clients, n), np.float32)
  noisy, told = np.zeros((count, clients), bool), np.full(count, not guard)
  called = np.zeros(count, bool)
  for iteration in range(_ITERATIONS):
    anchor = weights
    order = np.stack([random.permutation(clients) for _ in seeds])
    for client in order.T:  # One of each federation.
      own = x[rows, client], labels[rows, client]
      weights = _train(weights, anchor, own, noise[rows, client], random)
      lid[rows, iteration, client], losses[rows, client], _ = _look(weights, *own, neighbours)
    sure = [_look(weights, x[:, c], labels[:, c], 2)[1:] for c in range(clients)]
    for s, seed in enumerate(seeds):
      so_far = lid[s, : iteration + 1]
      told[s] |= noisy_clients.agreement(so_far).holds
      noisy[s] = False
      if told[s]:
        scores = noisy_clients.client_scores(so_far, 'cumulative')
        split_seed = noisy_clients.mixture_seed(seed, iteration)
        noisy[s] = noisy_clients.split(scores, split_seed).noisy
      noise[s] = 0
      for c in np.flatnonzero(noisy[s]):
        loss, predictions = (v[s] for v in sure[c])
        labels[s, c], noise[s, c] = (
            v.numpy() for v in _correct(labels[s, c], losses[s, c], loss, predictions)
        )
    called |= noisy.any(axis=1)
  truth = (given != clean).any(axis=2)
  hits = (noisy & truth).sum(axis=1)
  area = [
      metrics.roc_auc_score(t, of_run.mean(axis=0))
      for t, of_run in zip(truth, lid, strict=True) if 0 < t.sum() < clients
  ]
  with np.errstate(invalid='ignore'):
    recall, precision = hits / truth.sum(axis=1), hits / noisy.sum(axis=1)
  return (
      called.sum(), _mean(recall), _mean(precision), np.mean(given == clean),
      np.mean(labels == clean), _mean(np.array(area)),
  )


def _mean(values):
  values = values[np.isfinite(values)]
  return values.mean() if len(values) else np.nan


def _initial(count, random):
  weights = []
  for inputs, outputs in ((64, 128), (128, 128), (128, 10)):
    limit = np.sqrt(6 / (inputs + outputs))
    weights += [random.uniform(-limit, limit, (count, inputs, outputs)), np.zeros((count, outputs))]
    if outputs == 128:  # Scale and offset of group norm.
      weights += [np.ones((count, outputs)), np.zeros((count, outputs))]
  return [tf.constant(w, tf.float32) for w in weights]


def _forward(weights, x):
  for kernel, bias, scale, offset in (weights[:4], weights[4:8]):
    x = tf.matmul(x, kernel) + bias[:, tf.newaxis]
    groups = tf.reshape(x, [*x.shape[:2], 8, 16])
    mean, variance = tf.nn.moments(groups, -1, keepdims=True)
    x = tf.reshape((groups - mean) * tf.math.rsqrt(variance + 1e-3), x.shape)
    x = tf.nn.relu(x * scale[:, tf.newaxis] + offset[:, tf.newaxis])
  return tf.matmul(x, weights[8]) + weights[9][:, tf.newaxis]


def _train(weights, anchor, own, noise, random):
  """Local SGD on mixup batches with the proximal term of equation 5."""
  x, y = own
  count, n = y.shape
  for _ in range(_EPOCHS):
    order = random.random((count, n)).argsort(axis=1)
    for first in range(0, n, _BATCH):
      batch = order[:, first : first + _BATCH]
      weights = _step(
          weights, anchor,
          tf.constant(np.take_along_axis(x, batch[..., np.newaxis], axis=1)),
          tf.constant(np.take_along_axis(y, batch, axis=1)),
          tf.constant(random.random(batch.shape).argsort(axis=1).astype(np.int32)),
          tf.constant(random.uniform(size=count).astype(np.float32)),  # Beta(1, 1).
          tf.constant(noise.astype(np.float32)),
      )
  return weights


@tf.function(autograph=False)
def _step(weights, anchor, x, y, other, share, noise):
  across = share[:, tf.newaxis]
  blended = across[..., tf.newaxis] * x
  blended += (1 - across[..., tf.newaxis]) * tf.gather(x, other, batch_dims=1)
  with tf.GradientTape() as tape:
    tape.watch(weights)
    logits = _forward(weights, tf.round(blended * 16) / 16)
    loss = across * tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
    loss += (1 - across) * tf.nn.sparse_softmax_cross_entropy_with_logits(
        tf.gather(y, other, batch_dims=1), logits
    )
    loss = tf.reduce_sum(tf.reduce_mean(loss, axis=1))
  pull = 2 * _BETA * noise
  return [
      w - _STEP * (g + tf.reshape(pull, [-1] + [1] * (w.shape.rank - 1)) * (w - a))
      for w, g, a in zip(weights, tape.gradient(loss, weights), anchor, strict=True)
  ]


def _look(weights, x, y, neighbours):
  """LID (equation 2) `[S]`, losses `[S, n]` and predictions `[S, n, K]`."""
  return [v.numpy() for v in _look_at(weights, tf.constant(x), tf.constant(y), neighbours)]


@tf.function(autograph=False)
def _look_at(weights, x, y, neighbours):
  logits = _forward(weights, x)
  predictions = tf.nn.softmax(logits)
  lid = tf.map_fn(lambda p: intrinsic_dimension.lid_score(p, neighbours), predictions)
  return lid, tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits), predictions


@tf.function(autograph=False)
def _correct(labels, losses, global_losses, predictions):
  """What a noisy client does: equations 6 and 7. Returns its labels and its noise."""
  suspicious = gaussian_mixture.larger_component(losses, gaussian_mixture.fit(losses))
  chosen = relabel.largest_losses(global_losses, suspicious, _RATIO)
  labels = relabel.relabel(labels, predictions, chosen, _CONFIDENCE, strict=False)
  return labels, tf.reduce_mean(tf.cast(suspicious, tf.float32))


if __name__ == '__main__':
  main(sys.argv)
