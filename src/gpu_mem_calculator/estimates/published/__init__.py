"""Closed forms and tables that others publish, each with its citation."""
