"""Megatron-LM: the arguments of pretrain_gpt.py on a command line, in scripts and in YAML."""
