"""The code of a trained model that has layers or functions of the user's own."""

from collections.abc import Sequence

from tff_noise import params
from tff_noise import types
from tff_noise.models import portable
from tff_noise.program import flags
from tff_noise.program import inputs
from tff_noise.program import run_directory


def load_code(run: run_directory.RunDirectory, models: Sequence[portable.Trained]) -> None:
  """Calls what a run's `--model` names, if a model needs its code: that registers it with Keras.

  Not all is registered by an import: such a function often loads TensorFlow itself.

  Raises:
    types.UsageError: If it is other code than the run was made with, is not there, or fails.
  """
  own = [trained for trained in models if portable.has_own_parts(trained)]
  if not own:
    return
  content = run_directory.read_json(run.file('config.json'))
  config = flags.config_of_run(content['flags'])
  if ':' not in config.model:
    return  # They are of a method of the user's own, which nothing here can build.
  inputs.check_model(run, config)
  function = params.named(config.model, 'model')
  shape, dtype = portable.input_of(own[0])
  features = {'dtype': 'float32'} if dtype == 'float32' else {}
  try:
    function(
        shape, len(content['class_names']), norm=config.norm, pixel_scale=1.0, pixel_offset=0.0,
        image_size=config.image_size, **features,
    )
  except Exception as error:  # A function of the user's may raise whatever it likes.
    raise types.UsageError(
        f'--model={config.model} fails ({type(error).__name__}: {error}), and the model needs the '
        'layers or functions of its own: load the SavedModel of the run, which needs none'
    ) from error
