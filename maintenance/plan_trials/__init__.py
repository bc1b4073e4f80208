"""First choices of the planner for a list of questions, as cases that a GPU can try."""
