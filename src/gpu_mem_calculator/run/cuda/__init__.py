"""GPU memory outside torch's allocator: context, libraries, NCCL."""
