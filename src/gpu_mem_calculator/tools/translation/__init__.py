"""From a program section to the keys of a run file: the section, its arguments, its tool."""
