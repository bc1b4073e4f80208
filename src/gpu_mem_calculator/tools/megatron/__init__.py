"""Megatron-LM: the arguments of pretrain_gpt.py."""
