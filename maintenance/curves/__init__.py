"""Derives the files of `catalog/curves/` from the wheel aiconfigurator-core (Apache-2.0)."""
