"""A job on fake tensors: torch's own program runs, and no memory is allocated.

The fake tensors are CPU tensors, because a torch without CUDA can only differentiate those;
`cuda.py` makes torch choose kernels as it would on a GPU. Where a program keeps some tensors on the
host, as DeepSpeed's offload does, `device_names.py` distinguishes GPU and host.
"""
