"""Reads a Python training script: its text is followed, never executed."""
