"""An upper bound on the speed of a server, and the share of it that servers reach."""
