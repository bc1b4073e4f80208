"""Elements of SVG pictures."""

from __future__ import annotations


def svg_text(x: object, y: object, words: object, *, kind: str = "", anchor: str = "") -> str:
    """A text at a point, which is written as it is given; `kind` is its class."""
    attributes = {"class": kind, "x": x, "y": y, "text-anchor": anchor}
    given = "".join(f' {name}="{value}"' for name, value in attributes.items() if value != "")
    return f"<text{given}>{words}</text>"
