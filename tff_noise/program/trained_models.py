"""The trained models of a run, in NumPy files: the last ones, and those of the best validation.

They are the models that the run evaluates: one for most methods, every client's of RHFL. The files
are small and quickly written; `bin/train` and `bin/evaluate` make Keras models and SavedModels of
them.
"""

import contextlib
import io
import json
import os
import sys
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tff_noise import types
from tff_noise.algorithms import algorithm as algorithm_lib
from tff_noise.models import keras_model
from tff_noise.models import portable
from tff_noise.program import chosen_round
from tff_noise.program import model_files
from tff_noise.program import run_directory

_WHY_NOT = {
    model_files.FINAL: 'it is written when a run ends; once removed, it takes the run anew '
    '(--overwrite)',
    model_files.BEST: 'it is written where there is a validation set (--validation_fraction, '
    '--validation_dir or --client_validation_fraction)',
}


class Saved(NamedTuple):
  """What a file holds.

  Attributes:
    round_num: After which round the models were like this.
    validation_accuracy: In [0, 1]; nan where there is no validation set.
    models: At least one.
  """

  round_num: int
  validation_accuracy: float
  models: Sequence[portable.Trained]


def save(
    run: run_directory.RunDirectory,
    which: str,
    round_num: int,
    validation_accuracy: float,
    models: Sequence[algorithm_lib.Evaluated],
    default: keras_model.KerasModel,
) -> None:
  """Writes models, whole or not at all.

  Args:
    run: Of which run.
    which: `model_files.FINAL` or `BEST`.
    round_num: After which round.
    validation_accuracy: In [0, 1], or nan.
    models: At least one.
    default: What weights are of whose model is None.
  """
  recipes, arrays, about = [], {}, []
  for i, (model, weights) in enumerate(models):
    one = portable.of(model or default, weights)
    recipe = {'config': one.config, 'combination': one.combination, 'draws': one.draws}
    if recipe not in recipes:
      recipes.append(recipe)
    about.append({
        'recipe': recipes.index(recipe), 'trainable': len(one.trainable),
        'non_trainable': len(one.non_trainable),
    })
    for kind in ('trainable', 'non_trainable'):
      arrays |= {f'{i}/{kind}/{k}': values for k, values in enumerate(getattr(one, kind))}
  content = {
      'round': round_num, 'validation_accuracy': float(validation_accuracy), 'recipes': recipes,
      'models': about,
  }
  file = io.BytesIO()
  np.savez(file, about=np.array(json.dumps(content)), **arrays)
  os.makedirs(run.file(model_files.FOLDER), exist_ok=True)
  run_directory.write_bytes(model_files.weights(run, which), file.getvalue())


def load(run: run_directory.RunDirectory, which: str) -> Saved:
  """Reads what `save` wrote.

  Raises:
    types.UsageError: If it is missing or damaged.
  """
  file = model_files.weights(run, which)
  try:
    with np.load(file, allow_pickle=False) as archive:
      content = json.loads(str(archive['about']))
      models = [
          portable.Trained(
              **content['recipes'][about['recipe']],
              **{
                  kind: [archive[f'{i}/{kind}/{k}'] for k in range(about[kind])]
                  for kind in ('trainable', 'non_trainable')
              },
          )
          for i, about in enumerate(content['models'])
      ]
      return Saved(content['round'], content['validation_accuracy'], models)
  except FileNotFoundError as error:
    raise types.UsageError(f'{file} is not there: {_WHY_NOT[which]}') from error
  except (
      OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error
  ) as error:
    raise types.UsageError(f'{file} cannot be read ({type(error).__name__})') from error


class BestKeeper:
  """Keeps the models of the round that is best so far, see `chosen_round`.

  They are written with a state: rounds that are done again after a crash need not come to the same
  bits, so that the best of those would be of no row.
  """

  def __init__(
      self,
      run: run_directory.RunDirectory,
      default: keras_model.KerasModel,
      done: int = 0,
      accuracies: Mapping[int, float] = {},
  ):
    """Goes on with what is there, and says so where the best models are not.

    Args:
      run: Whose models they are.
      default: The task's model.
      done: The round of the state that the run goes on from; models of later rounds are forgotten.
      accuracies: Of the rounds so far that were evaluated, see `chosen_round.accuracies`.
    """
    self._run, self._default = run, default
    self._best, self._models = chosen_round.best(accuracies), None
    run_directory.remove_partial(run.file(model_files.FOLDER))
    following = model_files.weights(run, model_files.NEXT_BEST)
    if os.path.exists(following):
      # The run died before the state was written, or before its models had their name.
      if load(run, model_files.NEXT_BEST).round_num <= done:
        self._take_over()
      else:
        os.remove(following)
    kept, file = 0, model_files.weights(run, model_files.BEST)
    if os.path.exists(file):
      kept = load(run, model_files.BEST).round_num
      if kept > done:  # The state after it is gone.
        os.remove(file)
    if self.round_num not in (0, kept):
      print(
          f'validation: the models of round {self.round_num}, the best so far, are not in {file}: '
          'it comes with the next round that is better', file=sys.stderr,
      )

  @property
  def round_num(self) -> int:
    """The round of the models that are kept; 0 before there are any."""
    return self._best[1]

  def __call__(
      self,
      round_num: int,
      evaluated: Mapping[str, float],
      models: Sequence[algorithm_lib.Evaluated],
  ) -> None:
    """Takes the models of a round, if they are better than all before.

    Args:
      round_num: The round.
      evaluated: By column; where none of `chosen_round` is there, nothing is kept.
      models: What was evaluated.
    """
    column = chosen_round.column(evaluated)
    if column is None:
      return
    accuracy = evaluated[column]
    best, when = self._best
    if accuracy > best or (accuracy == best and round_num < when):
      self._best, self._models = (accuracy, round_num), models

  def with_state(self) -> contextlib.AbstractContextManager[None]:
    """Returns within what the state of now is to be saved: by then its best models are, too."""
    (accuracy, round_num), models = self._best, self._models
    self._models = None
    return self._saving(round_num, accuracy, models)

  @contextlib.contextmanager
  def _saving(self, round_num, accuracy, models):
    if models is not None:
      save(self._run, model_files.NEXT_BEST, round_num, accuracy, models, self._default)
    yield
    if models is not None:
      self._take_over()

  def _take_over(self):
    os.replace(
        model_files.weights(self._run, model_files.NEXT_BEST),
        model_files.weights(self._run, model_files.BEST),
    )
