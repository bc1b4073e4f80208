#!/bin/bash
#SBATCH --job-name=instruct-sft
#SBATCH --nodes=1
#SBATCH --gpus=8
#SBATCH --time=4:00:00

set -euo pipefail
RUN_NAME="${RUN_NAME:-instruct-sft}"
GPUS="${GPUS:-8}"
LEARNING_RATE="${LEARNING_RATE:-8e-5}"
SEQ_LEN="${SEQ_LEN:-32768}"
NUM_EPOCHS="${NUM_EPOCHS:-2}"
GLOBAL_BATCH_SIZE="${GLOBAL_BATCH_SIZE:-$((SEQ_LEN * 32))}"
SAVE_FOLDER="${SAVE_FOLDER:-./checkpoints/${RUN_NAME}}"
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

torchrun --nproc-per-node="$GPUS" \
  "${OLMOCORE_PATH}/src/scripts/train/sft/OLMo-sft.py" train \
  --run_name="$RUN_NAME" \
  --cluster=slurm \
  --model.model_path="$BASE_CKPT" \
  --dataset.name=dolci-instruct-sft \
  --dataset.sequence_length="$SEQ_LEN" \
  --save_folder="$SAVE_FOLDER" \
  --train_module.optim.lr="$LEARNING_RATE" \
  --train_module.scheduler.t_warmup=200 \
  --global_batch_size="$GLOBAL_BATCH_SIZE" \
  --batch_size_config.num_nodes=1 \
  --batch_size_config.gpus_per_node="$GPUS" \
  --trainer.max_epochs="$NUM_EPOCHS"
