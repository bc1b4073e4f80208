"""How programs on top of transformers.Trainer are launched: by Accelerate or DeepSpeed."""
