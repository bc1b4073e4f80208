#!/bin/bash
#SBATCH --time=00:75:00
#SBATCH --ntasks=1
#SBATCH --nodes=1
#SBATCH --cpus-per-task=1
#SBATCH --mem=16G
#SBATCH --gpus=h100_80gb:1

module load python/3.11.5
module load gcc cuda/12.2
python main.py --finetune=True --infer_default="${D_INF:-False}" --infer_custom="${C_INF:-False}" --evaluate=True
