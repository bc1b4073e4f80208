#!/bin/bash
#SBATCH --job-name=dpo
#SBATCH -G 1
#SBATCH -C HX00
#SBATCH -c 6
#SBATCH --mem=128G
#SBATCH --time=4:00:00

python train_dpo.py \
  --sft_checkpoint checkpoints/sft_rank16 \
  --dpo_data dpo_pairs.jsonl \
  --beta 0.5 \
  --epochs 1 \
  --output_dir checkpoints/dpo_beta50
