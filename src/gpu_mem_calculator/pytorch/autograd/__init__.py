"""Torch's autograd on one block: its operations on a tape, run forward, backward and again under a
checkpoint, and which tensors are alive at each point.
"""
