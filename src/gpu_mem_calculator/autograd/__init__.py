"""A block as torch runs it: its operations on a tape, forward, backward and recompute, and which
tensors are alive when.
"""
