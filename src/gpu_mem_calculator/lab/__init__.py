"""What needs torch or a GPU: traces, measurements, and the comparison with measured runs.

It takes a run file or a script and gives the ledger as torch makes it. Nothing below imports it,
and torch is imported when it runs. It may import `advice` and what is below.
"""
