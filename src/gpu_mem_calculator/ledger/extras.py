"""How an extra of this package is installed."""

from __future__ import annotations


def install(extra: str) -> str:
    """The command that installs an extra; the package is on no index, so a clone is needed."""
    return f'pip install -e ".[{extra}]" in the clone of the project'
