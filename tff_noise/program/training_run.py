"""A run from its configuration to its results, once it is checked: builds, trains, writes."""

import asyncio
import dataclasses
import functools
import json
import math
import os
import sys
from collections.abc import Mapping
from importlib import metadata

from tff_noise import child
from tff_noise import params
from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.data import client_data
from tff_noise.data import scene as scene_lib
from tff_noise.federated import evaluation
from tff_noise.models import weights as weights_lib
from tff_noise.privacy import costs as costs_lib
from tff_noise.privacy import ledger as ledger_lib
from tff_noise.privacy import protection
from tff_noise.program import carried
from tff_noise.program import chosen_round
from tff_noise.program import client_validation
from tff_noise.program import clients
from tff_noise.program import code_version
from tff_noise.program import early_stopping
from tff_noise.program import flags
from tff_noise.program import ground_truth
from tff_noise.program import inputs
from tff_noise.program import ledger_seal
from tff_noise.program import managers
from tff_noise.program import model_files
from tff_noise.program import noise_secret
from tff_noise.program import progress
from tff_noise.program import results
from tff_noise.program import run_config
from tff_noise.program import run_directory
from tff_noise.program import summary
from tff_noise.program import task as task_lib
from tff_noise.program import trained_models
from tff_noise.program import training
from tff_noise.runtimes import client_error
from tff_noise.runtimes import opening
from tff_noise.uplink import uplink

_THREADS = 'TF_NUM_INTRAOP_THREADS'


def run(
    config: run_config.RunConfig,
    dataset: types.Dataset,
    scene: scene_lib.Scene,
    directory: run_directory.RunDirectory,
    made_from: Mapping[str, str] | None = None,
) -> None:
  """Builds the method, which may find mistakes, then makes the run's directory and trains.

  Args:
    config: The flags.
    dataset: What they name.
    scene: Who holds what.
    directory: Where the run is, or comes to be.
    made_from: From `inputs.recorded`, if it is there already.

  Raises:
    types.UsageError: Where the method does not fit the configuration, before anything is written.
  """
  opened = opening.opened(
      config.runtime,
      max_concurrent_clients=config.max_concurrent_clients,
      workers=config.workers,
      shows_client_errors=config.debug_client_errors,
  )
  with child.terminable(), opened:
    system_key = noise_secret.system_key(config, None if config.overwrite else directory)
    prepared = task_lib.prepare(config, dataset, scene, system_key)
    weights = initial_weights(config, prepared)
    if config.metrics_hook:
      params.named(config.metrics_hook, 'metrics_hook')  # Before a run is replaced or begun.
    if config.overwrite:
      training.initial_state(prepared.algorithm, weights)  # Likewise, of a method of the user's.
    noise = noise_secret.name(config, dataset, prepared.federation, system_key)
    made_from = inputs.recorded(config, dataset) if made_from is None else made_from
    write = functools.partial(
        _write_start, config=config, scene=scene, system_key=system_key, noise=noise,
        made_from=made_from, class_names=dataset.class_names, prepared=prepared,
    )
    hooks = []

    def begin():
      if config.metrics_hook:
        hooks.append(
            managers.build_hook(config.metrics_hook, directory.path, config.identity())
        )

    run_directory.create(directory, write, replaces=config.overwrite, begin=begin)
    # Another process may have made it meanwhile, or even finished.
    run_directory.check_same_run(directory, config.identity(), flags.defaults())
    inputs.check(directory, made_from, inputs.OR_ANOTHER)
    if noise_secret.system_key(config, directory) != system_key:
      raise types.UsageError(f'run {directory.name} was begun by another process: start again')
    with run_directory.locked(directory):
      if not run_directory.is_complete(directory):
        noise_secret.check(directory, noise)
        _check_rounding(config, directory)
        ledger_seal.check_code(directory, config.resume_other_code)
        code_version.write(
            directory.path, config.metrics_hook, repeats=_repeats_what_began(config, directory)
        )
        _say_schedule(config, prepared.algorithm)
        _say_budget(config, prepared, scene)
        evaluations = evaluations_of(prepared.task.model, dataset, scene)
        if not hooks:  # Of a run that was there.
          begin()
        hook = hooks[0] if hooks else None
        state = _train(config, prepared, scene, evaluations, weights, directory, hook)
        algorithm = prepared.algorithm
        if state.round_num < algorithm.rounds:
          print(
              f'early stopping: ended after round {state.round_num} of {algorithm.rounds}',
              file=sys.stderr,
          )
          algorithm = algorithm._replace(ends_after=state.round_num)
        confusion = _keep_final(prepared, state, evaluations, directory)
        own_models = _own_models(algorithm, state, evaluations)
        results.write(
            directory, config, scene, algorithm, state, confusion, own_models, dataset.train_rows
        )


def _say_schedule(config, algorithm):
  """Says what becomes of --rounds where a stage has rounds of fewer clients."""
  if algorithm.planned_rounds != config.rounds:
    stages = ', '.join(f'{rounds} of {name}' for name, rounds in algorithm.stages.items())
    print(
        f'schedule: {algorithm.planned_rounds} rounds ({stages}), by --stages or since not all '
        f'have as many clients as the {config.rounds} of --rounds', file=sys.stderr,
    )


