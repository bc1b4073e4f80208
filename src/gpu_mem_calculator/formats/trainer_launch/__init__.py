"""How programs on top of transformers.Trainer are launched: Accelerate's settings, DeepSpeed's file."""
