"""Do two checkouts give the same bytes in metrics.csv? What a redesign must not change.

  python -m benchmarks.same_metrics --before=DIR [--after=DIR] [--cache=DIR] [--only=REGEX]

Runs every method, optimizer, stage, way of summing and runtime for a few rounds on digits in both
checkouts, one after the other, and compares columns as text. Prints a line a run as they end;
status 1 if a run failed or anything differs but what a run or --aside names. --cache keeps what
--before gave, so that it is computed once, and needs no --before where it has all. The last digits
of sums differ between kinds of CPU: a cache is good for the machine that made it. All runs take a
quarter of an hour a side on two cores.

  python -m benchmarks.same_metrics --before=DIR --after= --cache=DIR    # fills the cache only
  python -m benchmarks.same_metrics --cache=DIR --after_flag=--seed=1    # must differ everywhere
"""

import argparse
import contextlib
import csv
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tff_noise import child

_LIMIT_SECONDS = 600
_NUM_WORKERS = 2

# What the beginning of a flag is in the newer code.
_RENAMED = {'--param=judge=': '--param=selector='}
_COMMON = ('--clients=6', '--clients_per_round=3', '--local_epochs=1', '--rounds=4')


class Run(NamedTuple):
  """A run of bin/train.

  Attributes:
    flags: Its flags after those of `_COMMON`.
    before: More flags, which only the checkout of --before knows.
    expected_to_differ: Columns whose values differ by design.
  """

  flags: tuple[str, ...]
  before: tuple[str, ...] = ()
  expected_to_differ: tuple[str, ...] = ()


def _plain(method, *flags):
  return Run((f'--method={method}', *flags))


def _feddpcont(*flags):
  """Flips in the clients' computations, which was one of two ways and became the only one."""
  return Run(('--method=feddpcont', *flags), before=('--label_flips=client',))


def _private(method, *flags):
  """Reports came from HMAC before and come from Threefry now: other reports, other numbers."""
  return Run(
      (f'--method={method}', '--training_labels=private', *flags),
      expected_to_differ=('test_accuracy', 'test_loss', 'train_loss'),
  )


_SHOWN = '--allow_per_client_disclosure'
# FedCorr with a split that always calls some client noisy, so that labels are corrected in each
# iteration and after fine-tuning; 12 + 2 + 3 rounds, or fewer where several clients share one.
_FEDCORR = (
    '--method=fedcorr', _SHOWN, '--partition=iid', '--noise=client_uniform', '--noise_rho=0.5',
    '--rounds=8', '--stages=preprocess:2,finetune:2,usual:3', '--param=split_guard=false',
    '--param=confidence=0.1',
)
# 4 rounds of 4 clients in the first stage, 2 of 2 in the second, with half of the clients.
_CLIPFL = (
    '--method=clipfl', _SHOWN, '--clients=8', '--clients_per_round=4', '--partition=iid',
    '--noise=client_symmetric', '--noise_rho=0.5', '--noise_rate=0.8', '--rounds=6',
    '--param=keep=2',
)
# Small batches, whose losses say something else than those of all examples.
_POC = (_SHOWN, '--param=candidates=5', '--batch_size=4')
_VALIDATION = ('--param=judge=validation', '--validation_fraction=0.1')
_AGREEMENT = ('--param=judge=agreement',)
_LID = ('--param=judge=lid',)
_REFERENCE = '--param=semantics=reference'
_LATE = '--arrivals=uniform:0.5:4'
_DP = ('--client_dp_noise=0.5', '--client_dp_clip=0.3')
# Clients of different sizes, and so of different numbers of steps.
_UNEVEN = ('--partition=dirichlet', '--partition_alpha=0.5')
_SECURE = '--aggregation=secure_sum'
_CNN = ('--model=cnn', '--norm=group')
_BATCH_NORM = ('--model=cnn', '--norm=batch')