def _say_budget(config, prepared, scene):
  """Says how far a target goes, and where delta is too large, before anything is released."""
  algorithm = prepared.algorithm
  if config.target_client_epsilon is not None:
    print(
        f'budget: --client_dp_noise={config.client_dp_noise:g} allows {algorithm.rounds} of '
        f'{algorithm.planned_rounds} rounds within --target_client_epsilon='
        f'{config.target_client_epsilon:g}',
        file=sys.stderr,
    )
  once = {field.protection: 1 for field in algorithm.fields}
  many = {u: n for u, n in summary.units(scene).items() if n * costs_lib.DELTA >= 1}
  costs = {unit: protection.total(once, unit, costs_lib.DELTA) for unit in many}
  for warning in costs_lib.large_deltas(costs, many):
    print(f'privacy: {warning}', file=sys.stderr)


def _write_start(folder, *, config, scene, system_key, noise, made_from, class_names, prepared):
  noise_secret.write(folder, system_key)
  run_directory.write_json(
      os.path.join(folder, 'config.json'),
      {
          'flags': config.identity(),
          'execution': {
              **config.execution(), 'repeats': opening.repeats(config.runtime),
              _THREADS: _threads(config),
          },
          'code': _first_code(config),
          'class_names': class_names,
          'inputs': made_from,
          'noise': noise,
          'method_parameters': dataclasses.asdict(config.method_params()),
          'versions': _first_versions(config),
      },
  )
  scene_lib.save(scene, os.path.join(folder, 'scene.npz'))
  if config.extend:
    _carry(config, prepared, folder)
  else:
    ledger_seal.write_key(folder)


def _first_code(config):
  """The code that begins the ledger; of rounds that are taken over, the one that made the first."""
  if not config.extend:
    return code_version.digest()
  return ledger_seal.of_run(_extended(config)).code


def _first_versions(config):
  """Likewise of packages; runs of earlier versions do not say."""
  if not config.extend:
    return _versions()
  return run_directory.read_json(_extended(config).file('config.json')).get('versions', {})


def _extended(config):
  return run_directory.RunDirectory(os.path.abspath(config.extend))


def _versions():
  packages = ('tensorflow', 'tensorflow-federated', 'numpy', 'scikit-learn', 'dp-accounting')
  return {
      'python': sys.version.split()[0], **{name: metadata.version(name) for name in packages},
  }


def _threads(config):
  """Of a client's operations, which cut sums into as many parts; '' for as many as cores."""
  return os.environ.get(_THREADS, '1' if config.runtime == 'local' else '')


def _repeats(config, directory):
  """Whether rounds come to the same bits again, here and wherever the run was so far."""
  return code_version.repeated(directory.path) and _repeats_what_began(config, directory)


def _repeats_what_began(config, directory):
  """Whether they do here and where the run was begun, by one and the same runtime."""
  begun = run_directory.read_json(directory.file('config.json')).get('execution', {})
  same = begun.get('runtime', config.runtime) == config.runtime
  return same and begun.get('repeats', True) and opening.repeats(config.runtime)


def _check_rounding(config, directory):
  """Raises `UsageError` where rounds that are released again with their noise come out otherwise.

  In the last bits, which noise hides once, and not the difference of two sums with the same.
  """
  begun = run_directory.read_json(directory.file('config.json'))
  execution = begun.get('execution', {})
  then = {'--runtime': execution.get('runtime'), **begun.get('versions', {})}
  if _THREADS in execution:  # Runs of earlier versions do not say.
    then[_THREADS] = execution[_THREADS]
  now = {'--runtime': config.runtime, _THREADS: _threads(config), **_versions()}
  changed = [f'{name} {value}' for name, value in then.items() if now.get(name) != value]
  if config.client_dp_noise and changed:
    raise types.UsageError(
        f'run {directory.name} was begun with {", ".join(changed)}: others round otherwise, and '
        'rounds released again with the same noise would tell the difference; continue with that, '
        'or begin another run (--run_name)'
    )


def _carry(config, prepared, folder):
  """Takes over the rounds of another run."""
  source = _extended(config)
  algorithm, federation = prepared.algorithm, prepared.federation
  book = ledger_lib.Ledger(algorithm.fields, uplink.to_json(algorithm.fields))
  simulated = clients.SimulatedClients(algorithm, prepared.task, federation, [], book)
  carried.carry(source, folder, training.program_state(algorithm.init(), simulated, book))
  print(f'extend: the rounds of {source.path} are taken over', file=sys.stderr)


