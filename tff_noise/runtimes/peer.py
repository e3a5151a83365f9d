"""A TFF worker that someone else started, watched while it is used."""

import sys
import threading
from collections.abc import Callable

from tff_noise.runtimes import connection
from tff_noise.runtimes import worker_process


class Peer:
  """A worker at an address, gone or not.

  A thread asks for a sign of life again and again: of a worker that is there, by a call that does
  nothing, on a channel of its own, so that neither long computations nor large messages count as
  silence; of one that is gone, by connecting anew, since it may have been started again.

  Attributes:
    address: `HOST:PORT`.
  """

  def __init__(
      self, address: str, *, silence: float, every: float, on_change: Callable[[], None]
  ):
    """Tries to connect, and starts to watch.

    Args:
      address: `HOST:PORT`.
      silence: Seconds without an answer after which it counts as gone.
      every: Seconds between signs of life.
      on_change: Called, in another thread, when it is gone or back.
    """
    self.address = address
    self._silence = silence
    self._every = every
    self._on_change = on_change
    self._closed = threading.Event()
    self._lock = threading.Lock()
    self._channels = ()
    self._stub = None
    self._problem = ''
    self._try_to_connect()
    self._watcher = threading.Thread(target=self._watch, daemon=True)
    self._watcher.start()

  @property
  def stub(self) -> connection.Stub | None:
    """What computations are sent through; None while the worker is gone."""
    return self._stub

  @property
  def problem(self) -> str:
    """Why it is gone."""
    return self._problem

  def close(self) -> None:
    """Closes the connection, which ends its calls; `join` waits until nothing watches it."""
    with self._lock:
      self._closed.set()
    _close(self._forget(self._stub, 'closed'))

  def join(self) -> None:
    """After `close`: waits for the thread that watches, which may still wait for an answer."""
    self._watcher.join()

  def lose(self, stub: connection.Stub, problem: str) -> None:
    """Says that a call through `stub` found the worker gone."""
    channels = self._forget(stub, problem)
    if channels:
      print(f'runtime: worker {self.address} is gone ({problem})', file=sys.stderr)
      self._on_change()
    # Ends the calls that still wait for an answer.
    _close(channels)

  def _forget(self, stub, problem):
    """Returns the channels, once."""
    with self._lock:
      if self._stub is not stub:
        return ()
      channels, self._channels, self._stub = self._channels, (), None
      self._problem = problem
    return channels

  def _watch(self):
    while not self._closed.wait(self._every):
      with self._lock:
        stub, channels = self._stub, self._channels
      if stub is None:
        if self._try_to_connect():
          print(f'runtime: worker {self.address} is back', file=sys.stderr)
          self._on_change()
      elif problem := connection.sign_of_life(channels[0], self._silence):
        self.lose(stub, problem)

  def _try_to_connect(self):
    try:
      found = worker_process.ask_versions(self.address)
    # ValueError: of a name that no host can have.
    except (OSError, ValueError, worker_process.WorkerError) as error:
      self._problem = str(error)
      return False
    own = worker_process.versions()
    if found != own:
      self._problem = f'it has {_text(found)}, this program {_text(own)}'
      return False
    # One for the signs of life, one for everything else.
    channels = tuple(connection.open_channel(f'tcp:{self.address}') for _ in range(2))
    # Whoever answers the question is not yet the worker, which may hang.
    if problem := connection.sign_of_life(channels[0], self._silence):
      _close(channels)
      self._problem = problem
      return False
    with self._lock:
      if not self._closed.is_set():
        self._channels = channels
        self._stub = connection.Stub(channels[1])
        self._problem = ''
        return True
    _close(channels)
    return False


def _close(channels):
  for channel in channels:
    channel.close()


def _text(versions):
  return ', '.join(f'{name} {version}' for name, version in versions.items())
