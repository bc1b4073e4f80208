"""Questions for the planner, and its answers."""
