#!/bin/bash
#SBATCH -J vllm-server
#SBATCH --cpus-per-task=24
#SBATCH --gpus-per-task=a100l:2
#SBATCH --ntasks=1
#SBATCH --constraint=ampere&nvlink
#SBATCH --mem=128G
#SBATCH --time=2:59:00
#SBATCH --partition=short-unkillable

MODEL_ID=meta-llama/Llama-2-70b-chat-hf PORT=$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4)) bash vllm/vllm-server.sh
