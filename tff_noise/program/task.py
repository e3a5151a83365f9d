"""From the configuration to what a method is built from, and to its schedule."""

import functools
import json
from typing import NamedTuple

import numpy as np

from tff_noise import errors
from tff_noise import params
from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.algorithms import averaged_model
from tff_noise.algorithms import catalog
from tff_noise.data import scene as scene_lib
from tff_noise.federated import aggregation
from tff_noise.federated import own_aggregation
from tff_noise.federated import stacked
from tff_noise.federated import task as task_lib
from tff_noise.models import architectures
from tff_noise.models import keras_model
from tff_noise.models import precision
from tff_noise.optimizers import catalog as optimizers
from tff_noise.privacy import protection
from tff_noise.program import claims
from tff_noise.program import client_noise
from tff_noise.program import client_validation
from tff_noise.program import effect
from tff_noise.program import noise_secret
from tff_noise.program import own_report
from tff_noise.program import private_labels
from tff_noise.program import run_config
from tff_noise.program import server_images
from tff_noise.program import watched_loss


class Prepared(NamedTuple):
  """A method, ready to run.

  Attributes:
    federation: The clients, with the labels they train on.
    task: What the algorithm was built from.
    algorithm: What runs.
  """

  federation: types.Federation
  task: task_lib.Task
  algorithm: algorithm_lib.Algorithm


def prepare(
    config: run_config.RunConfig,
    dataset: types.Dataset,
    scene: scene_lib.Scene,
    system_key: bytes | None = None,
) -> Prepared:
  """Builds the method of `config` on a scene.

  Args:
    config: The flags.
    dataset: What the scene is of.
    scene: Who holds what.
    system_key: See `noise_secret`; not needed where nothing is run.

  Raises:
    types.UsageError: If the parameters do not fit the task.
  """
  private = config.training_labels == 'private'
  # Of labels that are communicated the epsilon is read.
  reported = private or not effect.problem_of(config, 'label_epsilon')
  if reported or config.client_dp_noise:
    server_images.require_apart(dataset, scene)
  federation = scene_lib.federation(dataset, scene, config.seed)
  if private:
    federation = private_labels.flip(federation, config.label_epsilon, dataset.num_classes)
  task = build(config, dataset, federation, scene_lib.validation(dataset, scene), system_key)
  algorithm = _algorithm(config, task)
  if algorithm.own and config.client_dp_noise:
    # Known once it is built, and another claim is another method.
    task = build(
        config, dataset, federation, task.validation, system_key, keeps_state=True
    )
    algorithm = _algorithm(config, task)
    if config.target_client_epsilon is not None and config.client_sampling == protection.FIXED:
      raise types.UsageError(
          '--target_client_epsilon counts on cohorts of a fixed size, and what clients keep '
          f'between rounds (--method={config.method}, or its --base) tells of them: use '
          '--client_sampling=poisson or cyclic, or --client_dp_noise without a target'
      )
  claims.check(config.method, algorithm, task)
  if ':' in config.method:
    own_report.check(config.method, algorithm, scene.num_clients)
  if config.average_models:
    # Of what was released, so nothing to be checked.
    algorithm = averaged_model.of(algorithm, task.model, config.average_models)
  if federation.withheld:
    algorithm = client_validation.of(algorithm, task, federation.withheld, config.eval_every)
  stages = sum(bool(rounds) for rounds in algorithm.stages.values())
  noisy = [c.name for c in algorithm.used if c.is_noisy]
  if config.client_dp_noise and (stages > 1 or len(noisy) > 1):
    # The noise is a function of how often a process has run: two would draw the same.
    raise types.UsageError(
        '--client_dp_noise is for methods of one stage, with one computation that trains, and '
        f'--method={config.method} has {stages} and {len(noisy)}: use another method'
    )
  shown = [
      f.name.removesuffix(' of single clients') for f in algorithm.fields
      if f.disclosure.shows_single_clients
  ]
  # Told of a method of one's own, too, that does not say so by itself.
  if shown and not config.allow_per_client_disclosure:
    raise types.UsageError(
        f'--method={config.method} shows {", ".join(shown)} of single clients: allow it with '
        '--allow_per_client_disclosure, or use another method'
    )
  if private:
    algorithm = private_labels.declare(algorithm, task)
  if config.debug_client_errors:
    algorithm = algorithm.showing_errors()
  algorithm = algorithm._replace(
      ends_after=client_noise.rounds_within(config, algorithm.fields, algorithm.rounds)
  )
  for round_num in range(1, algorithm.rounds + 1 if config.arrivals else 1):
    if not len(task.present(round_num)):
      raise types.UsageError(f'--arrivals: no client is there in round {round_num}')
  cohorts = algorithm.smallest_cohorts(task)
  for computation in algorithm.used:
    computation.require_company(cohorts[computation.name])
  return Prepared(federation, task, algorithm)


