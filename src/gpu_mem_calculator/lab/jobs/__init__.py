"""A run file as the torch program that it describes, which `trace` and `measure` run.

Only the packages of the lab import torch.
"""
