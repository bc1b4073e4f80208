#!/bin/bash
#SBATCH -J tgi-server
#SBATCH --cpus-per-task=6
#SBATCH --gpus-per-task=1
#SBATCH --ntasks=1
#SBATCH --mem=24G
#SBATCH --time=2:59:00

set -e
module load apptainer
default_num_shard=$(singularity exec -C --nv $TGI_TMP/env/tgi.sif python -c 'import torch; print(torch.cuda.device_count())')

apptainer run -C --nv \
  --env HF_HUB_OFFLINE=1 \
  --env HUGGINGFACE_HUB_CACHE=/tgi-cache \
  -B $TGI_DIR/tgi-data:/tgi-cache -B $TGI_TMP/model:/tgi-model \
  $TGI_TMP/env/tgi.sif \
  --model-id /tgi-model \
  --num-shard "${NUM_SHARD:-$default_num_shard}" \
  --port "${PORT:-$default_port}" --master-port "${MASTER_PORT:-$default_master_port}"
