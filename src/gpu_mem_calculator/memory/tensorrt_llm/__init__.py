"""TensorRT-LLM's memory: its PyTorch backend and its TensorRT engines."""
