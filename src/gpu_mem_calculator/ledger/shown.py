"""Answers that show themselves in a notebook.

How they look is `report/notebook.py`, which stands above all answers: it is loaded when a notebook
asks, and by its name, because nothing here may import it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from ..report.notebook import Picture


class Shown:
    """An answer with a view in notebooks."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """HTML without scripts, ids and addresses; light and dark."""
        html: str = _views().html_of(self)
        return html


class Drawn(Shown):
    """An answer that can be drawn, too."""

    __slots__ = ()

    def plot(self) -> Picture:
        """A picture that a notebook shows; `.save("picture.svg")` writes it to a file."""
        picture: Picture = _views().picture_of(self)
        return picture


def _views() -> ModuleType:
    from importlib import import_module

    return import_module("gpu_mem_calculator.report.notebook")
