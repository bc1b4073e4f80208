"""FSDP2: its units, the instants of its step, and what they hold."""
