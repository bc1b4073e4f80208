"""transformers' own inference: `generate`, or one forward pass, on one GPU."""
