"""What a run does beside its steps, a file for each phase: loading, saving, and others.

A phase gives what it takes of a GPU and of a node's memory. It may import `training.step`.
"""
