"""What programs print about memory: read line by line, with every figure as it was printed.

It takes text and gives lines, tracebacks and tables. Each tool's lines are rows of `log.toml` in
its folder; those of torch, the driver and the operating system are rows of the files here. No
cause is named here (advice/diagnosis does), and nothing is estimated.
"""