def _algorithm(config, task):
  """The method; one of the user's own has to have the loss that flags ask for."""
  entry, parameters = catalog.entry(config.method), config.method_params()
  if ':' not in config.method:
    return entry.build(task, parameters)
  algorithm = _with_its_loss(config, task, entry, parameters)
  optimizers = [c.optimizer.name for c in algorithm.used if c.optimizer is not None]
  if config.base and task.optimizer.name not in optimizers:
    raise types.UsageError(
        f'--base={config.base}: --method={config.method} takes a base and does not use it: let it '
        "train on the task's optimizer, or leave takes_base out of its entry"
    )
  _require_entry(config, task, algorithm)
  return algorithm


def _require_entry(config, task, algorithm):
  """What an entry does not say, flags are not refused for that would change nothing."""
  stacked_updates = any(f.name == stacked.UPDATES for f in algorithm.fields)
  if stacked_updates and config.aggregation != 'mean':
    raise types.UsageError(
        f'--aggregation={config.aggregation}: the server of --method={config.method} sees the '
        'models of single clients, of which a sum keeps nothing: leave it out, and give the entry '
        'compares_models=True'
    )
  unknown = sorted(task.stages.keys() - algorithm.stages.keys())
  if unknown:
    raise types.UsageError(
        f'--stages={unknown[0]}:...: --method={config.method} has no stage of that name: let it '
        'take lengths from task.stages, or leave stages out of its entry'
    )
  if algorithm.report.labels and config.training_labels == 'private':
    raise types.UsageError(
        f'--training_labels=private: clients of --method={config.method} keep other labels '
        f'({algorithm.report.labels}), and the loss on flipped ones is right only as long as they '
        'stay: leave it out, and give the entry corrects_labels=True'
    )


def _with_its_loss(config, task, entry, parameters):
  if task.training.loss == types.CrossEntropy():
    return entry.build(task, parameters)
  form, looked = watched_loss.watched(task.training.loss)
  seen = task._replace(training=task.training._replace(loss=form))
  algorithm = entry.build(seen, parameters)
  if not looked():
    raise types.UsageError(
        f'--method={config.method}: its loss does not take `task.training.loss`, so --temperature, '
        '--label_smoothing and the flips of --training_labels=private would be left out of it: '
        'give it to tff_noise.models.losses as `form`, or leave these flags out'
    )
  return algorithm


def _own_aggregation(place):
  """That of a factory that a function of TFF's, or the user's, returns."""
  name, build_factory = f'--aggregation={place}', params.named(place, 'aggregation')
  try:
    factory = build_factory()
  except Exception as error:  # A function of the user's may raise whatever it likes.
    raise types.UsageError(
        f'{name} is called without arguments, and has to return a factory of tff.aggregators '
        f'({errors.named_line(error)})'
    ) from error
  return own_aggregation.of_factory(factory, name)


def build(
    config: run_config.RunConfig,
    dataset: types.Dataset,
    federation: types.Federation,
    validation: types.Examples | None = None,
    system_key: bytes | None = None,
    *,
    keeps_state: bool = False,
) -> task_lib.Task:
  """Returns the task of `config` on `dataset`, held by `federation`.

  Args:
    config: The flags.
    dataset: What kind of images and classes there are.
    federation: Who holds what.
    validation: Clean examples that the server holds.
    system_key: See `noise_secret`.
    keeps_state: See `client_noise.of_config`.
  """
  # An algorithm may build models, and gets no images with that.
  build_model = functools.partial(_build_model, config, dataset.without_examples())
  secure = config.aggregation == 'secure_sum'
  if config.client_dp_noise:
    aggregate = aggregation.dp_mean(
        client_noise.of_config(config, len(federation.clients), keeps_state=keeps_state),
        noise_key=noise_secret.of_run(config, dataset, federation, system_key),
        secure=secure,
    )
  elif secure:
    aggregate = aggregation.secure_weighted_mean(
        update_bound=config.update_bound, max_examples=int(federation.sizes.max())
    )
  elif ':' in config.aggregation:
    aggregate = _own_aggregation(config.aggregation)
  else:
    aggregate = aggregation.weighted_mean()
  task = task_lib.Task(
      model=build_model(config.model),
      training=config.local_training,
      aggregation=aggregate,
      label_privacy=task_lib.LabelPrivacy(
          config.label_epsilon, config.label_prior
      ),
      rounds=config.rounds,
      stages=config.stage_lengths(),
      clients_per_round=config.clients_per_round,
      availability=config.availability(len(federation.clients), federation.client_names),
      client_sizes=federation.sizes,
      seed=config.seed,
      cohort_secret=noise_secret.of_cohorts(system_key, config.seed),
      validation=validation,
      public=dataset.public,
      build_model=build_model,
      sampling=config.client_sampling,
  )
  if config.training_labels == 'private':
    task = private_labels.train_on_reports(task)
  if not config.base:
    return task
  base = optimizers.OPTIMIZERS[config.base]
  return task._replace(optimizer=base.build(task, config.base_params()))


