"""Measured speed of kernels, collectives and hosts, as functions of their sizes."""
