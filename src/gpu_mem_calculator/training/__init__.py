"""One training step: its parts, its engines, and one row for each loss and optimizer.

An engine takes a `Run` and gives a ledger, and its stream for the replay. It may import `run` and
what is below; engines do not import each other.
"""
