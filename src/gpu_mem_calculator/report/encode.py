"""Data as JSON and as YAML."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def answer(data: Any) -> Any:
    """An answer with the version of its fields in front; a list as it is."""
    from collections.abc import Mapping

    from ..ledger.schema_version import SCHEMA_VERSION

    return {"schema_version": SCHEMA_VERSION, **data} if isinstance(data, Mapping) else data


def to_json(data: Any) -> str:
    """Indented JSON."""
    import json

    return json.dumps(data, indent=2, ensure_ascii=False)


def to_yaml(data: Any) -> str:
    """YAML in the same order."""
    import yaml

    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    return text
