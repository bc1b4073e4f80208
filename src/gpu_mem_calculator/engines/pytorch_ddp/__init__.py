"""PyTorch on one GPU, and DistributedDataParallel."""
