"""Text Generation Inference's memory: the warm-up prefill, and the cache that is given the rest."""
