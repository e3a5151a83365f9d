"""One run from its configuration to its summary: checks, prepares, trains, reports."""

import dataclasses
import os
import sys

from absl import logging

from tff_noise import heaps
from tff_noise import loading
from tff_noise import types
from tff_noise.program import data as data_lib
from tff_noise.program import extension
from tff_noise.program import flags
from tff_noise.program import inputs
from tff_noise.program import ledger_seal
from tff_noise.program import notices
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
  continued = directory.exists and not config.overwrite
  if continued:
    if not config.resume:
      raise types.UsageError(f'run {directory.name} exists and --noresume was given')
    run_directory.check_same_run(directory, config.identity(), flags.defaults())
    if config.extend:
      print(
          f'extend: run {directory.name} is there already and goes on by itself; --extend='
          f'{config.extend} is not looked at', file=sys.stderr,
      )
  else:
    run_directory.require_replaceable(directory)
  source = None
  if config.extend and not continued:
    source = run_directory.RunDirectory(os.path.abspath(config.extend))
    extension.check(config, source)
  if not continued and source is None and config.scene is None:
    config.check_openset_q()  # Before data are read, which may take minutes.
  dataset = data_lib.load_dataset(config)
  made_from = inputs.recorded(config, dataset)  # Reads all images that are files.
  if continued:
    inputs.check(directory, made_from, inputs.OR_ANOTHER)
  elif source:
    inputs.check(source, made_from, ', or leave --extend out')
  else:
    source = extension.find(config, made_from)
    config = dataclasses.replace(config, extend=source and source.path)
  saved = directory if continued else source
  saved = saved and saved.file('scene.npz')
  scene = data_lib.load_scene(config, dataset, saved)
  if continued:
    # After its files were read, which says best what is wrong with them; and of a finished run too,
    # whose numbers are not those of this code.
    ledger_seal.check_code(directory, config.resume_other_code)
  if continued and run_directory.is_complete(directory):
    print(f'Run {directory.name} is complete; nothing is left to do.')
  else:
    inputs.require(config, begun=saved is not None)
    data_lib.require_validation(config, dataset, scene)
    for note in [*(f'scene: {note}' for note in scene.notes), *notices.of(config, dataset)]:
      print(note, file=sys.stderr)
    _prepare_and_train(config, dataset, scene, directory, made_from)
  print(summary.text(directory))


def _prepare_and_train(config, dataset, scene, directory, made_from):
  """Loads what computes, which takes seconds, and hands over to it."""
  debug = config.log_level == 'debug'
  # Before TensorFlow is imported, or it prints pages about hardware that is not there.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '0' if debug else '3')
  if debug:
    logging.set_verbosity(logging.DEBUG)  # What TFF tells.
  heaps.limit()
  if config.log_level != 'quiet':
    print('Loading TensorFlow Federated...', file=sys.stderr)
  with loading.large_modules():
    from tff_noise.program import training_run

  training_run.run(config, dataset, scene, directory, made_from)
