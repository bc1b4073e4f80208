"""Accelerate's configuration file."""
