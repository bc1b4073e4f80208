"""Reads vLLM's commands and configuration files."""
