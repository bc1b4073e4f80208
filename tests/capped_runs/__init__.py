"""Runs for trials under a cap of memory, drawn before any of them was run (`cases.jsonl`)."""
