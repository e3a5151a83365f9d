from absl.testing import absltest

from tff_noise.program import chosen_round


class ChosenRoundTest(absltest.TestCase):

  def test_rows_of_rounds_that_are_done(self):
    rows = [
        {'round': '1', 'validation_accuracy': '0.5'}, {'round': '2', 'validation_accuracy': 'nan'},
        {'round': '3', 'validation_accuracy': ''}, {'round': '4', 'validation_accuracy': '0.75'},
        # A kill may leave a row that is cut off.
        {'round': '5', 'validation_accuracy': None},
    ]
    self.assertEqual(chosen_round.accuracies(rows, 5), {1: 0.5, 4: 0.75})
    self.assertEqual(chosen_round.accuracies(rows, 3), {1: 0.5})
    self.assertEmpty(chosen_round.accuracies([{'round': '1', 'test_accuracy': '0.5'}], 1))

  def test_the_servers_set_comes_before_what_clients_withhold(self):
    row = {'round': '1', 'validation_accuracy': '0.5', 'client_validation_accuracy': '0.75'}
    self.assertEqual(chosen_round.accuracies([row], 1), {1: 0.5})
    del row['validation_accuracy']
    self.assertEqual(chosen_round.accuracies([row], 1), {1: 0.75})

  def test_the_first_of_the_best(self):
    self.assertEqual(chosen_round.best({1: 0.5, 3: 0.75, 7: 0.75, 9: 0.25}), (0.75, 3))
    self.assertEqual(chosen_round.best({}), (-1, 0))


if __name__ == '__main__':
  absltest.main()
