"""Megatron+DeepSpeed: Megatron's model parallelism with DeepSpeed's ZeRO."""

ALIASES = ("megatron-deepspeed",)
SHORTHANDS: dict[str, dict[str, int]] = {}
