"""Batches of mixed length: in which order a run draws them, and what torch reserves after them."""
