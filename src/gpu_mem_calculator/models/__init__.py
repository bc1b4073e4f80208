"""What a model is, on one device: layers, blocks, every parameter, adapters.

`families/` takes a config.json as data and gives an `Arch`; `arch/` answers what can be asked of
one. It may import `ledger`.
"""
