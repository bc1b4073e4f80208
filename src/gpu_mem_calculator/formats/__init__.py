"""Configurations of other programs, from a run file."""
