#!/bin/bash
# A grid in 8 parts on a Slurm cluster, from the checkout's folder on a disk that all nodes see:
#   sbatch docs/examples/slurm_array.sh
# A part that was lost, or had no time left, is submitted again with --array=3; what is finished is
# not run again.
#SBATCH --job-name=grid
#SBATCH --array=0-7
#SBATCH --cpus-per-task=8
#SBATCH --mem=48G
#SBATCH --time=1-00:00:00
#SBATCH --requeue
# Not SLURM_ARRAY_TASK_COUNT, which is 1 where one part is submitted again.
shards=8
exec env/bin/python -m bin.compare \
  --grid=configs/grids/fedcorr_table4.yaml --scale=full --data_dir=data/cifar-10 \
  --root_dir=runs --jobs="$SLURM_CPUS_PER_TASK" --shard="$SLURM_ARRAY_TASK_ID/$shards"
