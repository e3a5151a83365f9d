"""The code of a trained model that has layers or functions of the user's own."""

from collections.abc import Sequence

from tff_noise import params
from tff_noise.models import portable
from tff_noise.program import flags
from tff_noise.program import inputs
from tff_noise.program import run_directory


def load_code(run: run_directory.RunDirectory, models: Sequence[portable.Trained]) -> None:
  """Imports what a run's `--model` names, if a model needs it to be built.

  Raises:
    types.UsageError: If it is other code than the run was made with, or is not there.
  """
  if not any(portable.has_own_parts(trained) for trained in models):
    return
  config = flags.config_of_run(run_directory.read_json(run.file('config.json'))['flags'])
  if ':' in config.model:
    inputs.check_model(run, config)
    params.named(config.model, 'model')
