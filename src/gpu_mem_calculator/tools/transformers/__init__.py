"""transformers.Trainer."""
