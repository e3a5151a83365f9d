"""One run from its configuration to its summary: checks, prepares, trains, reports."""

import dataclasses
import os
import sys

from tff_noise import child
from tff_noise import heaps
from tff_noise import loading
from tff_noise import types
from tff_noise.data import scene as scene_lib
from tff_noise.program import code_version
from tff_noise.program import data as data_lib
from tff_noise.program import ground_truth
from tff_noise.program import results
from tff_noise.program import run_config
from tff_noise.program import run_directory
from tff_noise.program import summary


def run(config: run_config.RunConfig) -> None:
  """Runs or continues what `config` describes, and prints its summary.

  Raises:
    types.UsageError: Where the configuration, the data, the method or an existing run do not fit
      together. Until all of it is checked, nothing is written.
  """
  directory = run_directory.locate(config.root_dir, config.name())
  if directory.exists:
    if not config.resume:
      raise types.UsageError(f'run {directory.name} exists and --noresume was given')
    run_directory.check_same_run(directory, config.identity())
  dataset = data_lib.load_dataset(config)
  saved = directory.file('scene.npz') if directory.exists else None
  scene = data_lib.load_scene(config, dataset, saved)
  if _is_complete(directory):
    print(f'Run {directory.name} is complete; nothing is left to do.')
  else:
    for note in scene.notes:
      print(f'scene: {note}', file=sys.stderr)
    _prepare_and_train(config, dataset, scene, directory)
  print(summary.text(directory))


def _is_complete(directory):
  # Written last of all.
  return os.path.exists(directory.file('summary.json'))


def _write_start(folder, config, scene):
  from importlib import metadata

  packages = ('tensorflow', 'tensorflow-federated', 'numpy', 'scikit-learn', 'dp-accounting')
  run_directory.write_json(
      os.path.join(folder, 'config.json'),
      {
          'flags': config.identity(),
          'execution': config.execution(),
          'code': code_version.digest(),
          'method_parameters': dataclasses.asdict(config.method_params()),
          'versions': {
              'python': sys.version.split()[0],
              **{name: metadata.version(name) for name in packages},
          },
      },
  )
  scene_lib.save(scene, os.path.join(folder, 'scene.npz'))


def _prepare_and_train(config, dataset, scene, directory):
  """Builds the method, which may find mistakes, then makes the run's directory and trains."""
  # Before TensorFlow is imported, or it prints pages about hardware that is not there.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  heaps.limit()
  print('Loading TensorFlow Federated...', file=sys.stderr)
  with loading.large_modules():
    from tff_noise.program import task as task_lib
    from tff_noise.runtimes import opening

  opened = opening.opened(
      config.runtime,
      max_concurrent_clients=config.max_concurrent_clients,
      workers=config.workers,
  )
  with child.terminable(), opened:
    federation, task, schedule = task_lib.prepare(config, dataset, scene)
    weights = _initial_weights(config, task)
    run_directory.create(directory, lambda folder: _write_start(folder, config, scene))
    # Another process may have made it meanwhile, or even finished.
    run_directory.check_same_run(directory, config.identity())
    with run_directory.locked(directory):
      if not _is_complete(directory):
        evaluations = _evaluations(task.model, dataset, scene)
        state = _train(config, federation, scene, schedule, evaluations, weights, directory)
        own_models = _own_models(schedule, state, evaluations)
        results.write(directory, config, scene, schedule, state, own_models)


def _train(config, federation, scene, schedule, evaluations, weights, directory):
  """Trains to the end and returns the last state."""
  import asyncio

  from tff_noise.data import client_data
  from tff_noise.federated import uplink
  from tff_noise.privacy import ledger
  from tff_noise.program import managers
  from tff_noise.program import progress
  from tff_noise.program import training

  declared = uplink.to_json(schedule.fields)
  run_directory.write_json(directory.file('uplink.json'), declared)
  with progress.bar(sum(stage.rounds for stage in schedule.stages)) as on_round:
    return asyncio.run(
        training.run_schedule(
            schedule=schedule,
            federation=federation,
            datasets=client_data.federation_datasets(federation),
            evaluations=evaluations,
            state_manager=managers.build_state_manager(directory),
            metrics_managers=managers.build_metrics_managers(directory),
            timing_manager=managers.build_timing_manager(directory),
            on_round=on_round,
            ground_truth=ground_truth.build_columns(schedule, scene),
            eval_every=config.eval_every,
            checkpoint_every=config.checkpoint_every,
            ledger=ledger.Ledger(schedule.fields, declared, directory.file('ledger.jsonl')),
            initial_weights=weights,
        )
    )


def _own_models(schedule, state, evaluations):
  """How well clients' own models do on the test set, where they have some."""
  from tff_noise.program import training

  models = training.own_models(schedule, state)
  if not models:
    return {}
  print(f"Evaluating {len(models)} clients' own models...", file=sys.stderr)
  accuracy = [float(evaluations['test'](weights)['accuracy']) for weights in models]
  return {'own_models': {'clients': len(models), 'mean_test_accuracy': sum(accuracy) / len(models)}}


def _initial_weights(config, task):
  """Pre-trained weights, where they are asked for."""
  if config.weights is None:
    return None
  from tff_noise.models import weights

  loaded = weights.load(task.model, config.weights, config.seed)
  print(f'weights: {loaded.num_layers} layers from {config.weights}', file=sys.stderr)
  return loaded.weights


def _evaluations(model, dataset, scene):
  """What the global model is evaluated on, by name."""
  from tff_noise.federated import evaluation

  sets = {
      'test': types.Examples(dataset.test_x, dataset.test_y),
      'validation': scene_lib.validation(dataset, scene),
  }
  evaluate = evaluation.build_evaluation(model)
  return {
      name: evaluation.build_evaluator(evaluate, examples)
      for name, examples in sets.items()
      if examples is not None
  }


