"""Why a run died: what it printed, set against what it should have taken.

It takes a text and, where one is known, a run, and gives causes with their evidence and remedies.
`rules` has a function for each kind of death; `causes.toml` has the words. It may import
`estimates`, `advice.training`, `advice.serving` and what is below.
"""