def _build_model(config, dataset, architecture):
  """The model of this architecture for these images."""
  described = _described(config, dataset, architecture)
  takes = described.data_type.element['x'].dtype
  if np.dtype(takes) != dataset.train_x.dtype and dataset.train_x.dtype.kind != 'S':
    raise types.UsageError(
        f'--model={architecture} takes {np.dtype(takes).name}, and the data are '
        f'{dataset.train_x.dtype.name}: give its tf.keras.Input that dtype, and scale inside'
    )
  # Of image files the size is the model's to say, and pixels are brought to it.
  shape, takes = dataset.train_x.shape[1:], described.input_shape
  fits = len(takes) == len(shape) and all(t in (None, s) for t, s in zip(takes, shape, strict=True))
  if dataset.train_x.dtype.kind != 'S' and not fits:
    raise types.UsageError(
        f'--model={architecture} takes images or features of the shape {takes}, and the data are '
        f'{shape}: the first argument of its function is their shape'
    )
  if described.num_classes != dataset.num_classes:
    raise types.UsageError(
        f'--model={architecture} has {described.num_classes} logits for {dataset.num_classes} '
        'classes: the second argument of its function is how many there are'
    )
  return described


def _described(config, dataset, architecture):
  # Image files are brought to their size when they are read, pixels in the model.
  image_files = dataset.train_x.dtype.kind == 'S'
  # A function of the user's own need not know of features.
  features = {'dtype': 'float32'} if dataset.train_x.dtype.kind == 'f' else {}
  function = _architecture(architecture)

  def build():
    with precision.mixed_precision(config.mixed_precision):
      return function(
          dataset.image_shape,
          dataset.num_classes,
          norm=config.norm,
          pixel_scale=dataset.pixel_scale,
          pixel_offset=dataset.pixel_offset,
          image_size=0 if image_files else config.image_size,
          **features,
      )

  if ':' in architecture:
    return _own_model(architecture, build, image_files)
  try:
    network = build()
  except ValueError as error:
    if isinstance(error, types.UsageError):
      raise
    if features:
      raise types.UsageError(
          f'--model={architecture} takes images, and the data are features of shape '
          f'{dataset.image_shape}: use --model=mlp, or one of your own (package.module:function)'
      ) from error
    # Keras says in many lines that a layer has nothing left to work on.
    raise types.UsageError(
        f'--model={architecture} cannot take images of {config.image_size or dataset.image_shape}: '
        'use a larger --image_size, or a smaller model'
    ) from error
  try:
    return keras_model.from_keras(network, image_files=image_files)
  except ValueError as error:
    raise types.UsageError(f'--model={architecture}: {error}') from error


def _own_model(place, build, image_files):
  """What a function of the user's own makes; whatever goes wrong in it is told in one line."""
  try:
    network = build()
    described = keras_model.from_keras(network, image_files=image_files)
  except types.UsageError:
    raise
  except Exception as error:
    what = _first_line(error)
    if not isinstance(error, ValueError):
      what += (
          ': it is called as the functions of tff_noise/models/architectures.py, and returns a '
          'functional Keras model'
      )
    raise types.UsageError(f'--model={place}: {what}') from error
  try:
    json.dumps(described.config)
    keras_model.build_zeros(described)
    kept = _are_initial(network, keras_model.build_seeded(described, seed=0))
  except Exception as error:
    raise types.UsageError(
        f'--model={place} cannot be built from its configuration, as clients do '
        f'({_first_line(error)}): register layers of your own with '
        'tf.keras.saving.register_keras_serializable, and make a layer of what is a Lambda or a '
        'function of tf'
    ) from error
  if not kept:
    raise types.UsageError(
        f'--model={place}: its function sets weights, and a run draws its own from --seed: leave '
        'that out, and give them by --weights'
    )
  return described


def _are_initial(network, fresh):
  """Whether all weights that are the same number at first still are; of drawn ones nobody knows."""
  pairs = zip(network.get_weights(), fresh.get_weights(), strict=True)
  return all(np.ptp(new) or np.array_equal(own, new) for own, new in pairs if new.size > 1)


def _first_line(error):
  known = isinstance(error, ValueError)
  return errors.first_line(error) if known else errors.named_line(error)


def _architecture(name):
  """The function that builds it, of this package or the user's own."""
  if ':' in name:
    return params.named(name, 'model')
  if name not in architectures.MODELS:
    known = ', '.join(architectures.MODELS)
    raise types.UsageError(f'there is no model {name!r}, it must be one of {known}')
  return architectures.MODELS[name]
