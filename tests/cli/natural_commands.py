"""Commands as people type them, before they read a document."""

# Each answers. The first groups are words that new users tried; the rest was thought of beforehand.
ANSWERED = """
quick llama3.2-1b --gpu 4090
quick llama3.2-1b --gpu 3090
quick llama3.2-1b --gpu 5090
quick llama3.2-1b --gpu "RTX 4090"
quick llama3.2-1b --gpu RTX_4090
quick llama3.2-1b --gpu rtx4090
quick llama3.2-1b --gpu "NVIDIA GeForce RTX 4090"
quick llama3.2-1b --gpu "AMD Instinct MI300X"
quick llama3.2-1b --gpu "NVIDIA A100-SXM4-80GB"
quick llama3.2-1b --gpu "NVIDIA H100 80GB HBM3"
quick llama3.2-1b --gpu h100
quick llama3.2-1b --gpu H100
quick llama3.2-1b --gpu a100
quick llama3.2-1b --gpu A100-80GB
quick llama3.2-1b --gpu v100
quick llama3.2-1b --gpu h20
quick llama3.2-1b --gpu "RTX 3060" --lora --seq-len 1k
quick llama3.2-1b --gpu A6000
quick llama3.2-1b --gpu rtx6000
quick llama3.2-1b --gpu "Apple M3 Max"
quick llama3.2-1b --gpu 1g.10gb --qlora --seq-len 1k
quick Llama-3.2-1B-Instruct
infer llama3.2-1b --server sglang --gpu 4090
infer llama3.2-1b --backend trt-llm --gpu 4090
infer llama3.2-1b --engine ollama --gpu 3060 --context 4k
infer bartowski/Meta-Llama-3.1-8B-Instruct-GGUF --gpu 4090 --context 8k
quick Llama-3.1-8B-Instruct --qlora
quick mistral --qlora --gpu 4090
quick gemma-3-27b-it --qlora --gpu a100
quick olmo-2-7b --qlora
quick codellama-7b --qlora
quick deepseek-ai/DeepSeek-R1-Distill-Qwen-7B --qlora --gpu 4090
quick HuggingFaceH4/zephyr-7b-beta --qlora --gpu 4090
quick 0.5b
quick 70b --gpus 8 --zero 3 --gpu h200 --checkpointing
infer 8b
infer 70 --gpus 4
infer deepseek-v3 --gpus 8 --gpu h200
quick llama3.2-1b --seq-len 8192
quick llama3.2-1b --batch-size 4
quick llama3.2-1b --lora
quick llama3.2-1b --qlora
quick llama3.2-1b --zero 3
quick llama3.2-1b --engine zero3 --gpus 2
quick llama3.2-1b --set training.gradient_checkpointing=true
quick llama3.2-1b --set training.per_device_train_batch_size=2
quick llama3.2-1b --set training.bf16=true
quick llama3.2-1b --set training.attn_implementation=sdpa
quick llama3.2-1b --set training.optim=adamw_torch_fused
quick llama3.2-1b --set training.optim=adamw_bnb_8bit
quick llama3.2-1b --lora --set training.lora.lora_alpha=32
quick llama3.2-1b --lora --set training.lora.lora_dropout=0.05
quick llama3.2-1b --set training.seq_len=128k --gpu h200
infer llama3.1-8b --gpu h100 --ctx 128k
infer llama3.1-8b --gpu h100 --context 8k --users 32
infer deepseek-v3 --gpus 8 --gpu h200 --enable-expert-parallel
infer deepseek-v3 --gpus 8 --gpu h200 --ep
calculate run.json
calculate --config -
calculate -
calculate run.json --gpus 2 --gpu h100
train llama3.2-1b
llama3.2-1b
quick llama3.2-1b --gpu h100 --check
quick llama3.2-1b --qlora 64 --gpu 3090 --seq-len 2k
quick llama3.2-1b --lora 8 --seq-len 4096 --batch-size 2 --gpu h100
quick --qlora llama3.2-1b --gpu 4090
quick llama3.2-1b --gpus 8 --zero 3 --offload --gpu 4090
quick llama3.2-1b --gpus 8 --zero 3 --offload nvme --gpu 4090
quick llama3.2-1b --gpus 8 --zero 2 --offload cpu --gpu 4090
quick llama3.2-1b --engine fsdp --gpus 4 --offload --gpu 4090
quick llama3.2-1b --engine fsdp --gpus 4 --checkpointing --gpu h100
quick llama3.2-1b --engine fsdp2 --gpus 4 --checkpointing full
quick llama3.2-1b --engine torch --optimizer adamw_8bit --gpu 3090
quick llama3.2-1b --engine zero-2 --gpus 8
quick llama3.2-1b --engine megatron --gpus 8
quick llama3.2-1b --seq_len 8192
quick llama3.2-1b --max-seq-length 8k
quick llama3.2-1b --micro-batch-size 4
quick llama3.2-1b --bs 4 --grad-accum 8
quick llama3.2-1b --gradient-accumulation-steps 8
quick llama3.2-1b --gradient-checkpointing
quick llama3.2-1b --precision bf16
quick llama3.2-1b --bf16
quick llama3.2-1b --lora --precision fp16
quick llama3.2-1b --optimizer sgd
quick llama3.2-1b --optim paged_adamw_8bit
quick llama3.2-1b --nodes 2 --gpus 16 --engine fsdp
quick llama3.2-1b --load-in-4bit --gpu 4090
quick llama3.2-1b --recipe qlora --gpu 4090
quick llama3.2-1b --recipe full
quick llama3.2-1b --set gradient_checkpointing=true
quick llama3.2-1b --set seq_len=1k
quick llama3.2-1b --gpu-mem 24GB
quick llama3.2-1b --vram 24
quick llama3.2-1b --gpu 2x4090 --engine fsdp
quick --model llama3.2-1b
quick llama3.2-1b --qlora --format json
quick llama3.2-1b --check --quiet --gpu h100
quick llama3.2-1b --check --margin 10% --gpu h100
quick llama3.2-1b --save-run saved.json
quick llama3.2-1b --output answer.txt
llama3.2-1b --qlora --gpu 4090
--gpu 4090 llama3.2-1b
finetune llama3.2-1b --qlora
train run.json
run.json
run.json --lora
hf.json
server.json
calculate llama3.2-1b --gpu 4090
plan gpt2 --gpu 2xh100 --gbs 4 --ddp
plan --candidates run.json hf.json --gpu h100
calculate run.json --seq-len 1k --lora
calculate ds_config.json --model llama3.2-1b --gpus 2
explain run.json
explain llama3.2-1b --qlora
validate run.json --format json
validate hf.json
deepspeed --num-parameters 7B --stage 2 --format json
infer llama3.1-8b --gpu 4090 --context 8k
infer llama3.1-70b --gpus 4 --gpu h100
infer mixtral-8x7b --gpus 2 --gpu a100-80gb --ep 2
infer qwen2.5-7b --gpus 3 --gpu 4090
infer llama3.1-8b --max-model-len 128k --gpu h100
infer llama3.1-8b --quantization awq --gpu 4090 --context 32K
infer llama3.1-8b --gpus 2 --engine llamacpp --gpu 4090
infer llama3.1-70b --fewest-gpus --gpu h100
infer --model llama3.2-1b --gpu 4090
quick llama3.2-1b --fsdp --gpus 2
quick llama3.2-1b --zero3 --gpus 2
quick llama3.2-1b --engine megatron --gpus 8 --tp 2
infer llama3.1-8b --fp8 --gpu h100
infer llama3.1-8b --sglang --gpu h100
help
help quick
help train
version
models llama
cards h100
""".strip().splitlines()
# Each is refused with a next step.
GUIDED = """
quick llama3.2-1b --gpu rtx4091
quick llama3.2-1b --gpu 4090,3090
quick llama3.2-1b --gpu jetson
quick gpt-4
quick nosuchmodel
quick 1000T
quick llama3.2-1b --engine unsloth
quick llama3.2-1b --engine deepspede
quick llama3.2-1b --zero 4
quick llama3.2-1b --zero 3 --engine fsdp
quick llama3.2-1b --offload
quick llama3.2-1b --qlora --engine fsdp
quick llama3.2-1b --recipe dora
quick llama3.2-1b --set training.optim=galore_adamw
quick llama3.2-1b --set training.batchsize=2
quick llama3.2-1b --set training.torch_dtype=bfloat16
quick llama3.2-1b --users 8
quick llama3.2-1b --tp 2
quick llama3.2-1b --gpuss 2
quick llama3.2-1b --frobnicate
quick llama3.2-1b --max-steps 10
quick llama3.2-1b --attn-implementation sdpa
quick llama3.2-1b --margin 10%
quick llama3.2-1b 8
quick
infer
infer llama3.2-1b --qlora
infer gpt2 --largest-model
infer llama3.1-8b --tp 2 --gpus 4 --gpu h100
infer llama3.2-1b --gpus 2 --engine transformers
serve llama3.2-1b
estimate
quik llama3.2-1b
nosuchmodel
help nosuch
plan gpt2 --gpus 2 --engine ddp
""".strip().splitlines()
