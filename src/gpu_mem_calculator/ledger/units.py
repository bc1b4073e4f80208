"""The only place that knows how many bytes a unit has (reports format with it)."""

KIB = 2**10
MIB = 2**20
GIB = 2**30
