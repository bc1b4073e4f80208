"""How fast and how small the program is, as ratios to a reference measured in the same run."""
