"""The empirical audit of the label mechanism, as runs use it."""

from tff_noise.audit import finding
from tff_noise.privacy import empirical_audit
from tff_noise.privacy import mechanism as mechanism_lib

FORMS = ('driver', 'client')
# A seed that no run has, so that no report of a run is asked for.
_SEED = -1


def audit(epsilon: str, num_classes: int, flips: str, trials: int, alpha: float) -> finding.Audit:
  """Audits randomised response.

  Args:
    epsilon: The claim, decimal text.
    num_classes: K.
    flips: One of `FORMS`: who flips labels.
    trials: Reports for each world.
    alpha: Probability of a false alarm, in (0, 1).

  Raises:
    types.UsageError: If there is no such mechanism.
  """
  mechanism = mechanism_lib.randomized_response(epsilon, num_classes)
  report = _in_client(mechanism) if flips == 'client' else _in_driver(mechanism)
  findings = empirical_audit.audit(report, mechanism, trials=trials, alpha=alpha)
  subject = {
      'claimed epsilon': mechanism.epsilon,
      'epsilon of the integer table': f'{mechanism.actual_epsilon:.12g}',
      'classes': str(num_classes),
      'keeps a label with probability': f'{mechanism.keep_probability:.9f}',
      'flips': _RANDOMNESS[flips],
      'reports for each world': f'{trials:,}',
      'probability of any false alarm': f'{alpha:g}',
  }
  return finding.Audit(
      f'Audit of randomised response: epsilon {mechanism.epsilon}, {num_classes} classes, flipped '
      f'by the {flips}',
      findings,
      (finding.about(subject),),
      {'mechanism': {**mechanism._asdict(), 'flips': flips}, 'trials': trials, 'alpha': alpha},
  )


_RANDOMNESS = {
    'driver': 'in the data preparation, by HMAC-SHA256 of the example under a key',
    'client': "in the client's TensorFlow computation, by Threefry of the example under a secret",
}


def _in_driver(mechanism):
  key = mechanism_lib.simulation_key(_SEED)
  return lambda labels, ids, client: mechanism_lib.flip_labels(
      labels, ids, client=client, mechanism=mechanism, key=key
  )


def _in_client(mechanism):
  import tensorflow as tf

  from tff_noise.federated import client_flips

  @tf.function(
      input_signature=[
          tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int64),
          tf.TensorSpec([2], tf.int64),
      ],
      autograph=False,
  )
  def flip(labels, ids, secret):
    return client_flips.flip(labels, ids, secret, mechanism)

  return lambda labels, ids, client: flip(
      labels, ids, client_flips.simulation_secret(_SEED, client)
  ).numpy()
