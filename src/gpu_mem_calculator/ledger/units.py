"""Bytes of each unit; no other module defines them."""

KIB = 2**10
MIB = 2**20
GIB = 2**30
