"""PyTorch FSDP2: units, the instants of a step, gathers and reductions."""
