"""The runtime that flags ask for."""

import contextlib
import sys
from collections.abc import Sequence

from tff_noise.runtimes import accelerator
from tff_noise.runtimes import local
from tff_noise.runtimes import remote
from tff_noise.runtimes import worker_process

# A GPU's memory holds few clients, its operations keep it busy.
_ON_ACCELERATOR = 2


def opened(
    runtime: str,
    *,
    max_concurrent_clients: int | None = None,
    workers: Sequence[str] = (),
    shows_client_errors: bool = False,
) -> contextlib.AbstractContextManager[None]:
  """Returns a context in which TFF computations run where `runtime` says.

  Args:
    runtime: local, remote or accelerator; see the modules of these names.
    max_concurrent_clients: Clients computed at the same time, positive, by default as many as
      cores where the runtime is local and 2 where it is the accelerator; of remote workers, their
      own business.
    workers: `HOST:PORT` of remote workers.
    shows_client_errors: Whether errors say what TensorFlow says, which may hold clients' data.
  """
  accelerator.take_memory_as_needed()  # In each of them this process may use a GPU for itself.
  if runtime == 'remote':
    return remote.runtime(workers, shows_client_errors=shows_client_errors)
  if runtime == 'accelerator':
    print(f'runtime: {accelerator.describe_devices()}', file=sys.stderr)
    return accelerator.runtime(
        max_concurrent_clients or _ON_ACCELERATOR, shows_client_errors=shows_client_errors
    )
  return local.runtime(
      max_concurrent_clients or worker_process.cores(), shows_client_errors=shows_client_errors
  )


def repeats(runtime: str) -> bool:
  """Returns whether a round that is computed again there, by the same code, is so to the bit.

  GPUs sum in the order in which their threads come, and how many remote workers there are decides
  how sums are cut.

  Args:
    runtime: See `opened`.
  """
  return runtime == 'local' or (runtime == 'accelerator' and not accelerator.has_gpu())
