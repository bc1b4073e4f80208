#!/bin/bash
#SBATCH --job-name=finetune_llama_32_3b
#SBATCH --gres=gpu:1
#SBATCH --time=24:00:00
#SBATCH --mem=32G

conda activate finetune
python -m src.model.base.train_base
