"""The examples of docs/own_program.md run, and the page quotes them as they are."""

import asyncio
import copy
import gc
import json
import os
import pathlib
import textwrap
import types as types_lib

import grpc
import numpy as np
import tensorflow_federated as tff
from absl.testing import absltest
from absl.testing import parameterized
from PIL import Image

from docs.examples import client_state
from docs.examples import digits
from docs.examples import hugging_face
from docs.examples import metrics_hook
from docs.examples import own_context
from docs.examples import run_method
from docs.examples import run_training_process
from docs.examples import train_model
from tff_noise import types
from tff_noise.algorithms import catalog
from tff_noise.data import npz_file
from tff_noise.federated import label_histogram
from tff_noise.federated import task as task_lib

# Chance is 0.1.
_LEARNT = 0.5


def _num_children():
  return len(pathlib.Path(f'/proc/self/task/{os.getpid()}/children').read_text().split())


class ExamplesTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    # `asyncio.run` leaves no loop behind, which `run_training_process` looks for.
    loop = asyncio.new_event_loop()
    self.addCleanup(loop.close)
    asyncio.set_event_loop(loop)
    self.addCleanup(lambda: self.assertEqual(_num_children(), 0, 'a worker was left'))

  def test_run_training_process(self):
    folder = self.create_tempdir().full_path
    self.assertGreater(run_training_process.main(folder), _LEARNT)
    rows = pathlib.Path(folder, 'metrics.csv').read_text().splitlines()
    self.assertLen(rows, 1 + 7)
    self.assertIn('evaluation/accuracy', rows[0])

  def test_train_model_and_again(self):
    folder = self.create_tempdir().full_path
    accuracy = train_model.main(folder)
    self.assertGreater(accuracy, _LEARNT)
    self.assertLen(pathlib.Path(folder, 'metrics.csv').read_text().splitlines(), 1 + 6)
    self.assertTrue(pathlib.Path(folder, 'state', 'program_state_6').exists())
    self.assertEqual(train_model.main(folder), accuracy)

  def test_own_context(self):
    self.assertGreater(own_context.main(), _LEARNT)

  def test_client_state(self):
    self.assertGreater(client_state.main(), _LEARNT)

  def test_run_method(self):
    self.assertGreater(run_method.main(), _LEARNT)


class ClaimsTest(parameterized.TestCase):
  """What the page says about TFF."""

  def test_hugging_face(self):
    class Split(list):
      features = {  # noqa: RUF012
          'image': None, 'label': types_lib.SimpleNamespace(names=['cat', 'dog']), 'id': None,
      }

    examples = Split({'image': Image.new('L', (4, 3), i), 'label': i % 2} for i in range(6))
    path = os.path.join(self.create_tempdir().full_path, 'data.npz')
    hugging_face.write({'train': examples, 'test': examples[:2]}, path)
    dataset = npz_file.load(path)
    self.assertEqual(dataset.class_names, ('cat', 'dog'))
    self.assertEqual(dataset.train_x.shape, (6, 3, 4, 1))
    self.assertEqual(dataset.test_y.tolist(), [0, 1])
    red = Image.new('RGB', (1, 1), 'red').convert('P')
    np.testing.assert_array_equal(hugging_face.pixels(red), [[[255, 0, 0]]])
    deep = np.array([[60000]], np.uint16)
    np.testing.assert_array_equal(hugging_face.pixels(Image.fromarray(deep)), deep)
    for data, columns, message in (
        ({'train': examples}, (), 'has no split test; it has train'),
        ({'train': examples, 'test': examples}, ('img',), 'has no column img; it has image, label'),
        ({'train': examples, 'test': examples}, ('image', 'id'), 'class_encode_column.*id'),
    ):
      with self.assertRaisesRegex(types.UsageError, message):
        hugging_face.write(data, path, *columns)
    with self.assertRaisesRegex(types.UsageError, 'the column of images holds a list, which is'):
      hugging_face.pixels([[1]])

  @parameterized.parameters('gce', 'sce', 'fedlsr', 'coteaching')
  def test_a_method_whose_server_only_averages_is_a_learning_process(self, name):
    entry = catalog.ALGORITHMS[name]
    task = task_lib.Task(digits.load().model, types.LocalTraining(2, 32, 0.1))
    (built,) = entry.build(task, entry.params()).computations
    self.assertIsInstance(built.process, tff.learning.templates.LearningProcess)
    self.assertIn('update', [field.name for field in built.fields])

  def test_json_has_no_nan_where_nothing_was_measured(self):
    folder = self.create_tempdir().full_path
    write = metrics_hook.json_lines(folder, {})
    write({'stage': 'train', 'test_accuracy': float('nan'), 'train_loss': np.float32(0.5)}, 3)
    self.assertEqual(
        pathlib.Path(folder, 'metrics.jsonl').read_text(),
        '{"round": 3, "stage": "train", "train_loss": 0.5}\n',
    )

  def test_native_context_refuses_secure_sums(self):
    communicate, _ = label_histogram.build_label_histogram(
        2, max_count=1, max_clients=2, mechanism=None, protection=None
    )
    examples = types.ClientExamples(None, np.array([1]), np.array([0]))
    federation = types.Federation((examples, examples), num_classes=2, seed=0)
    labels = [label_histogram.client_labels(federation, i) for i in range(2)]
    context = tff.backends.native.create_sync_local_cpp_execution_context()
    with tff.framework.get_context_stack().install(context):
      with self.assertRaisesRegex(grpc.RpcError, 'Cannot embed a federated value'):
        communicate(labels)
    del context
    gc.collect()

  def test_data_sets_cannot_be_copied(self):
    source = tff.program.DatasetDataSource(digits.load().clients[:1])
    with self.assertRaisesRegex(TypeError, 'pickle'):
      copy.deepcopy(source.iterator())


class PageTest(absltest.TestCase):

  def test_notebook_was_executed_and_has_no_place_of_ours_in_it(self):
    text = pathlib.Path('docs/notebook.ipynb').read_text(encoding='utf-8')
    self.assertNotRegex(text, r'/(tmp|home|root|work)/')
    cells = [c for c in json.loads(text)['cells'] if c['cell_type'] == 'code']
    self.assertEqual([c['execution_count'] for c in cells], list(range(1, len(cells) + 1)))
    for cell in cells:
      compile(''.join(cell['source']), 'notebook', 'exec')
      self.assertNotIn('error', [output['output_type'] for output in cell['outputs']])

  def test_code_is_that_of_the_examples(self):
    page = pathlib.Path('docs/own_program.md').read_text(encoding='utf-8')
    files = [p.read_text(encoding='utf-8') for p in pathlib.Path('docs/examples').glob('*.py')]
    blocks = [part.split('```')[0] for part in page.split('```python\n')[1:]]
    self.assertLen(blocks, 8)
    for block in blocks:
      indented = [textwrap.indent(block, ' ' * indent) for indent in (0, 2)]
      self.assertTrue(any(code in file for code in indented for file in files), block)


if __name__ == '__main__':
  absltest.main()