RUNS = {
    # Each optimizer alone.
    'fedavg': _plain('fedavg'),
    'fedprox': _plain('fedprox', '--param=mu=0.1'),
    'fedprox_norm': _plain('fedprox', '--param=mu=0.1', '--param=term=norm'),
    'fednova': _plain('fednova', *_UNEVEN, '--momentum=0.9'),
    'fedadam': _plain('fedadam'),
    'fedyogi': _plain('fedyogi'),
    'fedadagrad': _plain('fedadagrad'),
    'feddyn': _plain('feddyn', '--param=alpha=0.1'),
    'scaffold': _plain('scaffold'),
    'fedbn_group': _plain('fedbn', *_CNN),
    'fedbn_batch': _plain('fedbn', *_BATCH_NORM),
    'median': _plain('median', _SHOWN),
    'poc': _plain('poc', *_POC),
    'poc_batch': _plain('poc', *_POC, '--param=loss=batch'),
    'poc_stale': _plain('poc', *_POC, '--param=loss=stale'),
    # What holds for all methods.
    'momentum': _plain('fedavg', '--momentum=0.9'),
    'weight_decay': _plain('fedavg', '--weight_decay=0.01'),
    'augmentation': _plain('fedavg', *_CNN, '--augmentation=crop_flip'),
    'loss': _plain('fedavg', '--label_smoothing=0.1', '--temperature=2'),
    'loss_rescaled': _plain('fedavg', '--temperature=2', '--temperature_reading=rescale'),
    'batch_norm': _plain('fedavg', *_BATCH_NORM),
    'late': _plain('fedavg', _LATE),
    'seldom': _plain('fedavg', '--eval_every=2', '--checkpoint_every=1', '--batch_size=10'),
    # Privacy.
    'private': _private('fedavg'),
    'dp': _plain('fedavg', *_DP),
    'dp_secure': _plain('fedavg', *_DP, _SECURE),
    'scaffold_secure': _plain('scaffold', _SECURE),
    # FedDPCont.
    'feddpcont': _feddpcont('--param=warmup_rounds=1', '--param=ramp_rounds=2'),
    'feddpcont_expected': _feddpcont(
        '--param=contrast=expected', '--param=warmup_rounds=1', '--param=ramp_rounds=2'
    ),
    'feddpcont_weight': _feddpcont('--param=weight=0.5', '--param=server_learning_rate=0.5'),
    'feddpcont_none': _plain('feddpcont', '--label_prior=none'),
    'feddpcont_inverse': _feddpcont('--label_prior=inverse', '--label_epsilon=2'),
    'feddpcont_projected': _feddpcont('--label_prior=projected'),
    # By default so few labels leave shrinkage nothing but the uniform prior.
    'feddpcont_informed': _feddpcont('--label_epsilon=4'),
    'feddpcont_expected_informed': _feddpcont('--label_epsilon=4', '--param=contrast=expected'),
    'feddpcont_private': _private('feddpcont', '--learning_rate=0.5'),
    'feddpcont_secure': _feddpcont(_SECURE),
    'feddpcont_dp': _feddpcont(*_DP),
    'feddpcont_batch_norm': _feddpcont(
        *_BATCH_NORM, '--augmentation=crop_flip', '--label_smoothing=0.1', '--momentum=0.5'
    ),
    'feddpcont_fedavg': _feddpcont('--base=fedavg'),
    'feddpcont_fedprox': _feddpcont('--base=fedprox', '--base_param=mu=0.1'),
    'feddpcont_fednova': _feddpcont('--base=fednova', *_UNEVEN),
    'feddpcont_fedadam': _feddpcont('--base=fedadam'),
    'feddpcont_fedyogi': _feddpcont('--base=fedyogi'),
    'feddpcont_fedadagrad': _feddpcont('--base=fedadagrad'),
    'feddpcont_feddyn': _feddpcont('--base=feddyn', '--base_param=alpha=0.1'),
    'feddpcont_scaffold': _feddpcont('--base=scaffold'),
    'feddpcont_fedbn': _feddpcont('--base=fedbn', *_CNN),
    'feddpcont_median': _feddpcont('--base=median', _SHOWN),
    'feddpcont_poc': _feddpcont('--base=poc', '--base_param=candidates=5', _SHOWN),
    # FedCorr: each stage, by the paper and by its public code.
    'fedcorr': Run(_FEDCORR),
    'fedcorr_reference': Run((*_FEDCORR, _REFERENCE)),
    'fedcorr_fraction': Run((*_FEDCORR, '--param=fraction=0.5')),
    'fedcorr_reference_fraction': Run((*_FEDCORR, _REFERENCE, '--param=fraction=0.5')),
    'fedcorr_reference_images': Run(
        (*_FEDCORR, _REFERENCE, '--param=fraction=0.5', *_BATCH_NORM, '--augmentation=crop_flip')
    ),
    'fedcorr_feddyn': Run((*_FEDCORR, '--base=feddyn', '--base_param=alpha=0.1')),
    'fedcorr_median': Run((*_FEDCORR, '--base=median')),
    'fedcorr_poc': Run((*_FEDCORR, '--base=poc', '--base_param=candidates=5')),
    'fedcorr_late': Run((*_FEDCORR, _LATE)),
    # ClipFL: each selector, and other optimizers under it.
    'clipfl': Run((*_CLIPFL, *_VALIDATION)),
    'clipfl_agreement': Run((*_CLIPFL, *_AGREEMENT)),
    'clipfl_lid': Run((*_CLIPFL, *_LID)),
    'clipfl_late': Run((*_CLIPFL, *_VALIDATION, _LATE, '--param=score=rate')),
    'clipfl_fedprox': Run((*_CLIPFL, *_LID, '--base=fedprox', '--base_param=mu=0.1')),
    'clipfl_fednova': Run((*_CLIPFL, *_AGREEMENT, '--base=fednova', *_UNEVEN)),
    'clipfl_fedadam': Run((*_CLIPFL, *_VALIDATION, '--base=fedadam')),
    # When clients are pruned, the mean of what the others keep was taken by the driver, in another
    # order than the federated mean that is declared now: the seventh digit.
    'clipfl_scaffold': Run(
        (*_CLIPFL, *_VALIDATION, '--base=scaffold'),
        expected_to_differ=('test_loss', 'validation_loss', 'train_loss'),
    ),
    'clipfl_feddyn': Run(
        (*_CLIPFL, *_LID, '--base=feddyn', '--base_param=alpha=0.1'),
        expected_to_differ=('test_loss', 'train_loss'),
    ),
    'clipfl_poc': Run((*_CLIPFL, *_AGREEMENT, '--base=poc', '--base_param=candidates=5')),
    # Runtimes; `local` is that of all others.
    'remote': _feddpcont('--base=scaffold', '--runtime=remote'),
    'accelerator': _feddpcont('--base=scaffold', '--runtime=accelerator'),
}


