"""The vocabulary: numbers, bytes, dtypes, the mesh, sources, entries and the ledger itself.

It takes nothing and gives the nouns that every other room speaks in, with the versions of the
frameworks that are cited. It touches no file, socket or framework, and imports no other room.
"""