def _train(config, prepared, scene, evaluations, weights, directory, hook):
  """Trains to the end and returns the last state."""
  algorithm, federation = prepared.algorithm, prepared.federation
  ledger = ledger_lib.Ledger(
      algorithm.fields, _declare(directory, algorithm), directory.file('ledger.jsonl'),
      ledger_seal.of_run(directory), code_version.digest(),
      repeats=_repeats(config, directory),
  )
  state_manager = managers.build_state_manager(directory)
  versions = asyncio.run(state_manager.get_versions()) or [0]
  best = trained_models.BestKeeper(
      directory, prepared.task.model, versions[-1], _validated(directory, versions[-1])
  )

  def is_over(done):
    if not config.early_stopping:
      return False  # Before rounds are looked through that become ever more.
    evaluated = training.evaluated_in_last_stage(algorithm, config.eval_every, done)
    if 'validation' not in evaluations:
      withheld = federation.withheld
      evaluated = [
          number for number in evaluated
          if number > best.round_num
          and client_validation.number_asked(prepared.task, withheld, number)
      ]
    return early_stopping.is_over(config.early_stopping, best.round_num, evaluated)

  with progress.bar(algorithm.rounds, config.log_level) as on_round:
    return asyncio.run(
        training.run(
            algorithm=algorithm,
            clients=clients.SimulatedClients(
                algorithm, prepared.task, federation,
                client_data.federation_datasets(federation), ledger,
            ),
            evaluations=evaluations,
            state_manager=state_manager,
            metrics_managers=managers.build_metrics_managers(
                directory, list(algorithm.stages), hook
            ),
            timing_manager=managers.build_timing_manager(directory),
            on_round=on_round,
            ground_truth=ground_truth.build_columns(algorithm, scene),
            eval_every=config.eval_every,
            checkpoint_every=config.checkpoint_every,
            ledger=ledger,
            initial_weights=weights,
            on_evaluated=best,
            with_state=best.with_state,
            is_over=is_over,
        )
    )


def _validated(directory, done):
  """Accuracies by round, as far as a run goes on from; the file may have rows of later ones."""
  rows = managers.read_metrics(directory)
  try:
    return chosen_round.accuracies(rows, done)
  except ValueError as error:
    raise types.UsageError(
        f'{directory.file("metrics.csv")} is damaged ({error}): bring it back, or begin the run '
        'anew (--overwrite)'
    ) from error


def _declare(directory, algorithm):
  """Writes what may leave clients, once: the ledger begins with it."""
  path, declared = directory.file('uplink.json'), uplink.to_json(algorithm.fields)
  if not os.path.exists(path):
    run_directory.write_json(path, declared)
  elif run_directory.read_json(path) != json.loads(json.dumps(declared)):
    raise types.UsageError(
        f'{path} declares other values than this code sends: it was changed, or other code made '
        'the run, which cannot be continued; begin another one (--run_name)'
    )
  return declared


def _keep_final(prepared, state, evaluations, directory):
  """Writes the trained models; returns their confusion matrix on the test set."""
  models = prepared.algorithm.evaluated(state.state, state.own_of_clients)
  # Measured again: this may be the continuation of a run that had all its rounds.
  found = {name: evaluate(models) for name, evaluate in evaluations.items()}
  # What clients validate is not asked of them again.
  columns = prepared.algorithm.report.columns(state.state)
  validation = columns.get(chosen_round.BY_CLIENTS, math.nan)
  if 'validation' in found:
    validation = found['validation']['accuracy']
  trained_models.save(
      directory, model_files.FINAL, state.round_num, validation, models,
      prepared.task.model,
  )
  return found['test']['confusion']


def _own_models(algorithm, state, evaluations):
  """How well clients' own models do on the test set, where they have some."""
  models = algorithm.own_models(state.state, state.own_of_clients)
  if not models:
    return {}
  print(f"Evaluating {len(models)} clients' own models...", file=sys.stderr)
  test = evaluations['test']
  accuracy = [
      test([algorithm_lib.Evaluated(algorithm.model, weights)])['accuracy'] for weights in models
  ]
  return {'own_models': {'clients': len(models), 'mean_test_accuracy': sum(accuracy) / len(models)}}


def initial_weights(config, prepared):
  """Pre-trained weights, where they are asked for."""
  if config.weights is None:
    return None
  if prepared.algorithm.optimizer is None:
    raise types.UsageError(
        f'--weights: {config.method} has no global model that could start from them; leave it out'
    )
  model = prepared.algorithm.model or prepared.task.model
  loaded = weights_lib.load(model, config.weights, config.seed)
  print(f'weights: {loaded.num_layers} layers from {config.weights}', file=sys.stderr)
  return loaded.weights


def evaluations_of(model, dataset, scene):
  """What models are evaluated on, by name."""
  sets = {
      'test': types.Examples(dataset.test_x, dataset.test_y),
      'validation': scene_lib.validation(dataset, scene),
  }
  evaluators = evaluation.build_evaluators(
      model, {name: examples for name, examples in sets.items() if examples is not None}
  )
  return {name: _told_by_name(name, evaluate) for name, evaluate in evaluators.items()}


def _told_by_name(name, evaluate):
  """Shares of a set stand in clients' places; where one fails, no client is to blame."""

  def evaluate_models(models):
    try:
      return evaluate(models)
    except client_error.ClientError as error:
      reason = error.reason
    raise types.RunError(f'the evaluation on the {name} set failed: {reason}')

  return evaluate_models