class Metrics(NamedTuple):
  """What a run left.

  Attributes:
    rows: `metrics.csv`, the names of the columns first; empty if the run failed.
    seconds: How long the program took.
    error: The last line of what a failed one said, else empty.
  """

  rows: list[list[str]]
  seconds: float
  error: str = ''

  def columns(self) -> dict[str, list[str]]:
    """Returns the values of each column, as they stand in the file."""
    names, *rows = self.rows
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


class Difference(NamedTuple):
  """What is not the same: where, and how."""

  column: str
  text: str


def differences(before: Metrics, after: Metrics) -> list[Difference]:
  """Returns what differs between two finished runs, a column at a time."""
  old, new = before.columns(), after.columns()
  found = []
  for name in dict.fromkeys((*old, *new)):
    if name not in new or name not in old:
      side = 'before' if name in old else 'after'
      found.append(Difference(name, f'{name} only {side}'))
      continue
    unequal = (i for i, (a, b) in enumerate(zip(old[name], new[name], strict=False)) if a != b)
    row = next(unequal, None)
    if row is not None:
      where = old['round'][row] if 'round' in old else row + 1
      found.append(
          Difference(name, f'{name} from round {where}, {old[name][row]} / {new[name][row]}')
      )
  if [n for n in old if n in new] != [n for n in new if n in old]:
    found.append(Difference('', 'order of columns'))
  if len(before.rows) != len(after.rows):
    found.append(Difference('', f'{len(before.rows) - 1} / {len(after.rows) - 1} rows'))
  return found


def verdict(
    before: Metrics, after: Metrics, aside: Sequence[str], expected: Sequence[str]
) -> tuple[bool, str]:
  """Returns whether two runs are the same, and a text for the table.

  Args:
    before: The one.
    after: The other.
    aside: Columns that may differ, and be missing.
    expected: Columns whose values may differ.
  """
  if before.error or after.error:
    sides = {'before': before.error, 'after': after.error}
    return False, 'FAILED ' + '; '.join(f'{side}: {e}' for side, e in sides.items() if e)
  both = before.columns().keys() & after.columns().keys()
  groups = {'DIFFERS': [], 'differs as expected': [], 'aside': []}
  for column, text in differences(before, after):
    if column in aside:
      group = 'aside'
    else:
      group = 'differs as expected' if column in expected and column in both else 'DIFFERS'
    groups[group].append(text)
  said = [f'{name}: {"; ".join(texts)}' for name, texts in groups.items() if texts]
  if not groups['DIFFERS'] and not groups['differs as expected']:
    said.insert(0, 'equal')
  return not groups['DIFFERS'], '. '.join(said)


