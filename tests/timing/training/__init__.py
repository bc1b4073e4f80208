"""Tests of the seconds of a training step."""
