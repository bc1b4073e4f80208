"""What torch does with memory: autograd, the modelling code of libraries, the allocator.

`modelling/` transcribes blocks onto the tape of `autograd/`, which gives what a block keeps and its
peaks; `replay/` takes a stream of allocations and gives segments. It may import `models` and
`ledger`.
"""
