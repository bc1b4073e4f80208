"""transformers 5.17.0: layers, attention, experts, heads."""
