"""TensorRT-LLM: its PyTorch backend and its TensorRT engines."""
