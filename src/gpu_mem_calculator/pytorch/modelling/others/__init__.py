"""Modelling code of other projects: what differs from transformers, and from Megatron-Core."""
