"""One process on one GPU: its choices, its shard of the weights, its memory outside torch.

It gives the nouns that all engines share: `Run`, `Engine`, phases, limits, a server's memory. It
may import `pytorch` and what is below.
"""
