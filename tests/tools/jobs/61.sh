#!/bin/bash
#SBATCH -J vllm-server
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-task=a100l.3:1
#SBATCH --ntasks=1
#SBATCH --constraint=ampere
#SBATCH --mem=24G
#SBATCH --time=2:59:00
#SBATCH --partition=unkillable

MODEL_ID=meta-llama/Llama-2-7b-chat-hf PORT=$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4)) bash vllm/vllm-server.sh
