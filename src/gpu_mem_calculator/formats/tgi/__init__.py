"""text-generation-launcher."""
