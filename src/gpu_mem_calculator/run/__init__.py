"""The nouns that all engines share: a run, an engine, the phases of a step, what a server holds."""
