#!/bin/sh
#SBATCH --partition=GPUQ
#SBATCH --time=00-02:00:00
#SBATCH --nodes=1
#SBATCH --gres=gpu:A100m40:1
#SBATCH --job-name="GPT-J-6B server"

module load CUDA/11.3.1
port=8765
transformers-cli serve --port $port --device 0 --task text-generation --model andstor/gpt-j-6B-smart-contract --config andstor/gpt-j-6B-smart-contract
