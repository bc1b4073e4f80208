"""The job on one real GPU, which plays one rank: what torch takes, phase by phase.

Only the functions that run a job import torch; reading cases and keeping results does not.
"""
