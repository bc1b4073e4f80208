"""Plans for training: the space of set-ups, the search over arrays, the best ones in full."""
