"""The local step size of a round."""

import math

import tensorflow as tf

from tff_noise import types


def factor(schedule: types.Schedule, round_num: tf.Tensor) -> tf.Tensor | float:
  """Returns float32 `[]`, by what the step size is multiplied; 1.0 where it is constant.

  Args:
    schedule: Which.
    round_num: int32 `[]`, 1 in the run's first round.
  """
  if schedule.kind == 'constant':
    return 1.0
  if schedule.kind == 'cosine':
    (last,) = schedule.rounds
    done = tf.cast(tf.minimum(round_num, last) - 1, tf.float32) / last
    return (1 + tf.cos(math.pi * done)) / 2
  if schedule.kind == 'steps':
    times = tf.reduce_sum(tf.cast(round_num > tf.constant(schedule.rounds), tf.float32))
  else:
    times = tf.cast(round_num - 1, tf.float32)
  return tf.pow(tf.constant(schedule.gamma), times)


def of_round(training: types.LocalTraining, round_num: tf.Tensor) -> tf.Tensor | float:
  """Returns eta of the round, float32 `[]`."""
  return training.learning_rate * factor(training.schedule, round_num)
