"""Workers that a test starts, stops and starts again."""

import contextlib
import socket

import psutil

from tests.runtimes import processes
from tff_noise.runtimes import worker_process


def free_ports(count: int) -> list[int]:
  """Returns ports of loopback that nobody listens on."""
  with contextlib.ExitStack() as stack:
    probes = [stack.enter_context(socket.socket()) for _ in range(count)]
    for probe in probes:
      probe.bind(('127.0.0.1', 0))
    return [probe.getsockname()[1] for probe in probes]


class Workers:
  """Workers of this process, on loopback.

  Attributes:
    addresses: `HOST:PORT` of each, running or not.
  """

  def __init__(self, count: int):
    self.addresses = [f'127.0.0.1:{port}' for port in free_ports(count)]
    self._running = {}
    for address in self.addresses:
      self.start(address)

  def start(self, address: str) -> None:
    """Starts the worker of an address; it ends with this thread."""
    self._running[address] = worker_process.WorkerProcess(
        f'tcp:{address}', max_concurrent_calls=2, allow_exposed=True
    )

  def process(self, address: str) -> psutil.Process:
    """TFF's own program behind an address."""
    [relay] = [
        p for p in psutil.Process().children() if f'--door=tcp:{address}' in p.cmdline()
    ]
    return processes.tff_workers(relay)[0]

  def stop(self, address: str) -> None:
    """Ends it."""
    self._running.pop(address).stop()

  def stop_all(self) -> None:
    """Ends all that run."""
    for address in list(self._running):
      self.stop(address)
