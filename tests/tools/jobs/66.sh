#!/bin/bash
#SBATCH --job-name=vllm_qwen
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=12
#SBATCH --gres=gpu:a40:8
#SBATCH --mem=128GB
#SBATCH --qos=debug

VLLM_LOGGING_LEVEL=DEBUG vllm serve Qwen/Qwen3-32B \
  --enable-reasoning \
  --reasoning-parser deepseek_r1 \
  --tensor-parallel-size 8 \
  --max-num-seqs 1 \
  --gpu-memory-utilization 0.85 \
  --device cuda
