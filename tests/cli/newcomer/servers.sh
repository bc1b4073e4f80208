vllm serve Qwen/Qwen3-8B --gpu-memory-utilization 0.5 --max-model-len 8192 --port 8001 &
vllm serve Qwen/Qwen3-4B --gpu-memory-utilization 0.4 --max-model-len 8192 --port 8002 &
vllm serve Qwen/Qwen3-1.7B --gpu-memory-utilization 0.4 --max-model-len 8192 --port 8003 &
wait
