"""Data as JSON and as YAML."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def to_json(data: Any) -> str:
    """Indented JSON."""
    import json

    return json.dumps(data, indent=2, ensure_ascii=False)


def to_yaml(data: Any) -> str:
    """YAML in the same order."""
    import yaml

    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    return text
