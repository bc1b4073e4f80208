"""One training step: instants, weights, optimizer states, activations, allocation stream."""
