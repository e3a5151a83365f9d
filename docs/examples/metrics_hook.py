"""What is done with each round's metrics besides metrics.csv and TensorBoard.

  python -m bin.train --metrics_hook=docs.examples.metrics_hook:json_lines

`json_lines` writes them to a file. W&B and MLflow are as short; here they are, not installed:

  def wandb_hook(run_dir, flags):
    import wandb
    if wandb.run:
      wandb.finish()  # bin/compare has several runs in one process.
    wandb.init(project='noisy labels', dir=run_dir, config=flags)
    return lambda metrics, round_num: wandb.log(metrics, step=round_num)

  def mlflow_hook(run_dir, flags):
    import mlflow
    mlflow.end_run()
    mlflow.start_run()
    mlflow.log_params(flags)
    return lambda metrics, round_num: mlflow.log_metrics(
        {k: v for k, v in metrics.items() if not isinstance(v, str)}, step=round_num
    )

A hook is called after the round is in metrics.csv, in another thread while the next one computes;
again for a round that is run again. What it raises ends the run, which the same command continues.
"""

import json
import math
import os


def json_lines(run_dir, flags):
  """Returns what appends a line a round to metrics.jsonl."""
  del flags  # Of bin/train, by name.
  path = os.path.join(run_dir, 'metrics.jsonl')

  def write(metrics, round_num):
    # JSON knows no NaN, which is what was not measured in this round.
    row = {
        k: v if isinstance(v, str) else float(v) for k, v in metrics.items()
        if isinstance(v, str) or math.isfinite(v)
    }
    with open(path, 'a', encoding='utf-8') as file:
      file.write(json.dumps({'round': round_num, **row}) + '\n')

  return write
