"""One training step: its parts, its engines, and one row for each loss, optimizer and policy."""
