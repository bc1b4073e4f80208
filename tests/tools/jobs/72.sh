#!/bin/bash
#SBATCH --job-name=dpo
#SBATCH --time=00-15:00:00
#SBATCH --nodes=1
#SBATCH --gpus=h200:2
#SBATCH --mem=256G
#SBATCH --partition=gpu_h200

set -euo pipefail
module load CUDA/12.6.0
sh dpo_from_confusion_to_eval_all.sh
