"""A client's computation: its programs, and between their `init` and `final` local SGD.

Local SGD is fresh in every round: E epochs over the client's examples in a random order, in batches
of B of which the last of an epoch may be smaller. Its random numbers are a function of (seed,
round, client, step) alone.
"""

import collections
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import rng
from tff_noise import types
from tff_noise.clients import label_loss
from tff_noise.clients import loops
from tff_noise.clients import prediction
from tff_noise.clients import program as program_lib
from tff_noise.clients import seeds
from tff_noise.clients import step_size
from tff_noise.models import images
from tff_noise.models import keras_model
from tff_noise.uplink import bounds
from tff_noise.uplink import per_client
from tff_noise.uplink import uplink

# Public bounds of the metrics; the secure sum clips to them.
_MAX_LOSS = 100.0
_MAX_EXAMPLES = 2.0**24  # Up to here float32 counts exactly.

# What every client that trains adds to its update.
TRAINING_SUMS = (
    uplink.UplinkSum(
        'loss', np.float32, -_MAX_LOSS * 2**16, _MAX_LOSS * 2**16,
        'training loss times examples, shown each round',
    ),
    # Not `Counts`: whether training diverges depends on what the examples are.
    uplink.UplinkSum(
        'examples', np.float32, 0.0, _MAX_EXAMPLES,
        'turns the summed loss into a mean; 0 where training diverged',
    ),
    uplink.UplinkSum(
        'rejected', np.int32, 0, 1, 'clients whose update was not finite and was left out'
    ),
)


def build(
    model: keras_model.KerasModel,
    programs: tuple[program_lib.ClientProgram, ...],
    *,
    seed: int,
    training: types.LocalTraining | None = None,
    optimizer_type: tff.Type | tuple[()] = (),
    sends_model: bool = True,
    averages: bool = True,
    identified: bool = False,
    public: np.ndarray | None = None,
) -> tff.Computation:
  """Returns the computation of one client.

  Args:
    model: The model, of as many networks as it has.
    programs: What the client does; with `training` the first one has the loss.
    seed: The experiment's seed.
    training: Local SGD; None for programs without steps.
    optimizer_type: TFF type of what the federated optimizer's server sends besides the model.
    sends_model: Whether the server sends a model; if not, a program's `start` says what is trained.
    averages: Whether the update is sent, to be averaged.
    identified: Whether the reports have the client's id though there may be none.
    public: Images `[S, ...]` that the client computes on in place of its own examples; their labels
      are 0.

  Returns:
    A computation `(<broadcast=Broadcast, data=D*, local=ClientInput> -> ClientOutput)`. A client
    without examples, or whose update is not finite, contributes a zero update of weight zero.

  Raises:
    types.UsageError: If the training asks for what the first program's loss has no place for.
  """
  declared = program_lib.declared(programs)
  if training is not None:
    label_loss.require_of_labels(programs[0], training)
  base_seed = rng.tf_seed(seed, _purpose(training, public))
  broadcast_type = tff.to_type(
      program_lib.Broadcast(
          model.weights_type if sends_model else (),
          np.int32,
          program_lib.received_type(declared.receives),
          optimizer_type,
      )
  )
  input_type = tff.to_type(
      uplink.ClientInput(
          program_lib.own_type(declared.own), program_lib.messages_type(declared.messages)
      )
  )

  @tff.tensorflow.computation(broadcast_type, model.data_type, input_type)
  def client(broadcast, data, local):
    networks = _Networks(
        keras_model.build_zeros(model),
        keras_model.build_zeros(model) if any(p.uses_received_model for p in programs) else None,
    )

    @tf.function(autograph=False)
    def run(broadcast, data, local):
      examples = data.get_single_element()
      if public is not None:
        examples = {**examples, 'x': tf.constant(public), 'y': tf.zeros(len(public), tf.int32)}
      work = _Work(model, networks, programs, training, examples, averages)
      seed = seeds.fold(base_seed, examples['client'])
      if training is not None:
        seed = seeds.fold(base_seed, broadcast.round_num, examples['client'])
      known = _client(work, seed, broadcast, local)
      if training is None:
        start = _start(work, known)
        if tf.nest.flatten(start):
          keras_model.assign(networks.trained, start)
        output = _finish(work, known, _look(work, known))
      else:
        output = _finish(work, known, _train(work, known))
      if identified and not output.reports:
        output = output._replace(reports=collections.OrderedDict(client=examples['client']))
      return output

    return run(broadcast, data, local)

  return client


def _purpose(training, public):
  """What the computation's random numbers are for."""
  if training is None:
    return 'client pass'
  return 'local training' if public is None else 'training on public images'


