"""Random runs: every family, engine and option at random sizes, estimated and traced."""
