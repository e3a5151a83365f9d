"""What the papers' tables name and this version does not have yet.

A grid may contain it: its cells are shown as not available. Anything else that is unknown is a
mistake in the grid. A name is deleted here when it works.
"""

METHODS = frozenset({
    'arfl', 'clipfl', 'coteaching', 'dividemix', 'fedadam', 'fedbn', 'fedcorr', 'feddyn', 'fedlsr',
    'fednoro', 'fednova', 'fedprox', 'fedrn', 'jointopt', 'lc', 'median', 'poc', 'rhfl', 'rofl',
    'scaffold', 'trevision',
})

# Values of flags that exist, by flag.
VALUES = {
    'method': METHODS,
    'dataset': frozenset({
        'cifar10', 'cifar100', 'cifar10n', 'cifar100n', 'clothing1m', 'image_folder', 'npz',
    }),
    'partition': frozenset({'bernoulli_dirichlet', 'dirichlet', 'natural'}),
    'noise': frozenset({
        'asymmetric', 'client_symmetric', 'client_uniform', 'human', 'instance', 'matrix',
        'pairflip',
    }),
    'model': frozenset({'resnet18', 'resnet34', 'resnet50', 'vit_tiny'}),
}

FLAGS = frozenset({
    'base', 'data_dir', 'human_labels', 'noise_rho', 'noise_tau', 'partition_alpha', 'partition_p',
    'stages', 'validation_fraction', 'weights',
})
