"""What a longer run takes over of a finished one, see `extension`: its files, ledger and state."""

import asyncio
import os
import shutil
from typing import Any

import numpy as np

from tff_noise import types
from tff_noise.privacy import ledger
from tff_noise.program import checkpoints
from tff_noise.program import code_version
from tff_noise.program import ledger_seal
from tff_noise.program import model_files
from tff_noise.program import run_directory

# What a run writes while it trains; models of the best validation, where there are some.
_KEPT = (
    'uplink.json', 'metrics.csv', 'timing.csv', 'tensorboard',
    os.path.join(model_files.FOLDER, model_files.BEST + '.npz'),
)


def carry(source: run_directory.RunDirectory, folder: str, structure: Any) -> None:
  """Puts the rounds of a run into the folder of a longer one, which has its own start already.

  Args:
    source: The finished run.
    folder: Has `config.json` and `scene.npz`.
    structure: What its states are read into, a `training.ProgramState`.

  Raises:
    types.UsageError: If the run ended early, or a file of it is damaged.
  """
  for name in _KEPT:
    _copy(source.file(name), os.path.join(folder, name))
  code_version.carry(source, folder)
  then, new = ledger_seal.of_run(source), run_directory.RunDirectory(folder)
  ledger_seal.write_key(folder, then.key)
  declared = run_directory.read_json(source.file('uplink.json'))
  lines = ledger.read_lines(source.file('ledger.jsonl'), declared, then)
  text, head = ledger.rechained(lines, declared, ledger_seal.of_run(new))
  run_directory.write_text(new.file('ledger.jsonl'), text)
  position = ledger.Position(len(lines), np.frombuffer(bytes.fromhex(head), np.uint8))
  asyncio.run(_carry_state(source, new, structure, position))


def _copy(path, to):
  """A file, or a folder of files; one that is not there is none."""
  if os.path.isdir(path):
    for name in os.listdir(path):
      _copy(os.path.join(path, name), os.path.join(to, name))
  elif os.path.exists(path):
    os.makedirs(os.path.dirname(to), exist_ok=True)
    shutil.copyfile(path, to)  # Of a whole tree Python's error would not say that the disk is full.


async def _carry_state(source, new, structure, position):
  manager = checkpoints.CheckpointManager(source.file('state'))
  versions = await manager.get_versions() or [0]
  rounds = run_directory.read_json(source.file('config.json'))['flags']['rounds']
  if versions[-1] != rounds:
    raise types.UsageError(
        f'--extend={source.path} ended after round {versions[-1]} of {rounds}: there is nothing '
        'to extend'
    )
  state = await manager.load(rounds, structure)
  saved = checkpoints.CheckpointManager(new.file('state'))
  await saved.save(state._replace(ledger=position), rounds)
