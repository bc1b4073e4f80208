#!/bin/bash
#SBATCH --job-name=gptoss_server_tp2
#SBATCH --partition=nextgen-gpu
#SBATCH --nodes=1
#SBATCH --gres=gpu:h100:2
#SBATCH --cpus-per-gpu=4
#SBATCH --mem=128G
#SBATCH --time=2-00:00:00
#SBATCH --ntasks=1

set -euo pipefail
export TENSOR_PARALLEL="${SLURM_JOB_GPUS_PER_NODE:-2}"
export PORT="${PORT:-8000}"

apptainer exec --nv --cleanenv \
  "$IMG_FILE" \
  bash -lc "
    set -euo pipefail
    python3 -m vllm.entrypoints.openai.api_server \
      --model openai/gpt-oss-120b \
      --tensor-parallel-size \"$TENSOR_PARALLEL\" \
      --gpu-memory-utilization 0.90 \
      --max-model-len 131072 \
      --host 0.0.0.0 --port \"$PORT\"
  "
