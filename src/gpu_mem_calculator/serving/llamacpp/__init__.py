"""llama.cpp: layers on GPUs and host, KV cache, compute buffers."""
