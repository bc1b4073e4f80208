"""Inference by transformers: `generate`, or one forward pass, on one GPU."""
