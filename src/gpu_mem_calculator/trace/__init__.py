"""A job on fake tensors: torch's own program runs, and no memory is touched.

The tensors claim to be on the CPU, because a torch without CUDA can only differentiate those;
`cuda.py` makes torch choose as it would on a GPU. Where a program keeps some of its tensors on the
host, as DeepSpeed's offload does, `places.py` tells the two sides apart.
"""
