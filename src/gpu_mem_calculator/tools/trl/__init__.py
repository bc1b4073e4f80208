"""TRL's trainers (trl 1.16.0)."""
