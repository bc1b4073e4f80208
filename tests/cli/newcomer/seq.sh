trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name x --max_length 1024 --bf16
accelerate launch --num_processes 2 --use_fsdp -m trl.scripts.sft --model_name_or_path Qwen/Qwen2.5-7B --dataset_name x --max_length 8192 --per_device_train_batch_size 8 --bf16
