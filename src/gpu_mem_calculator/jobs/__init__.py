"""A run file as the torch program that it describes: what `trace` and `measure` run.

The only rooms that know torch are this one and those two; nothing else imports them.
"""
