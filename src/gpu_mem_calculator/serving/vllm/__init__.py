"""vLLM: weights, profile run, KV-cache blocks, CUDA graphs."""
