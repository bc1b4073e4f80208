"""Mutation tests: small faults are put into the formulas, one at a time; the tests must notice.

`sites.py` finds places and samples them, `switch.py` puts all of them into the code as
`changed if __mutant__(number) else original`, `session.py` is a pytest plugin: it records once
which tests reach which place, then runs these tests, the fastest first, in one fork per mutant.
`known.toml` lists mutants that no test can notice, with the reason. `python -m maintenance.mutants
-h`.
"""
