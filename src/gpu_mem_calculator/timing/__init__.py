"""How fast a run could be, from what its cards can compute, read and send."""
