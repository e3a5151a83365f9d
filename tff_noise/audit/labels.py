"""The empirical audit of the label mechanism, as runs use it."""

import functools
import itertools

import numpy as np
import tensorflow as tf

from tff_noise.audit import black_box
from tff_noise.audit import empirical_audit
from tff_noise.audit import finding
from tff_noise.federated import label_histogram
from tff_noise.privacy import mechanism as mechanism_lib

# A seed that no run has, so that no report of a run is asked for.
_SEED = -1


# Of calls of so few examples only one in `_EVERY` is put to every form: what TensorFlow runs has no
# state that could count calls, and a call takes it a millisecond.
_FEW, _EVERY = 3, 50


def audit(
    mechanism: mechanism_lib.RandomizedResponse, trials: int, alpha: float, seed: int
) -> finding.Audit:
  """Audits randomised response, in both of its forms at once.

  Args:
    mechanism: The mechanism, with its claim.
    trials: Reports for each world.
    alpha: Probability of a false alarm, in (0, 1).
    seed: The auditor's: whom it asks about which examples.
  """
  forms = tuple(build(mechanism) for build in FORMS.values())
  findings = empirical_audit.audit(
      _agreed(forms), mechanism, trials=trials, alpha=alpha, seed=seed
  )
  subject = {
      'claimed epsilon': mechanism.epsilon,
      'epsilon of the integer table': f'{mechanism.actual_epsilon:.12g}',
      'classes': str(mechanism.num_classes),
      'keeps a label with probability': f'{mechanism.keep_probability:.9f}',
      'flips': (
          "by Threefry of the example under its client's secret; each report is asked for both in "
          'NumPy and in TensorFlow, and must be the same; in calls of at most '
          f'{_FEW} examples, of one in {_EVERY}'
      ),
      'reports for each world': f'{trials:,}',
      'probability of any false alarm': f'{alpha:g}',
      "the auditor's seed": f'{seed}; --audit_seed={seed} repeats this audit',
  }
  return finding.Audit(
      f'Audit of randomised response: epsilon {mechanism.epsilon}, '
      f'{mechanism.num_classes} classes',
      findings,
      (finding.about(subject),),
      {'mechanism': mechanism._asdict(), 'trials': trials, 'alpha': alpha, 'seed': seed},
  )


def _agreed(forms: tuple[black_box.Mechanism, ...]) -> black_box.Mechanism:
  """Returns the mechanism that answers as all of these do, and not at all where they differ."""
  small_calls = itertools.count()

  def report(labels, ids, client):
    few = len(labels) <= _FEW and next(small_calls) % _EVERY
    first, *others = (form(labels, ids, client) for form in (forms[:1] if few else forms))
    if not all(np.array_equal(first, other) for other in others):
      raise ValueError(f'the forms ({", ".join(FORMS)}) report differently')
    return first

  return report


@functools.lru_cache(4096)
def _secret(client):
  return mechanism_lib.simulation_secret(_SEED, client)


def _in_numpy(mechanism):
  return lambda labels, ids, client: mechanism_lib.flip(labels, ids, _secret(client), mechanism)


def _in_tensorflow(mechanism):
  @tf.function(
      input_signature=[
          tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int64),
          tf.TensorSpec([2], tf.int64),
      ],
      autograph=False,
  )
  def flip(labels, ids, secret):
    return label_histogram.flip(labels, ids, secret, mechanism)

  return lambda labels, ids, client: flip(labels, ids, _secret(client)).numpy()


# What hands out reports for training, and what clients run.
FORMS = {'NumPy': _in_numpy, 'TensorFlow': _in_tensorflow}