class _Networks(NamedTuple):
  """The Keras models of a client's computation; `received` is None where no program looks at it."""

  trained: tf.keras.Model
  received: tf.keras.Model | None


class _Work(NamedTuple):
  """What a client computes with."""

  model: keras_model.KerasModel
  networks: _Networks
  programs: tuple[program_lib.ClientProgram, ...]
  training: types.LocalTraining | None
  examples: Any
  averages: bool

  def load(self, positions, seed):
    """The images at these positions: read where they are files, augmented where training does."""
    x = images.read(tf.gather(self.examples['x'], positions), self.model.input_shape)
    if self.training.augmentation == 'crop_flip':
      x = images.crop_and_flip(x, seeds.fold(seed, seeds.AUGMENT))
    return x


class _Trained(NamedTuple):
  """What local training came to.

  Attributes:
    update: From where training started to where it ended; `()` without training.
    loss: The mean of the batches' losses.
    steps: Their number.
    labels: What was trained on.
    columns: Values for each example, by name.
    carries: What each program carries.
  """

  update: Any
  loss: tf.Tensor
  steps: tf.Tensor
  labels: tf.Tensor
  columns: Mapping[str, tf.Tensor]
  carries: tuple[Any, ...]


def _client(work, seed, broadcast, local):
  """What the client knows before its first step."""
  network, input_shape = work.networks.trained, work.model.input_shape
  augments = work.training is None or work.training.augmentation == 'crop_flip'
  predict_seed = seed if work.training is None else seeds.fold(seed, seeds.PREDICT)

  def outputs(augmented, positions, weights, images_, with_features):
    x = work.examples['x'] if images_ is None else images_
    if positions is not None:
      x = tf.gather(x, positions)
    of_all = range(len(network.outputs))
    now = None
    if weights is not None:
      now = keras_model.read(network)
      keras_model.assign(network, weights)
    given = prediction.outputs(
        network, input_shape, x, predict_seed if augmented and augments else None,
        of_all if with_features else of_all[::2],
    )
    if now is not None:
      keras_model.assign(network, now)
    if not with_features:
      return (given[0] if len(given) == 1 else given), None
    return keras_model.outputs_of(given)

  return program_lib.Client(
      id=work.examples['client'],
      weights=broadcast.weights,
      round_num=broadcast.round_num,
      received=broadcast.received,
      optimizer=broadcast.optimizer,
      own=local.own,
      messages=local.messages,
      labels=work.examples['y'],
      seed=seed,
      outputs=outputs,
  )


def _start(work, client):
  """The weights that the network has at first; `()` where it gets none."""
  start = client.weights
  for program in work.programs:
    if program.start is not None:
      start = program.start(client)
  return start


def _look(work, client):
  """Programs without steps."""
  return _Trained(
      (), tf.constant(0.0), tf.constant(0), client.labels, {},
      tuple(program.init(client) for program in work.programs),
  )


def _train(work, client):
  """Runs E epochs from where the programs start."""
  network, programs, training = work.networks.trained, work.programs, work.training
  start = _start(work, client)
  keras_model.assign(network, start)
  if work.networks.received is not None:
    keras_model.assign(work.networks.received, start)
  columns = _columns(programs, client)
  carries = tuple(program.init(client) for program in programs)
  optimizer = _optimizer(training, client.round_num)
  variables = list(network.trainable_variables)
  state = optimizer.initialize([tf.TensorSpec(v.shape, v.dtype) for v in variables])
  num_examples = tf.shape(columns.labels)[0]
  single_networks = tuple(
      _single(one) for one in keras_model.networks_of(work.model, network)
  )

  def epoch(number, progress):
    seed = seeds.fold(client.seed, number)
    order = _visited(seeds.batch_order(seed, num_examples), columns.visit)
    count = num_examples if columns.visit is None else tf.shape(order)[0]
    drawn = {}
    for program in programs:
      if program.draw is not None:
        inputs = program_lib.Epoch(
            client, number, count, seeds.fold(seed, seeds.DRAW), columns.values
        )
        drawn.update(program.draw(inputs))

    def step(epoch_step, progress):
      state, total_loss, steps, carries = progress
      first = epoch_step * training.batch_size
      batch = order[first : first + training.batch_size]
      step_seed = seeds.fold(seed, seeds.FIRST_STEP + first)
      labels = tf.gather(columns.labels, batch)
      of_batch = {name: tf.gather(v, batch) for name, v in columns.values.items()}
      of_batch.update({n: v[first : first + training.batch_size] for n, v in drawn.items()})
      x = work.load(batch, step_seed)
      for program in programs:
        if program.transform is not None:
          x, found = program.transform(program_lib.Batch(x, labels, step_seed))
          of_batch.update(found)
      with tf.GradientTape() as tape:
        logits, features = keras_model.outputs_of(network(x, training=True))
        now = program_lib.Step(
            client=client, logits=logits, features=features, labels=labels, positions=batch,
            columns=of_batch, number=steps, epoch=number, epoch_step=epoch_step, seed=step_seed,
            carry=carries[0], images=x,
            view=lambda seed: work.load(batch, seeds.fold(seed, seeds.VIEW)),
            load=work.load,
            forward=lambda x: keras_model.outputs_of(network(x, training=True)),
            networks=single_networks,
            received_forward=_received_forward(work.networks.received),
        )
        loss = programs[0].loss(now)
        loss, found = loss if isinstance(loss, tuple) else (loss, ())
        loss = _one_number(loss)
      gradients = tape.gradient(
          loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
      )
      values = [v.read_value() for v in variables]
      now = now._replace(weights=values, anchor=list(start.trainable), found=found)
      carried = []
      for program, carry in zip(programs, carries, strict=True):
        if program.step is not None:
          gradients, carry = program.step(now._replace(gradients=gradients, carry=carry))
        carried.append(carry)
      if training.weight_decay:
        gradients = [g + training.weight_decay * v for g, v in zip(gradients, values, strict=True)]
      state, values = optimizer.next(state, values, gradients)
      for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
      return state, total_loss + loss, steps + 1, tuple(carried)

    num_steps = (count + training.batch_size - 1) // training.batch_size
    return loops.repeat(num_steps, step, progress)

  _, total_loss, steps, carries = loops.repeat(
      training.epochs, epoch, (state, tf.constant(0.0), tf.constant(0), carries)
  )
  return _Trained(
      update=tf.nest.map_structure(tf.subtract, start, keras_model.read(network)),
      loss=tf.math.divide_no_nan(total_loss, tf.cast(steps, tf.float32)),
      steps=steps,
      labels=columns.labels,
      columns=columns.values,
      carries=carries,
  )


