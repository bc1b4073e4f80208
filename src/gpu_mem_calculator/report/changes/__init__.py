"""The runs of changed configurations: on a screen, as a comment, for the programs of a forge."""
