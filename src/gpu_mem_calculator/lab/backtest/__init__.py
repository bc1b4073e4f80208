"""Predictions against measured runs: how far off they are, group by group, row by row."""
