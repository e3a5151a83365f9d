"""TFF's C++ worker as a child process, behind one door."""

import contextlib
import json
import os
import pathlib
import selectors
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib import util

from tff_noise import child
from tff_noise import heaps
from tff_noise import types
from tff_noise.runtimes import sandbox

_START_SECONDS = 90
_GREETING_SECONDS = 10
_MAX_GREETING = 1 << 16
# Microseconds of processor time that a container has, and in how many: of control groups 2 and 1.
_QUOTAS = (
    ('/sys/fs/cgroup/cpu.max',),
    ('/sys/fs/cgroup/cpu/cpu.cfs_quota_us', '/sys/fs/cgroup/cpu/cpu.cfs_period_us'),
)
_PACKAGES = ('tensorflow', 'tensorflow-federated')


class WorkerError(types.RunError):
  """A TFF worker did not start, died, or is not one this program can use."""


class WorkerProcess:
  """A running worker.

  Attributes:
    door: Where it is reached, `unix:PATH` or `tcp:HOST:PORT`.
    exposed: Why it is not isolated, so that every interface of this machine leads to it; '' where
      it is.
  """

  def __init__(
      self, door: str, *, max_concurrent_calls: int, allow_exposed: bool
  ):
    """Starts a worker and returns when it answers.

    Call it from a thread that lives as long as the worker is to live.

    Args:
      door: Where to listen.
      max_concurrent_calls: How many clients are computed at the same time, positive; each of their
        operations has one thread.
      allow_exposed: Whether it may run where the machine allows no isolation.

    Raises:
      WorkerError: If it does not start.
    """
    self.door = door
    # Found, not imported, which takes ten seconds.
    found = util.find_spec('tensorflow_federated')
    if found is None:
      raise ModuleNotFoundError(name='tensorflow_federated')  # See `command_line.run`.
    package = os.path.dirname(found.origin)
    binary = os.path.join(package, 'data', 'worker_binary')
    self._process = child.start(
        [
            sys.executable, '-S', sandbox.__file__, f'--door={door}',
            f'--greeting={json.dumps(versions())}', f'--parent={os.getpid()}',
            *(['--exposed'] if allow_exposed else []), '--', binary, '--port={port}',
            f'--max_concurrent_computation_calls={max_concurrent_calls}',
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={
            # A client's operations are computed where they are called, which needs no waiting for
            # other threads and has the same bits whatever the number of cores: sums over parts
            # would be of as many parts.
            'TF_NUM_INTRAOP_THREADS': '1',
            **heaps.worker_environment(),
        },
    )
    word, _, rest = _greeting(self._process).partition(' ')
    if word not in (sandbox.READY, sandbox.EXPOSED):
      self.stop()
      raise WorkerError(f'the TFF worker did not start: {rest or "it said nothing"}')
    self.exposed = rest

  def wait(self, seconds: float | None = None) -> int | None:
    """Returns the exit status once it has ended; None if it still runs after `seconds`."""
    with contextlib.suppress(subprocess.TimeoutExpired):
      return self._process.wait(seconds)
    return None

  def kill(self) -> None:
    """Ends it at once, even where it hangs; `stop` is needed all the same."""
    self._process.kill()

  def stop(self) -> None:
    """Ends it; returns when it is gone."""
    child.stop(self._process)
    self._process.stdout.close()


def _greeting(process):
  with selectors.DefaultSelector() as selector:
    selector.register(process.stdout, selectors.EVENT_READ)
    if not selector.select(_START_SECONDS):
      return f'{sandbox.FAILED} no answer within {_START_SECONDS} s'
    return process.stdout.readline().decode().strip()


def cores() -> int:
  """Returns the number of cores that this process may use, and a worker that it starts.

  That is those it may run on, or fewer where a container is given less time than they have.
  """
  allowed = len(os.sched_getaffinity(0))
  for files in _QUOTAS:
    with contextlib.suppress(OSError, ValueError):  # Not there, or without a limit ('max').
      texts = ' '.join(pathlib.Path(file).read_text() for file in files)
      quota, period = map(int, texts.split())
      if quota > 0:  # -1 is none.
        allowed = min(allowed, max(1, -(-quota // period)))
  return allowed


def versions() -> dict[str, str]:
  """Returns the versions that a driver and its workers have to agree on, by package."""
  return {name: metadata.version(name) for name in _PACKAGES}


def ask_versions(address: str) -> Mapping[str, str]:
  """Returns the versions of the worker at `HOST:PORT`.

  Raises:
    OSError: If nobody answers.
    WorkerError: If who answers is not a `bin/worker`.
  """
  _, place = sandbox.parse_door('tcp:' + address)
  with socket.create_connection(place, _GREETING_SECONDS) as peer:
    peer.sendall(sandbox.QUESTION)
    answer = b''
    while len(answer) < _MAX_GREETING and (more := peer.recv(_MAX_GREETING)):
      answer += more
  with contextlib.suppress(ValueError):
    found = json.loads(answer)
    if isinstance(found, dict):
      return found
  raise WorkerError(f'who answers at {address} is not a worker that bin/worker started')
