"""One training step: its instants, weights, optimizer states, activations, and the stream of
allocations.
"""
