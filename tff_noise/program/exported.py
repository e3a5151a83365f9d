"""A run's trained models as Keras models and SavedModels, which load without this package."""

import contextlib
import errno
import io
import os
import tempfile

from tff_noise import loading
from tff_noise import types
from tff_noise.program import model_files
from tff_noise.program import run_directory


def write(run: run_directory.RunDirectory) -> list[str]:
  """Writes what is not there yet; returns the paths within the run directory, sorted.

  `models/final.keras` and the folder `models/final`, a SavedModel, are the model after the last
  round; `models/best_validation` of the round that is best on the validation set. Both take raw
  pixels (uint8) to probabilities. A Keras file is missing where a model has layers or functions
  that Keras does not know; all are where clients have models of their own, which
  `models/final.npz` holds.

  Raises:
    types.UsageError: If the models cannot be read, or the run cannot be written to.
  """
  found = []
  for which in (model_files.FINAL, model_files.BEST):
    paths = model_files.saved_model(run, which), model_files.keras(run, which)
    if os.path.exists(model_files.weights(run, which)) and not os.path.exists(paths[0]):
      _write(run, which, *paths)
    found += filter(os.path.exists, paths)
  return sorted(os.path.relpath(path, run.path) for path in found)


def _write(run, which, saved_model, keras):
  # These load TensorFlow, which tells of hardware that is not there.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  with loading.large_modules():
    from tff_noise.models import portable
    from tff_noise.program import managers
    from tff_noise.program import own_model
    from tff_noise.program import trained_models

  models = trained_models.load(run, which).models
  if len(models) > 1:
    return
  own_model.load_code(run, models)
  model, folder = portable.build(models[0]), run.file(model_files.FOLDER)
  try:
    with (
        managers.full_disk_is_an_os_error(),
        tempfile.TemporaryDirectory(dir=folder, prefix='.partial-') as partial,
    ):
      if portable.is_stock(model):
        model.save(os.path.join(partial, 'model.keras'))
        os.replace(os.path.join(partial, 'model.keras'), keras)
      # Keras tells on stdout what it has exported.
      with contextlib.redirect_stdout(io.StringIO()):
        model.export(os.path.join(partial, 'saved_model'))
      try:
        os.rename(os.path.join(partial, 'saved_model'), saved_model)
      except OSError as error:
        # Another process may have been as quick: it has the same.
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
          raise
  except OSError as error:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
      raise
    raise types.UsageError(f'{folder} cannot be written to ({error.strerror})') from error
