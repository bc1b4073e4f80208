#!/bin/bash
#SBATCH --job-name=r1
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --gres=gpu:8
#SBATCH --partition=hopper-prod
#SBATCH --requeue
#SBATCH --time=3-00:00:00

module load cuda/12.4
set -x -e

MODEL=""
TASK=""
CONFIG_SUFFIX=""
ACCELERATOR=""
DP=1
TP=1
OPTIONAL_ARGS=""

while [[ $# -gt 0 ]]; do
  case $1 in
    --model) MODEL="$2"; shift 2 ;;
    --task) TASK="$2"; shift 2 ;;
    --config) CONFIG_SUFFIX="$2"; shift 2 ;;
    --accelerator) ACCELERATOR="$2"; shift 2 ;;
    --dp) DP="$2"; shift 2 ;;
    --tp) TP="$2"; shift 2 ;;
    --args) OPTIONAL_ARGS="$2"; shift 2 ;;
    *) exit 1 ;;
  esac
done

CONFIG_FILE=recipes/$MODEL/$TASK/config_$CONFIG_SUFFIX.yaml
GRAD_ACC_STEPS=$(grep 'gradient_accumulation_steps' $CONFIG_FILE | awk '{print $2}')
MODEL=$(grep 'model_name_or_path:' $CONFIG_FILE | awk '{print $2}')
REVISION=$(grep 'model_revision:' $CONFIG_FILE | head -n 1 | awk '{print $2}')

NUM_NODES=$SLURM_NNODES
GPUS_PER_NODE=8
WORLD_SIZE=$(($NUM_NODES*$GPUS_PER_NODE))
NODELIST=($(scontrol show hostnames $SLURM_JOB_NODELIST))
MASTER_ADDR=${NODELIST[0]}
MASTER_PORT=6000
TRAIN_NODES=("${NODELIST[@]}")

USE_VLLM="false"
if [[ -f "$CONFIG_FILE" ]] && grep -qE '^\s*use_vllm:\s*true' "$CONFIG_FILE"; then
  USE_VLLM="true"
fi
if [[ "$USE_VLLM" == "true" ]]; then
  TRAIN_NODES=("${NODELIST[@]:0:$((NUM_NODES - 1))}")
  VLLM_NODE=${NODELIST[-1]}
  WORLD_SIZE=$((WORLD_SIZE - GPUS_PER_NODE))
  NUM_NODES=$((NUM_NODES - 1))
  srun --nodes=1 --ntasks=1 --nodelist=$VLLM_NODE trl vllm-serve --model $MODEL --revision $REVISION --tensor_parallel_size $TP --data_parallel_size $DP &
  OPTIONAL_ARGS="$OPTIONAL_ARGS --vllm_server_host=$VLLM_NODE"
fi

export CMD="src/open_r1/$TASK.py --config $CONFIG_FILE $OPTIONAL_ARGS"
export LAUNCHER="accelerate launch \
  --config_file recipes/accelerate_configs/$ACCELERATOR.yaml \
  --gradient_accumulation_steps $GRAD_ACC_STEPS \
  --num_machines $NUM_NODES \
  --num_processes $WORLD_SIZE \
  --main_process_ip $MASTER_ADDR \
  --main_process_port $MASTER_PORT \
  --machine_rank $SLURM_PROCID \
  --rdzv_backend=c10d \
  --max_restarts 1 \
  --tee 3"

NODELIST=$(IFS=,; echo "${TRAIN_NODES[*]}")
SRUN_ARGS="--wait=60 --kill-on-bad-exit=1 --nodes=$NUM_NODES --ntasks=$NUM_NODES --nodelist=$NODELIST"
srun $SRUN_ARGS bash -c "$LAUNCHER $CMD" 2>&1