class _FailedError(Exception):
  """A run has left no result."""


class Checkout(NamedTuple):
  """Sources, and what their programs run in.

  Attributes:
    folder: Where they are.
    environment: Variables of the programs.
  """

  folder: str
  environment: dict[str, str]

  @contextlib.contextmanager
  def program(self, log: str, *command: str) -> Iterator[subprocess.Popen]:
    """Runs `python -m command` here until the end of the block, its output in the file `log`."""
    # Not into a pipe: TFF's worker would hold it open.
    with open(log, 'wb') as output:
      process = child.start(
          [sys.executable, '-m', *command],
          cwd=self.folder,
          env=self.environment,
          stdin=subprocess.DEVNULL,
          stdout=output,
          stderr=subprocess.STDOUT,
      )
      try:
        yield process
      finally:
        child.stop(process)

  @contextlib.contextmanager
  def workers(self, folder: str) -> Iterator[str]:
    """Starts workers on loopback for as long as the block lasts; gives their addresses."""
    with contextlib.ExitStack() as stack:
      logs = {p: os.path.join(folder, f'worker_{p}.log') for p in _free_ports(_NUM_WORKERS)}
      processes = [
          stack.enter_context(self.program(log, 'bin.worker', f'--port={port}'))
          for port, log in logs.items()
      ]
      deadline = time.monotonic() + _LIMIT_SECONDS
      while not all('worker: ready on' in _read(log) for log in logs.values()):
        if time.monotonic() > deadline or any(p.poll() is not None for p in processes):
          raise _FailedError(f'no worker, {[_last_line(log) for log in logs.values()]}')
        time.sleep(0.2)
      yield ','.join(f'127.0.0.1:{port}' for port in logs)

  def train(self, name: str, flags: Sequence[str], folder: str) -> Metrics:
    """Runs bin/train once; leaves its output in `folder`/log and, if it ends well, metrics.csv."""
    os.makedirs(folder, exist_ok=True)
    started = time.monotonic()
    try:
      rows = self._train(name, flags, folder)
    except _FailedError as error:
      return Metrics([], time.monotonic() - started, str(error))
    return Metrics(rows, time.monotonic() - started)

  def _train(self, name, flags, folder):
    log, metrics = (os.path.join(folder, file) for file in ('log', 'metrics.csv'))
    with tempfile.TemporaryDirectory() as root, contextlib.ExitStack() as stack:
      if '--runtime=remote' in flags:
        flags = (*flags, '--workers=' + stack.enter_context(self.workers(root)))
      process = stack.enter_context(
          self.program(log, 'bin.train', *flags, f'--root_dir={root}', f'--run_name={name}')
      )
      try:
        status = process.wait(_LIMIT_SECONDS)
      except subprocess.TimeoutExpired:
        raise _FailedError(f'not finished after {_LIMIT_SECONDS} s') from None
      if status:
        raise _FailedError(f'status {status}, {_last_line(log)}')
      shutil.copyfile(os.path.join(root, name, 'metrics.csv'), metrics)
    return _rows(metrics)

  def commit(self) -> str:
    """Returns the commit that is checked out; empty where there is no Git."""
    git = ['git', '-C', self.folder, 'rev-parse', 'HEAD']
    return subprocess.run(git, check=False, capture_output=True, text=True).stdout.strip()


def _free_ports(count):
  with contextlib.ExitStack() as stack:
    probes = [stack.enter_context(socket.create_server(('127.0.0.1', 0))) for _ in range(count)]
    return [probe.getsockname()[1] for probe in probes]


def _read(path):
  with open(path, encoding='utf-8', errors='replace') as file:
    return file.read()


def _last_line(path):
  return (_read(path).strip().splitlines() or ['nothing said'])[-1]


