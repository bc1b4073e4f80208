#!/bin/bash
#SBATCH -J llm-server
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-task=1
#SBATCH --ntasks=1
#SBATCH --constraint=ampere
#SBATCH --mem=24G
#SBATCH --time=2:59:00

set -e
VLLM_VERSION='0.1.4'
module load gcc/9.3.0
pip install "vllm==$VLLM_VERSION"

export default_num_shard=$(python -c 'import torch; print(torch.cuda.device_count())')
export default_model_path=$MODELS/$MODEL_ID

python -m vllm.entrypoints.api_server \
  --model "${MODEL_PATH:-$default_model_path}" \
  --tensor-parallel-size "${NUM_SHARD:-$default_num_shard}" \
  --port "${PORT:-$default_port}" \
  --host "0.0.0.0" \
  --download-dir $HUGGINGFACE_HUB_CACHE
