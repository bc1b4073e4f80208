"""The seconds of one training step on one rank, and their parts."""
