"""Tests of what a run keeps of its models."""

import contextlib
import io
import os

import numpy as np
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized

from tests import toy
from tff_noise import types
from tff_noise.algorithms import algorithm
from tff_noise.program import model_files
from tff_noise.program import run_directory
from tff_noise.program import trained_models


def _evaluated(value, model=None):
  weights = tff.learning.models.ModelWeights([np.full((2, 2), value, np.float32)], [])
  return algorithm.Evaluated(model, weights)


class TrainedModelsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.run_ = run_directory.RunDirectory(self.create_tempdir().full_path)
    self.model = toy.linear_model()

  def _keep(self, keeper, *rounds):
    for round_num, accuracy in rounds:
      measured = {} if accuracy is None else {'validation_accuracy': accuracy}
      keeper(round_num, measured, [_evaluated(round_num)])
    with keeper.with_state():
      pass

  def _best(self):
    saved = trained_models.load(self.run_, model_files.BEST)
    return saved.round_num, saved.validation_accuracy, float(saved.models[0].trainable[0][0, 0])

  def test_every_model_comes_back(self):
    other = toy.linear_model()
    models = [_evaluated(1), _evaluated(2, other), _evaluated(3)]
    trained_models.save(self.run_, model_files.FINAL, 7, 0.5, models, self.model)
    saved = trained_models.load(self.run_, model_files.FINAL)
    self.assertEqual((saved.round_num, saved.validation_accuracy), (7, 0.5))
    self.assertEqual([float(m.trainable[0][0, 0]) for m in saved.models], [1, 2, 3])
    self.assertEqual([len(m.non_trainable) for m in saved.models], [0, 0, 0])

  def test_the_first_of_the_best_rounds_is_kept(self):
    keeper = trained_models.BestKeeper(self.run_, self.model)
    self._keep(keeper, (1, 0.25), (2, 0.75), (3, 0.75), (4, 0.5))
    self.assertEqual(self._best(), (2, 0.75, 2))

  def _again(self, done, accuracies=None):
    return trained_models.BestKeeper(self.run_, self.model, done, accuracies or {})

  def test_goes_on_after_rounds_that_are_done_again(self):
    first = self._again(0)
    self._keep(first, (1, 0.25))
    first(2, {'validation_accuracy': 0.5}, [_evaluated(2)])
    saving = first.with_state()
    # Better while the state after round 2 is being written: not of that state.
    first(3, {'validation_accuracy': 0.75}, [_evaluated(3)])
    self.assertEqual(first.round_num, 3)
    with saving:
      self.assertEqual(self._best(), (1, 0.25, 1))
    self.assertEqual(self._best(), (2, 0.5, 2))
    # Killed, and round 3 comes to less on this device.
    again = self._again(2, {1: 0.25, 2: 0.5})
    self._keep(again, (3, 0.375))
    self.assertEqual((again.round_num, self._best()), (2, (2, 0.5, 2)))
    self._keep(again, (4, 1.0))
    self.assertEqual(self._best(), (4, 1.0, 4))

  def test_the_best_so_far_is_known_where_its_models_are_not(self):
    file = model_files.weights(self.run_, model_files.BEST)
    self._keep(self._again(0), (1, 0.25), (2, 0.5), (3, 0.375), (4, 1.0))
    # The checkpoint after round 4 was moved away, and round 4 comes to less on this device.
    with contextlib.redirect_stderr(io.StringIO()) as said:
      again = self._again(3, {1: 0.25, 2: 0.5, 3: 0.375})
    self.assertIn('the models of round 2, the best so far, are not in', said.getvalue())
    self._keep(again, (4, 0.125))
    self.assertEqual(again.round_num, 2)
    self.assertFalse(os.path.exists(file))
    self._keep(again, (5, 0.75))
    self.assertEqual(self._best(), (5, 0.75, 5))

  @parameterized.parameters((1, (1, 0.25, 1)), (2, (2, 0.5, 2)))
  def test_a_kill_beside_the_state_that_is_written(self, done, expected):
    first = self._again(0)
    self._keep(first, (1, 0.25))
    first(2, {'validation_accuracy': 0.5}, [_evaluated(2)])
    with contextlib.suppress(KeyboardInterrupt), first.with_state():
      raise KeyboardInterrupt
    again = self._again(done, {k: v for k, v in {1: 0.25, 2: 0.5}.items() if k <= done})
    self.assertEqual((again.round_num, self._best()), (expected[0], expected))
    self.assertEqual(os.listdir(os.path.join(self.run_.path, 'models')), ['best_validation.npz'])

  def test_what_a_kill_cut_short_is_removed(self):
    folder = os.path.join(self.run_.path, 'models')
    os.makedirs(os.path.join(folder, '.partial-ab', 'saved_model'))
    for name in ('final.npz.partial-7', 'final.npz'):
      with open(os.path.join(folder, name), 'wb'):
        pass
    self._again(0)
    self.assertEqual(os.listdir(folder), ['final.npz'])

  def test_is_written_once(self):
    keeper = trained_models.BestKeeper(self.run_, self.model)
    self._keep(keeper, (1, 0.5))
    os.remove(model_files.weights(self.run_, model_files.BEST))
    self._keep(keeper, (2, 0.25))
    self.assertFalse(os.path.exists(model_files.weights(self.run_, model_files.BEST)))

  def test_clients_choose_where_the_server_has_no_set(self):
    keeper = trained_models.BestKeeper(self.run_, self.model)
    for round_num, by_clients in ((1, 0.5), (2, np.nan), (3, 0.75), (4, 0.25)):
      keeper(round_num, {'client_validation_accuracy': by_clients}, [_evaluated(round_num)])
    with keeper.with_state():
      pass
    self.assertEqual(self._best(), (3, 0.75, 3))

  def test_the_servers_set_chooses_where_there_are_both(self):
    keeper = trained_models.BestKeeper(self.run_, self.model)
    for round_num, by_server in ((1, 0.75), (2, 0.5)):
      measured = {'validation_accuracy': by_server, 'client_validation_accuracy': round_num / 2}
      keeper(round_num, measured, [_evaluated(round_num)])
    with keeper.with_state():
      pass
    self.assertEqual(self._best(), (1, 0.75, 1))

  def test_without_a_validation_set_nothing_is_kept(self):
    self._keep(trained_models.BestKeeper(self.run_, self.model), (1, None))
    with self.assertRaisesRegex(types.UsageError, 'where there is a validation set'):
      trained_models.load(self.run_, model_files.BEST)

  def test_a_damaged_file_is_named(self):
    path = model_files.weights(self.run_, model_files.FINAL)
    os.makedirs(os.path.dirname(path))
    for content in (b'no archive', b''):
      with open(path, 'wb') as file:
        file.write(content)
      with self.assertRaisesRegex(types.UsageError, 'final.npz cannot be read'):
        trained_models.load(self.run_, model_files.FINAL)


if __name__ == '__main__':
  absltest.main()
