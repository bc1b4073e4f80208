"""Measures on one GPU what the time of a step is made of: kernels, the host, whole steps.

`kernels` times single kernels, `runs` times the steps of run files, without probes or, for the
host's time, of models so small that the GPU waits. Each result is a JSON line as soon as it is
there. `catalog/curves/` has what was measured.
"""
