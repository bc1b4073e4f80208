"""Shell scripts: the commands that a script would start, read without starting anything."""
