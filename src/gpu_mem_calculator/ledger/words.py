"""Names in a line of text, where a list of quoted words would take a page."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """The set of a text's words, which spaces and line ends separate."""
    return frozenset(text.split())
