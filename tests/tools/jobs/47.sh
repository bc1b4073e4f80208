#!/bin/bash
#SBATCH --job-name=rl-gspo-3B
#SBATCH --partition=main
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=128
#SBATCH --gres=gpu:8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=500:00:00

set -xeuo pipefail
export GPUS_PER_NODE=8
NNODES=${SLURM_JOB_NUM_NODES}
export NNODES
export VLLM_ATTENTION_BACKEND=FLASH_ATTN

adv_estimator=grpo
loss_mode=gspo
loss_agg_mode="seq-mean-token-mean"
MODEL_PATH=Qwen/Qwen2.5-3B-Instruct
offload=false
rollout_engine=vllm
rollout_mode=async
if [ "$rollout_engine" = "vllm" ]; then
  export VLLM_USE_V1=1
fi
gpu_memory_utilization=0.8
train_batch_size=512
ppo_mini_batch_size=128
ppo_micro_batch_size_per_gpu=8
n_resp_per_prompt=16
max_prompt_length=$((1024 * 2))
max_response_length=$((1024 * 8))
sp_size=1
use_dynamic_bsz=true
actor_ppo_max_token_len=$(((max_prompt_length + max_response_length) * 2))
infer_ppo_max_token_len=$(((max_prompt_length + max_response_length) * 3))
offload=true
gen_tp=1
entropy_checkpointing=true

python3 -m verl.trainer.main_ppo \
  algorithm.adv_estimator=${adv_estimator} \
  actor_rollout_ref.actor.policy_loss.loss_mode=${loss_mode} \
  data.train_batch_size=${train_batch_size} \
  data.max_prompt_length=${max_prompt_length} \
  data.max_response_length=${max_response_length} \
  actor_rollout_ref.rollout.n=${n_resp_per_prompt} \
  actor_rollout_ref.actor.use_kl_loss=false \
  actor_rollout_ref.model.use_remove_padding=true \
  actor_rollout_ref.actor.use_dynamic_bsz=${use_dynamic_bsz} \
  actor_rollout_ref.ref.log_prob_use_dynamic_bsz=${use_dynamic_bsz} \
  actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=${use_dynamic_bsz} \
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=${actor_ppo_max_token_len} \
  actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=${infer_ppo_max_token_len} \
  actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=${infer_ppo_max_token_len} \
  actor_rollout_ref.rollout.name=${rollout_engine} \
  actor_rollout_ref.rollout.mode=${rollout_mode} \
  actor_rollout_ref.model.path="${MODEL_PATH}" \
  actor_rollout_ref.model.enable_gradient_checkpointing=true \
  actor_rollout_ref.actor.optim.lr=1e-6 \
  actor_rollout_ref.actor.ppo_mini_batch_size=${ppo_mini_batch_size} \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=${ppo_micro_batch_size_per_gpu} \
  actor_rollout_ref.actor.fsdp_config.param_offload=${offload} \
  actor_rollout_ref.actor.fsdp_config.optimizer_offload=${offload} \
  actor_rollout_ref.actor.loss_agg_mode=${loss_agg_mode} \
  actor_rollout_ref.actor.ulysses_sequence_parallel_size=${sp_size} \
  actor_rollout_ref.rollout.gpu_memory_utilization=${gpu_memory_utilization} \
  actor_rollout_ref.rollout.tensor_model_parallel_size=${gen_tp} \
  actor_rollout_ref.rollout.enable_chunked_prefill=true \
  actor_rollout_ref.rollout.max_num_batched_tokens=$((max_prompt_length + max_response_length)) \
  actor_rollout_ref.ref.fsdp_config.param_offload=${offload} \
  actor_rollout_ref.ref.ulysses_sequence_parallel_size=${sp_size} \
  actor_rollout_ref.actor.entropy_checkpointing=${entropy_checkpointing} \
  trainer.n_gpus_per_node="${GPUS_PER_NODE}" \
  trainer.nnodes="${NNODES}" \
  $@
