"""litgpt: its fine-tuning and pre-training."""
