"""What the papers' grids resolve to at full scale, against the settings that the papers print.

Transcribed from the papers by section, not from the grids. Where a paper is silent nothing is said
here; `configs/grids` has what was chosen, with a comment.
"""

import functools
import os

import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from tff_noise.algorithms import fedcorr
from tff_noise.algorithms import lc
from tff_noise.algorithms import trevision
from tff_noise.compare import grid
from tff_noise.federated import task as task_lib
from tff_noise.program import flags

# FedCorr, table 1 and section 4.1; step sizes and lengths of its stages are the authors' code's.
_FEDCORR_CIFAR10 = {
    'dataset': 'cifar10', 'clients': 100, 'clients_per_round': 10, 'model': 'resnet18',
    'norm': 'batch', 'rounds': 1000, 'local_epochs': 5, 'batch_size': 10, 'learning_rate': 0.03,
    'momentum': 0.5, 'label_smoothing': 0, 'temperature': 1, 'seeds': 5,
}
_FEDCORR_CIFAR100 = {
    **_FEDCORR_CIFAR10, 'dataset': 'cifar100', 'clients': 50, 'clients_per_round': 5,
    'model': 'resnet34', 'learning_rate': 0.01,
}
_CLOTHING1M = {
    **_FEDCORR_CIFAR10, 'dataset': 'clothing1m', 'clients': 500, 'model': 'resnet50',
    'rounds': 200, 'batch_size': 16, 'learning_rate': 0.001, 'seeds': 1,
}
# FedDPCont, sections 5.1 and 5.2: 100 clients, a tenth of them a round, R = 300.
_FEDDPCONT = {
    'dataset': 'cifar10', 'clients': 100, 'clients_per_round': 10, 'model': 'resnet18',
    'norm': 'batch', 'rounds': 300, 'local_epochs': 5, 'batch_size': 32, 'learning_rate': 0.01,
    'label_smoothing': 0, 'temperature': 1, 'seeds': 3,
}
# ClipFL, section 5.1 and table 5.
_CLIPFL = {
    'clients': 100, 'clients_per_round': 10, 'model': 'vit_tiny', 'image_size': 224,
    'rounds': 120, 'local_epochs': 10, 'batch_size': 10, 'learning_rate': 0.03, 'momentum': 0.9,
    'noise': 'client_symmetric', 'noise_rho': 0.5, 'validation_fraction': 0.1, 'seeds': 3,
}
_SMOOTHED = {'label_smoothing': 0.1, 'temperature': 10}
_PLAIN = {'label_smoothing': 0, 'temperature': 1}

_FEDCORR_PARAMS = {
    'semantics': 'paper', 'split_guard': False, 'score': 'cumulative', 'mixup': True,
    'mixup_alpha': 1, 'proximal': 5, 'correction': True, 'relabel_ratio': 0.5, 'confidence': 0.5,
    'clean_threshold': 0.1, 'lid_neighbours': 20, 'fraction': 0,
}
_NORM = {'term': 'norm', 'mu': 1}
# Fu et al.'s, which FedCorr does not change.
_ARFL = {'params': {'weight': 2, 'threshold': 0.1}}
# Section 4.1, of the baselines: 20 local epochs after 20 rounds of FedAvg.
_JOINTOPT = {
    'stages_given': {'warm_up': 20},
    'params': {'joint_epochs': 20, 'warm_up_loss': 'cross_entropy'},
}
_DIVIDEMIX = {'stages_given': {'warm_up': 20}, 'params': {'divide_epochs': 20}}
_AMONG_FEDCORRS = {'ARFL': _ARFL, 'JointOpt': _JOINTOPT, 'DivideMix': _DIVIDEMIX}
_PRUNING = {'keep': 5, 'prune': 0.5}


def _fedcorr(iterations, finetune, usual, **params):
  return {
      'stages': {'iterations': iterations, 'finetune': finetune, 'usual': usual},
      'params': {**_FEDCORR_PARAMS, **params},
  }


def _epsilon(value, prior='inverse'):
  return {'label_epsilon': value, 'label_prior': prior, 'params': {'weight': 1}}


# Co-teaching drops the noise rate.
_FORGET = {
    f'{noise} {rate}': {'params': {'forget_rate': rate}}
    for noise in ('symmetric', 'random') for rate in (0.2, 0.4, 0.6, 0.8)
}

