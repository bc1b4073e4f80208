"""torchtitan: its job configuration."""
