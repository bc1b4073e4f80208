#!/bin/bash
#SBATCH --job-name=sft-preflight
#SBATCH --partition=dev-g
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=7
#SBATCH --mem-per-gpu=60G
#SBATCH --time=00:15:00

set -euo pipefail
module purge
CONFIG="${CONFIG:-configs/urdu_700m_sft_v1.yaml}"
SIF="${SIF:-multitorch.sif}"
export MIOPEN_USER_DB="${MIOPEN_DIR}/config"

singularity run \
  "${SIF}" \
  python -m training.train_sft --config "${CONFIG}" --preflight
