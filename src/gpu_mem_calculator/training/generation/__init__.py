"""One generation: passes, caches, the choice of a token, instants, allocation stream."""
