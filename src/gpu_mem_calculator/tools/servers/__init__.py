"""The commands that start servers."""
