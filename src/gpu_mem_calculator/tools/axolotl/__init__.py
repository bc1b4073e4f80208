"""Axolotl's files and commands."""
