"""The job on one real GPU, which plays one rank: the bytes that torch takes, phase by phase.

Only the functions that run a job import torch; reading cases and writing results does not.
"""
