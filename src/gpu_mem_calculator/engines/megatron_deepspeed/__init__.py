"""Megatron+DeepSpeed: Megatron's model parallelism with DeepSpeed's ZeRO."""
