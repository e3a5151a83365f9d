"""Client data in the form TFF carries to a client's computation.

A client's data is a sequence of exactly one element that holds the whole client: batches are then
slices of a tensor, which is faster than a `tf.data` pipeline in every client's graph, and TFF's
templates and data sources, which expect sequences, take it as it is.
"""

import collections
import functools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_noise import types


def client_dataset(x: np.ndarray, y: np.ndarray, client: int) -> tf.data.Dataset:
  """Returns one client's data as `{<x=X[?,...],y=int32[?],client=int32>*}` with one element.

  Args:
    x: `[n_c, ...]`, examples as the model takes them: raw uint8 pixels, or features, which become
      float32; or bytes `[n_c]`, paths of image files, which are read in the client's computation.
    y: int `[n_c]`, labels.
    client: The client's id, of which its random streams (batches, contrastive labels) are a
      function.

  Raises:
    types.UsageError: If there are not as many labels as examples, or labels are no class numbers.
  """
  return tf.data.Dataset.from_tensors(
      collections.OrderedDict(
          **_examples(x, y, f'client {client}'), client=np.asarray(client, np.int32)
      )
  )


def server_dataset(x: np.ndarray, y: np.ndarray) -> tf.data.Dataset:
  """Returns examples that are no client's as `{<x=X[?,...],y=int32[?]>*}` with one element.

  Arguments and errors are those of `client_dataset`.
  """
  return tf.data.Dataset.from_tensors(_examples(x, y, 'the server'))


def _examples(x, y, whose):
  x, y = np.asarray(x), np.asarray(y)
  if y.ndim != 1 or y.dtype.kind not in 'biuf' or (y % 1 != 0).any() or y.min(initial=0) < 0:
    raise types.UsageError(
        f'the labels of {whose} have to be whole numbers from 0 on, one for each example, '
        f'found {y.dtype} {list(y.shape)}'
    )
  if len(x) != len(y):
    raise types.UsageError(f'{whose} has {len(x)} examples and {len(y)} labels')
  if x.dtype.kind == 'f':
    x = x.astype(np.float32)
  return collections.OrderedDict(x=x, y=y.astype(np.int32))


def client_data_type(x_dtype, x_shape: tuple[int, ...]) -> tff.SequenceType:
  """Returns the TFF type of `client_dataset` for examples of `x_dtype` and shape `x_shape`.

  For image files that is `np.str_` and `()`.
  """
  return tff.SequenceType(
      tff.to_type(
          collections.OrderedDict(
              x=tff.TensorType(x_dtype, (None, *x_shape)),
              y=tff.TensorType(np.int32, (None,)),
              client=tff.TensorType(np.int32),
          )
      )
  )


def server_data_type(of_client: tff.SequenceType) -> tff.SequenceType:
  """Returns the TFF type of `server_dataset`, from that of `client_dataset`."""
  x, y, _ = of_client.element
  return tff.SequenceType(collections.OrderedDict(x=x, y=y))


def federation_datasets(federation: types.Federation) -> Sequence[tf.data.Dataset]:
  """Returns the data set of every client, by client id, each made when it is asked for.

  A data set is a copy of the client's data and 10 KB more. So not all are kept, but the last 1,000
  that were asked for: memory follows the cohorts and not the population.
  """
  return _FederationDatasets(federation)


_KEPT_DATASETS = 1000


class _FederationDatasets(Sequence):
  """See `federation_datasets`."""

  def __new__(cls, federation):
    # TFF makes a sequence that it is given anew, of its elements: then all of them are there.
    if not isinstance(federation, types.Federation):
      return list(federation)
    return super().__new__(cls)

  def __init__(self, federation: types.Federation):
    self._clients = federation.clients
    self._dataset = functools.lru_cache(_KEPT_DATASETS)(self._build)

  def _build(self, client):
    examples = self._clients[client]
    return client_dataset(examples.x, examples.y, client)

  def __len__(self):
    return len(self._clients)

  def __getitem__(self, index):
    chosen = range(len(self))[index]
    return [self[i] for i in chosen] if isinstance(index, slice) else self._dataset(chosen)
