"""SGLang: weights, KV-cache pool, and what runs in the memory that the pool leaves."""
