"""Ollama's commands, names and Modelfiles."""
