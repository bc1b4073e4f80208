"""Megatron-LM: tensor, sequence, pipeline, context and expert parallelism."""

ALIASES = ("megatron", "megatron-lm")
SHORTHANDS: dict[str, dict[str, int]] = {}
