#!/bin/bash
#SBATCH --job-name=qwen3
#SBATCH --gres=gpu:1
#SBATCH --mem=8G
#SBATCH --time=0

conda activate env_llm
python "$1"
