"""Text Generation Inference: the warm-up prefill, and the cache that takes the rest."""
