#!/bin/bash
#SBATCH --gres=gpu:ampere:1
#SBATCH --job-name=finetune
#SBATCH --partition=gpu
#SBATCH --mem=100G

python -u finetune.py --model llama31 --noconfidence --train --save --push