def _rows(path):
  with open(path, encoding='utf-8', newline='') as file:
    return list(csv.reader(file))


def _environment(bytecode):
  """Variables of programs that leave no file in a checkout, and find no module in another one."""
  kept = {
      k: v for k, v in os.environ.items() if k not in ('PYTHONPATH', 'PYTHONDONTWRITEBYTECODE')
  }
  # Where bytecode is not kept, a program takes twice the time to start.
  return {**kept, 'PYTHONPYCACHEPREFIX': bytecode}


class Cache(NamedTuple):
  """The results of --before.

  Attributes:
    folder: Where they are: a folder a run.
    checkout: Computes what is missing; None for nothing.
    commit: What is checked out there; results of another one are computed anew.
  """

  folder: str
  checkout: Checkout | None
  commit: str | None

  def get(self, name: str, flags: Sequence[str]) -> Metrics:
    """Returns the result of a run with these flags, from the cache if it is there."""
    folder = os.path.join(self.folder, name)
    path = os.path.join(folder, 'run.json')
    if os.path.exists(path):
      made = json.loads(_read(path))
      if made['flags'] == list(flags) and self.commit in (None, made['commit']):
        return Metrics(_rows(os.path.join(folder, 'metrics.csv')), made['seconds'])
    if self.checkout is None:
      return Metrics([], 0.0, 'not in the cache, and there is no --before')
    if os.path.exists(path):
      os.remove(path)
    found = self.checkout.train(name, flags, folder)
    if not found.error:
      made = {'flags': list(flags), 'commit': self.commit, 'seconds': found.seconds}
      with open(path + '.part', 'w', encoding='utf-8') as file:
        json.dump(made, file, indent=1)
      os.replace(path + '.part', path)  # Last: what is there is complete.
    return found


def _renamed(flag):
  for old, new in _RENAMED.items():
    flag = flag.replace(old, new)
  return flag


def _arguments(argv):
  parser = argparse.ArgumentParser(
      prog='same_metrics', description=__doc__, allow_abbrev=False,
      formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--before', metavar='DIR', help='clean checkout of the older code')
  parser.add_argument(
      '--after', metavar='DIR', default='.', help='checkout of the newer code; empty for none'
  )
  parser.add_argument('--cache', metavar='DIR', help='where results of --before are kept')
  parser.add_argument('--only', metavar='REGEX', default='', help='runs whose name it is found in')
  parser.add_argument(
      '--aside', metavar='COLUMN,...', default='bytes_up,bytes_down', help='columns that may differ'
  )
  parser.add_argument(
      '--after_flag', metavar='FLAG', action='append', default=[],
      help='one more flag for the runs of --after',
  )
  values = parser.parse_args(argv)
  if not values.before and not values.cache:
    parser.error('--before or --cache must be given')
  return values


def main(argv: list[str]) -> int:
  """Prints the table; returns 0 if all is the same, 1 if not."""
  values = _arguments(argv)
  names = [name for name in RUNS if re.search(values.only, name)]
  with child.terminable(), tempfile.TemporaryDirectory() as scratch:
    cache = os.path.abspath(values.cache or os.path.join(scratch, 'before'))
    environment = _environment(os.path.join(cache, 'bytecode'))
    old, new = (
        Checkout(os.path.abspath(d), environment) if d else None
        for d in (values.before, values.after)
    )
    cached = Cache(cache, old, old.commit() if old else None)
    print('| run | before, s | after, s | metrics.csv |')
    print('| --- | --- | --- | --- |', flush=True)
    bad = []
    for name in names:
      run = RUNS[name]
      flags = (*_COMMON, *run.flags)
      before = cached.get(name, (*flags, *run.before))
      if new is None:
        same, text, seconds = not before.error, before.error or 'computed', ''
      else:
        flags = (*map(_renamed, flags), *values.after_flag)
        after = new.train(name, flags, os.path.join(scratch, 'after'))
        same, text = verdict(before, after, values.aside.split(','), run.expected_to_differ)
        seconds = f'{after.seconds:.1f}'
      print(f'| {name} | {before.seconds:.1f} | {seconds} | {text} |', flush=True)
      if not same:
        bad.append(name)
  print(f'{len(names)} runs, {len(bad)} not the same' + (': ' if bad else '') + ', '.join(bad))
  return 1 if bad or not names else 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
