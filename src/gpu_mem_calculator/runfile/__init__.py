"""A run file becomes a run: text, keys, models, defaults, rules.

It takes a mapping in our own names, and gives what `resolve` makes of it: a `Run` or a served run,
with notes, warnings and limits. It knows no other tool's files. It may import `catalog` and what is
below.
"""
