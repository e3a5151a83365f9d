"""Runs a server behind one door: `python sandbox.py --door=DOOR [--greeting=TEXT] -- COMMAND...`.

TFF's worker listens on every interface, asks nobody who they are, and runs any TensorFlow graph it
is sent, graphs that read and write files included. No flag changes that. So it runs in a network
namespace of its own, which has nothing but a loopback device, and this program relays what comes
through the one door it has: a socket file that only its owner may open, or one address and port.

A program of its own, and of the standard library alone, since a process that runs TensorFlow or
gRPC can neither fork safely nor change namespaces for all of its threads.
"""

import argparse
import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PR_SET_PDEATHSIG = 1
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_IFREQ = '16sh14x'

_CHUNK = 1 << 20
_BACKLOG = 64
_START_SECONDS = 60

# What a peer may send in place of HTTP/2 to learn who answers; as long as that begins.
QUESTION = b'WHO ARE\n'
# Words on standard output: what has become of the server.
READY, EXPOSED, FAILED = 'ready', 'exposed', 'failed'


def parse_door(text: str) -> tuple[socket.AddressFamily, str | tuple[str, int]]:
  """Returns the family and address of `unix:PATH` or `tcp:HOST:PORT`.

  Raises:
    ValueError: If it is neither.
  """
  kind, _, rest = text.partition(':')
  if kind == 'unix' and rest:
    return socket.AF_UNIX, rest
  host, _, port = rest.rpartition(':')
  if kind == 'tcp' and host and port.isdigit():
    return (socket.AF_INET6 if ':' in host else socket.AF_INET), (host.strip('[]'), int(port))
  raise ValueError(f'expected unix:PATH or tcp:HOST:PORT, got {text!r}')


def _listen(text):
  family, address = parse_door(text)
  door = socket.socket(family)
  if family != socket.AF_UNIX:
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
  door.bind(address)
  if family == socket.AF_UNIX:
    os.chmod(address, 0o600)
  return door


def _libc():
  return ctypes.CDLL(None, use_errno=True)


def isolate() -> str:
  """Moves this process, and its children to come, into a network with loopback alone.

  Returns:
    '' if it did, otherwise why the machine does not allow it.
  """
  # Who may, needs no user namespace; where that is forbidden, a user namespace may be allowed.
  for flags in (_CLONE_NEWNET, _CLONE_NEWUSER | _CLONE_NEWNET):
    # A network that is entered and cannot be used is not left again: a child enters it first.
    problem = _of_child(lambda flags=flags: _enter(flags))
    if not problem:
      return _enter(flags)
  return problem


def _enter(flags):
  """As `isolate`, by these flags; some machines let a network be made and not its devices used."""
  if _libc().unshare(flags):
    return f'unshare: {os.strerror(ctypes.get_errno())}'
  try:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
      request = fcntl.ioctl(device, _SIOCGIFFLAGS, struct.pack(_IFREQ, b'lo', 0))
      name, flags = struct.unpack(_IFREQ, request)
      fcntl.ioctl(device, _SIOCSIFFLAGS, struct.pack(_IFREQ, name, flags | _IFF_UP))
  except OSError as e:
    return f'its loopback device: {e.strerror}'
  return ''


def _of_child(ask):
  """Returns the text that `ask` returns in a child process, which takes its namespaces with it."""
  ours, childs = os.pipe()
  child = os.fork()
  if not child:
    try:
      os.write(childs, ask().encode())
    finally:
      os._exit(0)
  os.close(childs)
  with open(ours, encoding='utf-8') as answer:
    text = answer.read()
  os.waitpid(child, 0)
  return text


def _die_with_parent(parent):
  # New credentials, such as those of a user namespace, make the kernel forget this.
  _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  if os.getppid() != parent:
    sys.exit(1)


def _free_port():
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    return probe.getsockname()[1]


def _start(command):
  parent = os.getpid()
  # No threads yet, so that a function may run between fork and exec.
  return subprocess.Popen(
      command,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
      preexec_fn=lambda: _die_with_parent(parent),
  )


def _wait_until_open(process, port):
  """Returns '' when the server accepts connections, otherwise what happened."""
  deadline = time.monotonic() + _START_SECONDS
  while time.monotonic() < deadline:
    if process.poll() is not None:
      return f'ended with status {process.returncode}'
    with contextlib.suppress(OSError), socket.create_connection(('127.0.0.1', port), timeout=1):
      return ''
    time.sleep(0.02)
  return f'did not answer within {_START_SECONDS} s'


def _copy(source, target):
  buffer = memoryview(bytearray(_CHUNK))
  with contextlib.suppress(OSError):
    while size := source.recv_into(buffer):
      target.sendall(buffer[:size])
  for end in (source, target):
    with contextlib.suppress(OSError):
      end.shutdown(socket.SHUT_RDWR)


def _serve(peer, port, greeting):
  """Relays one connection, or answers the question who this is."""
  with peer:
    first = b''
    with contextlib.suppress(OSError):
      while len(first) < len(QUESTION) and (more := peer.recv(len(QUESTION) - len(first))):
        first += more
    if first == QUESTION:
      with contextlib.suppress(OSError):
        peer.sendall(greeting)
      return
    with contextlib.suppress(OSError), socket.create_connection(('127.0.0.1', port)) as server:
      for end in (peer, server):
        with contextlib.suppress(OSError):  # A socket file has no such option.
          end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
      server.sendall(first)
      back = threading.Thread(target=_copy, args=(server, peer), daemon=True)
      back.start()
      _copy(peer, server)
      back.join()


def _accept(door, port, greeting):
  while True:
    peer, _ = door.accept()
    threading.Thread(target=_serve, args=(peer, port, greeting), daemon=True).start()


def main(argv: list[str]) -> int:
  """Runs until the server ends, and returns its exit status."""
  parser = argparse.ArgumentParser(prog='sandbox')
  parser.add_argument('--door', required=True)
  parser.add_argument('--greeting', default='')
  parser.add_argument('--exposed', action='store_true', help='run even where it is not isolated')
  parser.add_argument('--parent', type=int, required=True)
  parser.add_argument('command', nargs='+', help='{port} stands for the port to listen on')
  arguments = parser.parse_args(argv)
  try:
    # Before the namespace changes: a socket belongs to the one it was made in.
    door = _listen(arguments.door)
  except (OSError, ValueError) as e:
    print(f'{FAILED} cannot listen on {arguments.door}: {e}', flush=True)
    return 1
  problem = isolate()
  if problem and not arguments.exposed:
    print(f'{FAILED} this machine allows no network namespace ({problem})', flush=True)
    return 1
  _die_with_parent(arguments.parent)
  port = _free_port()
  process = _start([part.replace('{port}', str(port)) for part in arguments.command])
  failure = _wait_until_open(process, port)
  if failure:
    process.kill()
    print(f'{FAILED} the server {failure}', flush=True)
    return 1
  try:
    door.listen(_BACKLOG)
  except OSError as e:  # Another process was as quick.
    process.kill()
    print(f'{FAILED} cannot listen on {arguments.door}: {e}', flush=True)
    return 1
  greeting = arguments.greeting.encode()
  threading.Thread(target=_accept, args=(door, port, greeting), daemon=True).start()
  print(f'{EXPOSED} {problem}' if problem else READY, flush=True)
  status = process.wait()
  # As a shell says it, of one that a signal ended.
  return status if status >= 0 else 128 - status


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
