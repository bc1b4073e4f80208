"""A run file as the torch program that it describes, which `trace` and `measure` run.

Only these three packages import torch.
"""
