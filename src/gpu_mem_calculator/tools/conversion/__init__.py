"""From what a user gives, a command or a file, to a run; and from a run to other formats."""
