#!/bin/bash
#SBATCH --partition=a40x
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --mem=256gb
#SBATCH --cpus-per-gpu=12
#SBATCH --job-name=fsdp

export MASTER_PORT=12340
export WORLD_SIZE=$(($SLURM_JOB_NUM_NODES * $SLURM_GPUS_PER_NODE))
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
module load cuda/11.8

MAX_BATCH_SIZE=8
GRAD_ACCUM_STEPS=1

srun python fsdp_qlora/train.py \
  --world_size=$WORLD_SIZE \
  --master_addr=$MASTER_ADDR \
  --master_port=$MASTER_PORT \
  --model_name meta-llama/Llama-2-7b-hf \
  --dataset dummy \
  --batch_size $MAX_BATCH_SIZE \
  --context_length 512 \
  --gradient_accumulation_steps $GRAD_ACCUM_STEPS \
  --train_type custom_qlora \
  --use_gradient_checkpointing True \
  --use_activation_cpu_offload True \
  --use_cpu_offload False \
  --log_to stdout \
  --verbose true
