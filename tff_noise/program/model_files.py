"""Where a run has its trained models."""

import os

from tff_noise.program import run_directory

# After the last round, and of the round that is best on the validation set.
FINAL, BEST = 'final', 'best_validation'
# The best of a state that is being written.
NEXT_BEST = 'best_validation_next'
FOLDER = 'models'


def weights(run: run_directory.RunDirectory, which: str) -> str:
  """Returns the path of the NumPy file, see `trained_models`; `which` is one of these."""
  return run.file(os.path.join(FOLDER, which + '.npz'))


def keras(run: run_directory.RunDirectory, which: str) -> str:
  """Returns the path of the Keras model."""
  return run.file(os.path.join(FOLDER, which + '.keras'))


def saved_model(run: run_directory.RunDirectory, which: str) -> str:
  """Returns the path of the SavedModel, a folder."""
  return run.file(os.path.join(FOLDER, which))
