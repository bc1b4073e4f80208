"""Megatron-Core 0.19.2: layers, attention, experts, head."""