# FedDPCont, sections 9.2 and 9.4: LC after round 150, with counts above 95 %; T-revision's phases
# end with rounds 20, 160 and 300.
_CORRECTION = {
    'stages': {'train': 150, 'correct': 150},
    'params': {
        'correction': 'forward', 'estimator': 'counts', 'scope': 'client', 'confidence': 0.95,
        'restart': False,
    },
}
_REVISION = {
    'stages': {'estimate': 20, 'correct': 140, 'revise': 140},
    'params': {'correction': 'forward', 'gradient': 'paper'},
}
# What the other authors' scripts have.
_FEDRN = {'params': {'neighbours': 2, 'expertise_weight': 0.6, 'threshold': 0.5}}
_FEDNORO = {'params': {'weight': 0.8, 'temperature': 0.8, 'kl': 'code', 'distance': 'tensors'}}
_AMONG_FEDDPCONTS = {'LC': _CORRECTION, 'T-revision': _REVISION, 'FedRN': _FEDRN}

# By grid: what all rows have, and by row what it has besides.
_PAPERS = {
    'fedcorr_table2': (_FEDCORR_CIFAR10, {
        'FedAvg': {}, 'FedProx': {'params': _NORM}, 'RoFL': {}, **_AMONG_FEDCORRS,
        'FedCorr': _fedcorr(5, 500, 450),
    }),
    'fedcorr_table3': (_FEDCORR_CIFAR100, {
        'FedAvg': {}, 'FedProx': {'params': _NORM}, **_AMONG_FEDCORRS,
        'FedCorr': _fedcorr(10, 450, 450),
    }),
    'fedcorr_table4': (_FEDCORR_CIFAR10, {
        'FedAvg': {}, 'FedProx': {'params': _NORM}, **_AMONG_FEDCORRS,
        'FedCorr': _fedcorr(5, 500, 450),
    }),
    'fedcorr_table5': (_CLOTHING1M, {
        'FedAvg': {}, 'FedProx': {'params': _NORM}, **_AMONG_FEDCORRS,
        'FedCorr': _fedcorr(2, 50, 50, relabel_ratio=0.8, confidence=0.9),
    }),
    'fedcorr_table6': (_FEDCORR_CIFAR10, {
        'FedCorr': _fedcorr(5, 500, 450),
        'without correction': _fedcorr(5, 500, 450, correction=False),
        'without fraction scheduling': _fedcorr(5, 500, 450, fraction=0.1),
        'without local proximal term': _fedcorr(5, 500, 450, proximal=0),
        'without fine-tuning': _fedcorr(5, 0, 450),
        'without usual training': _fedcorr(5, 500, 0),
        'without mixup': _fedcorr(5, 500, 450, mixup=False),
    }),
    'feddpcont_table2': (_FEDDPCONT, {
        'FedAvg': {}, 'FedBN': {},
        'FedCorr': {'params': {**_FEDCORR_PARAMS, 'mixup': False, 'iterations': 5}},
        'Co-teaching': _FORGET, 'FedDPCont': _epsilon('0.81'), **_AMONG_FEDDPCONTS,
        'FedNoRo': _FEDNORO,
    }),
    'feddpcont_table3': ({**_FEDDPCONT, 'dataset': ..., 'model': ...}, {
        'FedAvg': {}, **_AMONG_FEDDPCONTS,
        # By setting. FedCorr's own of each data set.
        'FedCorr': {
            'CIFAR-10N worst': {'params': {**_FEDCORR_PARAMS, 'mixup': False, 'iterations': 5}},
            'CIFAR-100N fine': {'params': {**_FEDCORR_PARAMS, 'mixup': False, 'iterations': 10}},
            'Clothing1M': {'params': {
                **_FEDCORR_PARAMS, 'mixup': False, 'iterations': 2, 'relabel_ratio': 0.8,
                'confidence': 0.9,
            }},
        },
        'FedDPCont': {
            'CIFAR-10N worst': _epsilon('0.81'), 'CIFAR-10N random': _epsilon('0.81'),
            'CIFAR-10N aggregate': _epsilon('0.81'), 'CIFAR-100N fine': _epsilon('3.21'),
            'Clothing1M': {**_epsilon('1.17'), 'model': 'resnet50'},
        },
    }),
    'feddpcont_table4': ({**_FEDDPCONT, 'seeds': 10}, {
        'epsilon 0.01': _epsilon('0.01'), 'FedDPCont, no DP': {'label_prior': 'none'},
    }),
    'feddpcont_table6': ({**_FEDDPCONT, 'dataset': 'cifar100'}, {
        'FedAvg': {}, 'FedDPCont': _epsilon('3.21'), 'Co-teaching': _FORGET, **_AMONG_FEDDPCONTS,
        'FedNoRo': _FEDNORO,
        'FedCorr': {'params': {**_FEDCORR_PARAMS, 'mixup': False, 'iterations': 10}},
    }),
    'feddpcont_table10': ({**_FEDDPCONT, 'dataset': ...}, {
        'epsilon 0.01': _epsilon('0.01'), 'epsilon 0.81': _epsilon('0.81'),
    }),
    'clipfl_table1': ({**_CLIPFL, **_SMOOTHED}, {
        'FedAvg': {}, 'FedAvg + ClipFL': {'params': _PRUNING, 'base': 'fedavg'},
        'FedProx': {'params': {'mu': 0.001, 'term': 'squared'}},
        'FedProx + ClipFL': {'params': _PRUNING, 'base_params': {'mu': 0.001, 'term': 'squared'}},
        'FedNova + ClipFL': {'params': _PRUNING, 'base': 'fednova'},
        'FedAdam': {'params': {'tau': 0.001, 'server_learning_rate': 0.01}},
        'FedAdam + ClipFL': {'base_params': {'tau': 0.001, 'server_learning_rate': 0.01}},
    }),
    'clipfl_table2': ({**_CLIPFL, **_SMOOTHED}, {
        'FedAvg + ClipFL': {'params': _PRUNING, 'base': 'fedavg'},
        'FedAdam + ClipFL': {'base_params': {'tau': 0.001, 'server_learning_rate': 0.01}},
    }),
    'clipfl_table3': (_CLIPFL, {
        'FedAvg': _SMOOTHED, 'ClipFL': {**_SMOOTHED, 'params': _PRUNING},
        # Section 6.2; losses of their own.
        'FedCorr': {**_PLAIN, **_fedcorr(8, 75, 37, semantics='reference')},
        'RHFL': {**_PLAIN, 'public_examples': 5000, 'params': {'beta': 0.5}},
        'FedLSR': {**_PLAIN, 'params': {'consistency_weight': 0.25, 'ramp_rounds': 40}},
    }),
}


