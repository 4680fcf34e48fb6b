#!/bin/bash
# Plans and trains on 4 nodes with 8 GPUs each: sbatch examples/cluster/slurm.sh
#SBATCH --job-name=cfp
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=02:00:00
#SBATCH --requeue

set -euo pipefail
export CFP_SECRET=$(openssl rand -hex 32)     # srun hands the environment on
STORE=$SLURM_SUBMIT_DIR/cfp-store             # on a disk that survives: a requeued job goes on

srun --kill-on-bad-exit cfp plan my_project.train:make_step \
    --mesh 4x8 --budget 30m --cache-dir "$STORE" --out plan.json
srun --kill-on-bad-exit cfp train my_project.train:make_step --plan plan.json --steps 1000