def _columns(programs, client):
  """The programs' columns together."""
  together = program_lib.Columns({}, client.labels)
  for program in programs:
    if program.columns is not None:
      columns = program.columns(client)
      together = program_lib.Columns(
          {**together.values, **columns.values},
          together.labels if columns.labels is None else columns.labels,
          together.visit if columns.visit is None else columns.visit,
      )
  return together


def _visited(order, visit):
  """The examples of an epoch in their order: those that are visited, or all if none is."""
  if visit is None:
    return order
  chosen = tf.boolean_mask(order, tf.gather(visit, order))
  return tf.cond(tf.size(chosen) > 0, lambda: chosen, lambda: order)


def _optimizer(training, round_num):
  eta = step_size.of_round(training, round_num)
  if training.optimizer == 'adam':
    return tff.learning.optimizers.build_adam(eta, epsilon=1e-8)
  return tff.learning.optimizers.build_sgdm(eta, training.momentum or None)


def _single(network):
  return lambda x, training: tuple(network(x, training=training))


def _received_forward(network):
  if network is None:
    return None
  return lambda x: keras_model.outputs_of(network(x, training=False))


def _number(values):
  """0 for what is none: a nan of one client would be the mean of all."""
  values = tf.convert_to_tensor(values)
  if not values.dtype.is_floating:
    return values
  return tf.where(tf.math.is_nan(values), tf.zeros_like(values), values)


def _is_finite(values):
  # A sum is finite only if all of its terms are; it is the quicker question.
  floats = (t for t in tf.nest.flatten(values) if t.dtype.is_floating)
  return tf.math.is_finite(tf.add_n([tf.cast(tf.reduce_sum(t), tf.float32) for t in floats]))


def _moved(result, update):
  """The weights that another update than that of training comes to."""
  return tf.nest.map_structure(
      lambda weights, trained, sent: weights + (trained - sent),
      result.weights, result.update, update,
  )