# What divides --rounds among stages.
_STAGES_OF = {'lc': lc.stage_lengths, 'trevision': trevision.stage_lengths}


@functools.cache
def _load(name):
  return grid.load(os.path.join('configs/grids', f'{name}.yaml'), 'full', None, (), 'runs')


def _stages(config):
  """Rounds of a method's stages, as it divides them itself; of FedCorr's first the iterations."""
  params = config.method_params()
  task = task_lib.Task(
      model=None, rounds=config.rounds, stages=config.stage_lengths(),
      clients_per_round=config.clients_per_round,
      availability=config.availability(config.clients),
      client_sizes=np.zeros(config.clients), seed=config.seed,
  )
  if config.method != 'fedcorr':
    return _STAGES_OF[config.method](task)
  visits = fedcorr.plan_visits(task, params)
  lengths = fedcorr.stage_lengths(task, params, len(visits))
  return {
      'iterations': visits[-1].iteration + 1, 'finetune': lengths['finetune'],
      'usual': lengths['usual'],
  }


def _resolved(config, key):
  """What a cell's configuration comes to; of parameters and stages those that are asked about."""
  match key:
    case 'params':
      return vars(config.method_params())
    case 'base_params':
      return vars(config.base_params())
    case 'stages':
      return _stages(config)
    case 'stages_given':
      return config.stage_lengths()
    case _:
      return getattr(config, key)


