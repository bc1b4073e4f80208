"""The calculator: a run file becomes an answer with figures, parts, limits and a verdict.

It takes what `resolve` gives, asks the engine for its ledger and stream, and replays it under the
card's limit. `explain/` gives formulas, `published/` closed forms that people know. It may import
`tools` and what is below.
"""
