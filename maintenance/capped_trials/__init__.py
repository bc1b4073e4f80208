"""Trials under a cap: does a run survive in exactly the memory that the calculator says it needs?

Each case is predicted first, then run on a real GPU under caps taken from the prediction, and where
wanted the least cap is bisected. `tests/capped_runs/` has the cases.
"""