# Flag files of the papers: what each has besides what its paper's tables have in common.
_FILES = {
    'fedcorr_cifar10_iid': (_FEDCORR_CIFAR10, _fedcorr(5, 500, 450)),
    'fedcorr_cifar10_noniid': (_FEDCORR_CIFAR10, {
        **_fedcorr(5, 500, 450), 'partition': 'bernoulli_dirichlet', 'partition_p': 0.7,
        'partition_alpha': 10,
    }),
    'fedcorr_cifar100_iid': (_FEDCORR_CIFAR100, _fedcorr(10, 450, 450)),
    'fedcorr_clothing1m': (
        _CLOTHING1M, _fedcorr(2, 50, 50, relabel_ratio=0.8, confidence=0.9)
    ),
    'fedcorr_without_correction': (_FEDCORR_CIFAR10, _fedcorr(5, 500, 450, correction=False)),
    'fedcorr_without_finetuning': (_FEDCORR_CIFAR10, _fedcorr(5, 0, 450)),
    'fedcorr_without_fraction_scheduling': (
        _FEDCORR_CIFAR10, _fedcorr(5, 500, 450, fraction=0.1)
    ),
    'fedcorr_without_mixup': (_FEDCORR_CIFAR10, _fedcorr(5, 500, 450, mixup=False)),
    'fedcorr_without_proximal': (_FEDCORR_CIFAR10, _fedcorr(5, 500, 450, proximal=0)),
    'fedcorr_without_usual_training': (_FEDCORR_CIFAR10, _fedcorr(5, 500, 0)),
    'fedcorr_digits': ({}, {'params': _FEDCORR_PARAMS}),
    'feddpcont_symmetric': (_FEDDPCONT, {**_epsilon('0.81'), 'partition': 'openset_uniform'}),
    'feddpcont_random': (_FEDDPCONT, {**_epsilon('0.81'), 'partition': 'openset_dirichlet'}),
    'feddpcont_human': ({**_FEDDPCONT, 'dataset': 'cifar10n'}, _epsilon('0.81')),
    'feddpcont_cifar100': ({**_FEDDPCONT, 'dataset': 'cifar100'}, _epsilon('3.21')),
    'feddpcont_clothing1m': (
        {**_FEDDPCONT, 'dataset': 'clothing1m', 'model': 'resnet50'}, _epsilon('1.17')
    ),
    'clipfl_cifar10': ({**_CLIPFL, **_SMOOTHED}, {'method': 'clipfl', 'params': _PRUNING}),
}


class PaperSettingsTest(parameterized.TestCase):

  def test_every_grid_of_the_papers_is_here(self):
    self.assertCountEqual(
        _PAPERS, [n.removesuffix('.yaml') for n in os.listdir('configs/grids') if '_table' in n]
    )

  @parameterized.parameters(*(
      (name, method) for name, (_, methods) in _PAPERS.items() for method in methods
  ))
  def test_resolves_to_what_the_paper_prints(self, name, method):
    common, methods = _PAPERS[name]
    loaded = _load(name)
    self.assertIn(method, loaded.methods)
    self.assertLen(loaded.seeds, common['seeds'])
    cells = [c for c in loaded.cells if c.method == method and c.seed == loaded.seeds[0]]
    for cell in cells:
      wanted = methods[method]
      if set(wanted) & set(loaded.settings):
        wanted = wanted.get(cell.setting, {})
      wanted = {**common, **wanted}
      self._check(cell.config, wanted, f'{method}, {cell.setting}')

  def test_every_flag_file_of_the_papers_is_here(self):
    of_papers = [
        n.removesuffix('.flags') for n in os.listdir('configs')
        if n.startswith(('fedcorr_', 'feddpcont_', 'clipfl_cifar')) and n.endswith('.flags')
    ]
    self.assertCountEqual(_FILES, of_papers)

  @parameterized.parameters(*_FILES)
  def test_flag_file(self, name):
    common, own = _FILES[name]
    config = flags.config_from(
        flags.parse(['train', f'--flagfile=configs/{name}.flags', '--data_dir=d'])
    )
    self._check(config, {**common, **own}, name)

  def _check(self, config, wanted, where):
    for key, value in wanted.items():
      if key == 'seeds' or value is ...:
        continue
      found = _resolved(config, key)
      if isinstance(value, dict):
        found = {part: found[part] for part in value}
      self.assertEqual(found, value, f'{where}: {key}')


if __name__ == '__main__':
  absltest.main()
