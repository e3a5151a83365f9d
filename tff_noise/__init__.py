"""Federated learning from noisy labels, on TensorFlow Federated: `tff_noise.train`."""


def __getattr__(name):
  # Where nothing is installed yet, modules that need nothing can be loaded.
  if name == 'train':
    from tff_noise import api

    return api.train
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
