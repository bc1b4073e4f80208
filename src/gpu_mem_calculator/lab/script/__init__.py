"""A user's own training script on fake tensors: `gpu-mem-calc trace -- python train.py`.

`launch.py` reads the command. `run.py` starts the script in a process of its own, in which
`child.py` makes torch behave as on the GPU; what was allocated comes back as a `Recording`.

Tensors on the GPU are fake: they have shapes and no values. Tensors on the host are real, except
large ones of floating-point numbers, which would be weights. So the script reads its own data.
"""
