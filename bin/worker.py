"""Computes clients for a run elsewhere: `bazel run //bin:worker -- --port=8470`."""

import ipaddress
import sys

from absl import flags

from tff_noise import child
from tff_noise import types
from tff_noise.program import command_line
from tff_noise.runtimes import worker_process

_FLAGS = flags.FlagValues()
for _define, _name, _default, _text in (
    (flags.DEFINE_string, 'host', '127.0.0.1', 'IP address to listen on.'),
    (flags.DEFINE_integer, 'port', 8470, 'Port to listen on.'),
    (flags.DEFINE_integer, 'max_concurrent_clients', worker_process.cores(),
     'Clients computed at the same time; memory grows with it. By default as many as cores.'),
    (flags.DEFINE_boolean, 'allow_beyond_loopback', False,
     'Listen where other machines can connect, or where this one allows no isolation: whoever '
     'reaches the port can run any program here.'),
    (flags.DEFINE_boolean, 'help', False, 'Show this help, and stop.'),
):
  _define(_name, _default, _text, flag_values=_FLAGS)

_HELP = """\
Starts TFF's worker, which computes clients for a run that names it, and says when it is ready:

  ./bazelw run //bin:worker -- --port=8470
  ./bazelw run //bin:train -- --runtime=remote --workers=127.0.0.1:8470

It ends with Ctrl-C or SIGTERM. TFF's worker asks nobody who they are: docs/runtimes.md shows how to
let only the driver in from another machine.
"""


def main(argv: list[str] = sys.argv) -> int:
  """Returns 0 for --help, 1 if the worker ends by itself, 2 after a mistake, 130 after Ctrl-C."""
  return command_line.run('worker', lambda: _main(argv))


def _main(argv):
  values, _ = command_line.parse(_FLAGS, argv)
  if values.help:
    print(command_line.as_called(_HELP))
    for name in sorted(_FLAGS):
      print('\n'.join(command_line.help_lines(_FLAGS[name])))
    return 0
  address = f'{_host(values)}:{values.port}'
  with child.terminable():
    worker = worker_process.WorkerProcess(
        f'tcp:{address}',
        max_concurrent_calls=values.max_concurrent_clients,
        allow_exposed=values.allow_beyond_loopback,
    )
    try:
      if worker.exposed:
        print(f'worker: {worker.exposed}, so every interface leads to it', file=sys.stderr)
      versions = ', '.join(f'{name} {v}' for name, v in worker_process.versions().items())
      print(f'worker: ready on {address} ({versions})', file=sys.stderr)
      status = worker.wait()
    finally:
      worker.stop()
  print(f'worker: TFF\'s worker ended with status {status}', file=sys.stderr)
  return 1


def _host(values):
  """Returns the host as it stands in HOST:PORT, once the flags are found to be in order."""
  try:
    host = ipaddress.ip_address(values.host)
  except ValueError:
    raise types.UsageError(f'--host must be an IP address, got {values.host!r}') from None
  if not host.is_loopback and not values.allow_beyond_loopback:
    raise types.UsageError(
        f'--host={values.host} lets other machines run any program here; keep 127.0.0.1 and use a '
        'tunnel (docs/runtimes.md), or give --allow_beyond_loopback'
    )
  if not 0 < values.port < 65536:
    raise types.UsageError(f'--port must be in [1, 65535], got {values.port}')
  if values.max_concurrent_clients < 1:
    raise types.UsageError(
        f'--max_concurrent_clients must be at least 1, got {values.max_concurrent_clients}'
    )
  return f'[{host}]' if host.version == 6 else str(host)


if __name__ == '__main__':
  sys.exit(main(sys.argv))
