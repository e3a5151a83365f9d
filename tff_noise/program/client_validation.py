"""Validation by clients, on labels as they believe them: choosing a round takes no clean label.

Each client withholds a share of its examples from training (`--client_validation_fraction`). Where
a run evaluates, every client that is there and withholds some receives the model that is evaluated
and looks with these; the server learns three sums over clients: how many, how many of them the
model gets right, and its cross-entropy. Their labels are as wrong as the others, so a perfect model
does not reach 1; for choosing between rounds, or between runs on the same clients, that is not
needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.clients import program
from tff_noise.federated import computation as computation_lib
from tff_noise.federated import task as task_lib
from tff_noise.models import keras_model
from tff_noise.models import losses
from tff_noise.program import chosen_round
from tff_noise.program import training
from tff_noise.uplink import uplink

NAME = 'client validation'
_FLAG = '--client_validation_fraction'
_EXAMPLES, _CORRECT, _LOSS = 'withheld', 'withheld_correct', 'withheld_loss'
# Of an example: a model that is surer of another class than e^-100 counts as that.
_MOST_LOSS = 100.0
_COLUMNS = (chosen_round.BY_CLIENTS, 'client_validation_loss')


def build(
    task: task_lib.Task, model: keras_model.KerasModel, largest: int
) -> computation_lib.Computation:
  """Returns what clients do with the examples that they withhold.

  `next` is `(<broadcast=B@SERVER, data={D*}@CLIENTS, local={L}@CLIENTS> ->
  <sums=<withheld=int32,withheld_correct=int32,withheld_loss=float32>@SERVER, ...>)`.

  Args:
    task: How sums are taken.
    model: What is evaluated.
    largest: How many examples a client withholds at most.

  Raises:
    types.UsageError: If nothing but updates may leave a client.
  """

  def final(result):
    client = result.client
    logits = keras_model.combined_logits(model, tf.nest.flatten(client.predict()))
    of_each = losses.example_losses(logits, client.labels)
    # A model that is not finite is as wrong as can be, or a secure sum would take it for 0.
    known = tf.math.is_finite(of_each)
    of_each = tf.where(known, tf.minimum(of_each, _MOST_LOSS), _MOST_LOSS)
    hits = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), client.labels) & known
    return program.Sent(
        sums={
            _EXAMPLES: client.num_examples,
            _CORRECT: tf.reduce_sum(tf.cast(hits, tf.int32)),
            _LOSS: tf.reduce_sum(of_each),
        }
    )

  sums = (
      uplink.UplinkSum(
          _EXAMPLES, np.int32, 0, largest, 'how many examples clients validate with'
      ),
      uplink.UplinkSum(
          _CORRECT, np.int32, 0, largest,
          'how many of them the model takes for what their label says: which round to keep',
      ),
      uplink.UplinkSum(
          _LOSS, np.float32, 0.0, _MOST_LOSS * largest, "the model's cross-entropy on them"
      ),
  )
  built = computation_lib.collect(
      NAME, task, program.ClientProgram(final=final, sums=sums), model=model
  )
  return built._replace(on_withheld=True)


def of(
    built: algorithm_lib.Algorithm,
    task: task_lib.Task,
    withheld: Sequence[types.ClientExamples],
    eval_every: int,
) -> algorithm_lib.Algorithm:
  """Returns the algorithm whose clients validate what is evaluated, in the rounds where it is.

  Args:
    built: The algorithm.
    task: What it was built from.
    withheld: What each client withholds, some at least.
    eval_every: See `training.is_evaluated`.

  Raises:
    types.UsageError: If what is evaluated is no model that the server has, or if nothing but
      updates may leave a client.
  """
  model = built.model or task.model
  _of_server(built, built.init(), model)  # Told before anything runs.
  computation = build(task, model, max(len(c.y) for c in withheld))

  def round_(state, clients):
    new = built.round(state, clients)
    # What is no next state is told by whoever asked for it.
    if new is state or not isinstance(new, algorithm_lib.State):
      return new
    number = state.round_num + 1
    if not (
        training.is_evaluated(built, number, eval_every)
        and number_asked(task, withheld, number)  # Those that are there may withhold nothing.
    ):
      return new.record(**dict.fromkeys(_COLUMNS, _NOTHING))
    weights = _of_server(built, new._replace(round_num=number), model)
    shown = new._replace(models={**new.models, algorithm_lib.MODEL: weights})
    sums = clients.run(computation, shown, clients.present).sums
    found = (sums[_CORRECT] / sums[_EXAMPLES], sums[_LOSS] / sums[_EXAMPLES])
    return new.record(**dict(zip(_COLUMNS, map(np.float32, found), strict=True)))

  def columns(state):
    values = {name: float(state.records[name]) for name in _COLUMNS}
    own = built.report.columns(state)
    taken = sorted(own.keys() & values.keys())
    if taken:
      raise types.UsageError(
          f"the columns {', '.join(taken)} of the method's report are those of what clients "
          'withhold: call them otherwise'
      )
    return {**values, **own}

  asked = [
      number_asked(task, withheld, number) for number in range(1, built.rounds + 1)
      if training.is_evaluated(built, number, eval_every)
  ]
  asked = [number for number in asked if number]
  return built._replace(
      round=round_,
      computations=(*built.computations, computation),
      records={**built.records, **dict.fromkeys(_COLUMNS, _NOTHING)},
      times={**built.times, NAME: len(asked)},
      cohorts={**built.cohorts, NAME: min(asked, default=0)},
      report=built.report._replace(columns=columns),
  )


def number_asked(
    task: task_lib.Task, withheld: Sequence[types.ClientExamples], round_num: int
) -> int:
  """Returns how many clients that are there in a round withhold something."""
  return sum(len(withheld[client].y) > 0 for client in task.present(round_num)) if withheld else 0


_NOTHING = np.float32(np.nan)


class _Kept(Sequence):
  """What clients keep, for who may not look."""

  def __len__(self):
    raise types.UsageError(
        f'{_FLAG}, or a --scene that was drawn with it, is for methods that are evaluated by a '
        'model of the server, and this one is by what clients keep: leave it out, or use another '
        '--method or --base'
    )

  def __getitem__(self, index):
    return len(self)


def _of_server(built, state, model) -> Any:
  """The weights that are evaluated."""
  evaluated = built.evaluated(state, _Kept())
  if len(evaluated) != 1 or evaluated[0].model not in (None, model):
    raise types.UsageError(
        f'{_FLAG}, or a --scene that was drawn with it, is for methods that are evaluated by one '
        'model of the server: leave it out, or use another --method'
    )
  return evaluated[0].weights