def _finish(work, client, trained):
  """Packs a client's result; one that is not finite is replaced by nothing."""
  trains = work.training is not None
  finite = _is_finite([trained.loss, trained.update]) if trains else tf.constant(True)
  num_examples = _or_zeros(finite, tf.cast(tf.shape(trained.labels)[0], tf.float32))
  weight = num_examples
  of_programs, reports, own = {}, collections.OrderedDict(), dict(client.own)
  result = program_lib.Result(
      client, trained.update, (), trained.steps, num_examples, trained.loss, trained.labels,
      trained.columns, (),
  )
  alters = trains and any(program.final is not None for program in work.programs)
  if alters:
    weights = keras_model.read(work.networks.trained)
    update, weights = _or_zeros(finite, (trained.update, weights))
    result = result._replace(update=update, weights=weights)
  for program, carry in zip(work.programs, trained.carries, strict=True):
    if program.final is None:
      continue
    sent = program.final(result._replace(carry=carry))
    sent = _declared(program, sent, client.own)
    if sent.update is not None:
      if trains and program is work.programs[0]:
        # What an optimizer makes of it is for its own server.
        _require_like('trains a model and sends another update', result.update, sent.update)
        result = result._replace(weights=_moved(result, sent.update))
      result = result._replace(update=sent.update)
    if sent.weight is not None:
      weight = tf.clip_by_value(_number(tf.cast(sent.weight, tf.float32)), 0.0, num_examples)
    own.update(sent.own)
    of_programs.update({s.name: _number(sent.sums[s.name]) for s in program.sums})
    reports.update(bounds.clip(program.reports, sent.reports))
  if alters:
    # What programs made of it, too: an update that is divided by its norm may have had none.
    finite &= (weight <= 0) | _is_finite([trained.loss, result.update])
    num_examples, weight, of_programs = _or_zeros(finite, (num_examples, weight, of_programs))
  sums = collections.OrderedDict()
  if trains:
    sums.update(
        loss=_or_zeros(finite, trained.loss) * num_examples,
        examples=num_examples,
        rejected=tf.cast(tf.logical_not(finite), tf.int32),
    )
  sums.update(of_programs)
  own = program_lib.in_order(own)
  declared = (*(TRAINING_SUMS if trains else ()), *(s for p in work.programs for s in p.sums))
  # What a model that diverged says of the client's own state is not kept either.
  if trains and own:
    own = tf.cond(finite, lambda: own, lambda: program_lib.in_order(client.own))
  update = ()
  if work.averages:
    # One that is not finite, or whatever a program makes of none: in the mean, 0 times it is seen.
    update = _or_zeros(weight > 0, result.update)
  return uplink.ClientOutput(
      update,
      weight,
      collections.OrderedDict(bounds.clip(declared, sums)),
      per_client.pack_reports(work.examples, reports),
      uplink.ReturnedState(client.id, own),
  )


def _one_number(loss):
  """A loss for each example would be an error of TensorFlow's, of the loop that it is in."""
  found = tf.convert_to_tensor(loss) if loss is not None else None
  if found is None or found.dtype != tf.float32 or found.shape.rank:
    what = 'None' if found is None else f'{found.dtype.name} {found.shape}'
    raise types.UsageError(
        "a client program's `loss` has to return one float32, the mean over the batch, returned "
        + what
    )
  return found


def _declared(program, sent, own):
  """What is sent: a slip in a name would be an error of Python's where nobody looks, or none."""
  if not isinstance(sent, program_lib.Sent):
    raise types.UsageError(
        f"a client program's `final` has to return Sent, returned {type(sent).__name__}"
    )
  sent = sent._replace(**{name: getattr(sent, name) or {} for name in ('own', 'sums', 'reports')})
  for what, declared in (('sums', program.sums), ('reports', program.reports)):
    names, found = [d.name for d in declared], list(getattr(sent, what))
    if sorted(found) != sorted(names):
      raise types.UsageError(
          f'a client program declares the {what} {names} and sends {found}: Sent needs a value for '
          'each, and no other'
      )
    for d in declared:
      expected = tf.TensorSpec(d.shape, d.dtype)
      _require_like(f'declares {d.name!r} in its {what}', expected, getattr(sent, what)[d.name])
  unknown = sorted(set(sent.own) - set(own))
  if unknown:
    raise types.UsageError(
        f'a client program keeps {unknown}, of which its `own` says no initial value; it has '
        f'{sorted(own)}'
    )
  for name, value in sent.own.items():
    _require_like(f'keeps {name!r} as its own', own[name], value)
  return sent


def _require_like(what, expected, value):
  """One of another type would be an error of TensorFlow's about what is compiled of it."""
  try:
    if isinstance(expected, tf.TensorSpec):
      value = tf.convert_to_tensor(value)
    tf.nest.assert_same_structure(expected, value)
    leaves = zip(tf.nest.flatten(expected), tf.nest.flatten(value), strict=True)
    pairs = [(e, tf.convert_to_tensor(v)) for e, v in leaves]
  except (TypeError, ValueError) as error:
    raise types.UsageError(
        f'a client program {what}: `final` sends something of another structure'
    ) from error
  for e, v in pairs:
    if e.dtype != v.dtype or not e.shape.is_compatible_with(v.shape):
      raise types.UsageError(
          f'a client program {what}, {e.dtype.name} {e.shape}: `final` sends {v.dtype.name} '
          f'{v.shape}'
      )


def _or_zeros(condition, values):
  """The values, uncopied, or zeros; not a product: NaN * 0 is NaN."""
  return tf.cond(condition, lambda: values, lambda: tf.nest.map_structure(tf.zeros_like, values))
