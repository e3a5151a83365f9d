"""Run directories written by hand."""

import csv
import json
import os

import numpy as np

from tff_noise.data import scene as scene_lib
from tff_noise.program import ledger_seal

LABELS = {
    'prior': 'shrinkage',
    'epsilon': '0.81',
    'num_labels': 12,
    'raw': [0.5, 0.7, -0.2],
    'estimate': [0.375, 0.425, 0.2],
    'standard_error': [0.1, 0.2, 0.15],
    'signal': 0.25,
    'informative': True,
}
PRIVACY = {
    'releases': [
        {
            'name': 'update', 'recipient': 'server', 'aggregation': 'sum',
            'mechanism': 'none: computed from the true local data', 'times': 4,
            'accounting': 'no finite epsilon', 'unit': 'the label of one example',
            'epsilon': 'inf', 'delta': 0.0, 'status': 'none', 'central_epsilon': None,
        },
    ],
    'totals': [
        {'unit': unit, 'epsilon': 'inf', 'delta': 0.0, 'status': 'none'}
        for unit in ('the label of one example', 'one example', 'one client')
    ],
    'statement': 'Nothing is promised.',
}
UPLINK = [
    {
        'name': 'update', 'type_spec': '<trainable=<float32[64,128],float32[128]>,step=int32>',
        'intrinsic': 'federated_sum', 'disclosure': 'sum', 'lower': None, 'upper': None,
        'reason': 'averaged into the next model', 'num_bytes': 33284, 'protection': None,
    },
    {
        'name': 'label histogram', 'type_spec': 'int64[3]',
        'intrinsic': 'federated_secure_sum_bitwidth', 'disclosure': 'DP, secure sum', 'lower': 0,
        'upper': 7, 'reason': 'the prior', 'num_bytes': 24,
        'protection': {
            'kind': 'label reports', 'num_classes': 3, 'epsilon': '0.81', 'num_labels': 12,
        },
    },
]


def summary(**changes):
  """The content of `summary.json` that fits `metrics()`."""
  return {
      'method': 'feddpcont', 'seed': 3, 'best_test_accuracy': 0.75, 'best_round': 3,
      'last10_test_accuracy': 0.5625, 'final_test_accuracy': 0.625, 'rounds': 4,
      'rejected_updates': 0, 'seconds_per_round': 0.5, 'seconds': 3.5,
      'label_communication': LABELS, **changes,
  }


def metrics(**changes):
  """The columns of `metrics.csv`."""
  return {
      'round': [1, 2, 3, 4],
      'stage': ['warm', 'warm', 'train', 'train'],
      'test_accuracy': [0.25, 0.625, 0.75, 0.625],
      'test_loss': [2.0, 1.5, 1.25, 1.5],
      'train_loss': [1.0, -1.0, -2.0, -3.0],
      'clients': [2, 2, 2, 2],
      'rejected': [0, 0, 0, 0],
      **changes,
  }


def scene(**changes):
  """Three clients, three classes, three of twelve labels wrong."""
  return scene_lib.Scene(
      client_of=np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2], np.int32),
      noisy_label=np.array([0, 1, 1, 0, 2, 2, 1, 0, 1, 0, 2, 2], np.int32),
      clean_label=np.array([0, 1, 2, 0, 2, 2, 1, 1, 1, 0, 2, 0], np.int32),
      nominal_rate=np.array([0.4, 0.0, 0.2]),
      is_noisy_client=np.array([True, False, True]),
      notes=('class 1 had no owner and was given to client 1',),
  )._replace(**changes)


def scene_with_unknowns():
  """The same; the server holds two examples, and nobody knows the truth for client 1 and one more.

  Of the five known labels that clients hold, two are wrong.
  """
  return scene(
      client_of=np.array([0, 0, 0, -1, 1, 1, 1, 1, 1, 2, -1, 2], np.int32),
      clean_label=np.array([0, 1, 2, 0, -1, -1, -1, -1, -1, 0, 2, 0], np.int32),
      nominal_rate=np.array([0.4, np.nan, 0.2]),
  )


def config(**flags):
  """The content of `config.json`."""
  return {
      'flags': {
          'method': 'feddpcont', 'param': ['weight=0.5'], 'dataset': 'digits', 'clients': 3,
          'partition': 'iid', 'noise': 'symmetric', 'noise_rate': 0.4, 'scene': None, 'rounds': 4,
          'seed': 3, **flags,
      },
      'execution': {},
      'method_parameters': {'weight': 0.5},
      'versions': {'python': '3.11.7', 'numpy': '1.25.2'},
      'code': 'abc123',
      'inputs': {'training images': '01'},
      'noise': '01',
  }


def write_csv(path, columns):
  with open(path, 'w', encoding='utf-8', newline='') as file:
    writer = csv.writer(file)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))


def write_json(path, content):
  with open(path, 'w', encoding='utf-8') as file:
    json.dump(content, file)


def write(path, **contents):
  """Writes a run; a content of None leaves its file out. Returns `path`.

  Args:
    path: The run directory, made if it is not there.
    **contents: 'config', 'summary', 'privacy', 'uplink', 'metrics', 'timing', 'scene', 'clients',
      'labels' or 'posteriors'.
  """
  os.makedirs(path, exist_ok=True)
  contents = {
      'config': config(), 'summary': summary(), 'privacy': PRIVACY, 'uplink': UPLINK,
      'metrics': metrics(), 'timing': {'round': [1, 2, 3, 4], 'seconds': [2.0, 0.5, 0.5, 0.5]},
      'scene': scene(), **contents,
  }
  for name, content in contents.items():
    if content is None:
      continue
    if name == 'scene':
      scene_lib.save(content, os.path.join(path, 'scene.npz'))
    elif name == 'labels':
      np.savez_compressed(os.path.join(path, 'labels.npz'), label=content)
    elif name == 'posteriors':
      np.savez_compressed(os.path.join(path, 'posteriors.npz'), posterior=content)
    elif name in ('metrics', 'timing', 'clients'):
      write_csv(os.path.join(path, name + '.csv'), content)
    else:
      write_json(os.path.join(path, name + '.json'), content)
  if not os.path.exists(os.path.join(path, 'ledger.key')):
    ledger_seal.write_key(path)
  return path


def write_unfinished(path, **contents):
  """Writes a run that was stopped after its rounds, before its summary."""
  return write(path, **{'summary': None, 'privacy': None, **contents})
