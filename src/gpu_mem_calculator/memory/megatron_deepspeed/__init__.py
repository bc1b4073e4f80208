"""Megatron-DeepSpeed: its layers, its ranks as DeepSpeed sees them, and what stands beside them."""
