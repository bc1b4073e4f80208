"""PyTorch on one GPU, and DistributedDataParallel."""

ALIASES = ("pytorch", "ddp")
SHORTHANDS: dict[str, dict[str, int]] = {"torch": {}, "accelerate": {}, "single": {}}
