"""One generation: passes, caches, the choice of a token, instants, the stream of allocations."""
