"""Megatron-LM: tensor, sequence, pipeline, context and expert parallelism."""
