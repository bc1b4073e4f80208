"""Commands that newcomers put after `gpu-mem-calc`, each with a card.

Their files are in `newcomer/`, where scripts end in .txt. They come from issue threads, READMEs and tutorials: servers, launchers, own scripts and manifests.
"""

from __future__ import annotations

# ruff: noqa: E501  (a command is one line)
COMMANDS = """\
quick Qwen/Qwen2.5-1.5B-Instruct --gpus 8 --zero 3 --gpu h100-sxm --seq-len 16384 --batch-size 2 --checkpointing full --set training.loss=chunked
check --gpu h100-sxm accelerate launch --config_file zero3.yaml --num_processes=8 src/open_r1/sft.py --model_name_or_path Qwen/Qwen2.5-1.5B-Instruct --dataset_name x --max_length 16384 --per_device_train_batch_size 2 --bf16 --gradient_checkpointing --packing
check --gpu 4090 --set program.data.seq_len=4096 python tr.py
check --gpu a100-80gb-sxm --set program.data.seq_len=1024 python u1.py
check --gpu a100-80gb-sxm python u2.py
check --gpu 4080 python sft.py
check --gpu 4080 python sft4.py
check --gpu 4090 python qlora.py --model_name_or_path huggyllama/llama-7b --bits 4 --lora_r 64
check deployment.yaml
check --gpu l4 deployment.yaml
check --gpu h100-sxm compose.yaml
check --gpu h100-sxm servers.sh
check --gpu 4090 seq.sh
check --gpu 3060-12gb Modelfile
check --gpu 4090 llama-server -hf ggml-org/gemma-3-12b-it-GGUF:Q4_K_M -c 16384
check --gpu 4090 llama-server -hf Qwen/Qwen3-8B-GGUF:Q4_K_M -c 8192 -ngl 99
check --gpu 4090 llama-server -hf Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M -c 8192 -ngl 99 -ot ".ffn_.*_exps.=CPU"
check --gpu h100-sxm llama-server -hf ggml-org/gpt-oss-120b-GGUF -c 16384 -ngl 99
check --gpu 4090 ollama run llama3.1:70b
check --gpu 4090 ollama run qwen2.5-coder:32b
check --gpu 4090 ollama run gpt-oss:20b
check --gpu 4090 ollama run llama3.1:8b
check --gpu 4090 vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len auto
check --gpu 4090 vllm serve Qwen/Qwen2.5-7B-Instruct
check --gpu a100-40gb vllm serve /mnt/llm/Qwen2.5-32B-Instruct-AWQ --max-model-len 8192
check --gpu 2080ti vllm serve mistralai/Mistral-7B-v0.1 --dtype half
check --gpu h100-sxm --gpus 2 vllm serve CohereForAI/c4ai-command-a-03-2025 --tensor-parallel-size 2 --gpu-memory-utilization 0.95
check --gpu h100-sxm --gpus 4 vllm serve Qwen/Qwen3-235B-A22B-FP8 --tensor-parallel-size 4
check --gpu a10 --gpus 4 vllm serve Qwen/Qwen3-30B-A3B --tensor-parallel-size 4 --max-model-len 32768
check --gpu h100-sxm --gpus 8 vllm serve Qwen/Qwen3-235B-A22B --tensor-parallel-size 8 --max-model-len 131072 --rope-scaling '{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768}'
check --gpu a100-80gb-sxm docker run --gpus all vllm/vllm-openai:v0.8.5 --model Qwen/Qwen2.5-VL-7B-Instruct --limit-mm-per-prompt image=4
check --gpu h200 --gpus 8 python -m sglang.launch_server --model-path meta-llama/Llama-4-Scout-17B-16E-Instruct --tp 8
check --gpu h100-sxm sglang serve --model-path Qwen/Qwen3-8B
check --gpu a100-80gb-sxm --gpus 4 text-generation-launcher --model-id meta-llama/Llama-2-70b-hf --num-shard 4
check --gpu h100-sxm trl dpo --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct --dataset_name x --max_length 1024
check --gpu h100-sxm --set program.data.prompt=256 trl grpo --model_name_or_path Qwen/Qwen2.5-1.5B-Instruct --dataset_name x --reward_funcs accuracy_reward --use_vllm --vllm_mode colocate --max_completion_length 512
check --gpu 4090 trl sft --model_name_or_path Qwen/Qwen2.5-7B --dataset_name trl-lib/Capybara --use_peft --load_in_4bit --dtype bfloat16 --per_device_train_batch_size 2 --max_length 4096
check --gpu t4 trl sft --model_name_or_path Qwen/Qwen2-VL-2B-Instruct --dataset_name x --use_peft --load_in_4bit
check --gpu 4090 trl sft --model_name_or_path meta-llama/Llama-3.1-8B --dataset_name x --use_peft --load_in_4bit --lora_target_modules all-linear --max_length 4096 --bf16
check --gpu h100-sxm torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap --bf16 --vocab-size 32000 --mock-data --tokenizer-type NullTokenizer --use-distributed-optimizer
infer deepseek-ai/DeepSeek-R1-Distill-Qwen-14B --gpu 4090 --gpus 2 --gpu-memory-utilization 0.98 --set inference.engine_version=0.7.2
infer Qwen/Qwen3-Coder-30B-A3B-Instruct --gpu 5090 --quant q4_k_m --engine llama.cpp
""".splitlines()
