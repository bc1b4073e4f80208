"""A result as plain data, JSON and YAML, with exact bytes."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from ..core.models import MemoryResult
from ..core.serving_answers import Answers


def as_data(result: MemoryResult) -> dict[str, Any]:
    """The result's fields as plain data."""
    data: dict[str, Any] = msgspec.to_builtins(result)
    return data


def answers_data(result: MemoryResult, answers: Answers) -> dict[str, Any]:
    """The fields of a server's result and of its answers; infinite shares are null."""
    data = as_data(result)
    answers_fields = msgspec.to_builtins(answers)
    rows = answers_fields["matrix"]["shares"]
    answers_fields["matrix"]["shares"] = [
        [s if s is not None and s < 1e9 else None for s in r] for r in rows
    ]
    return {**data, **answers_fields}


def to_json(data: Any) -> str:
    """Indented JSON."""
    return json.dumps(data, indent=2, ensure_ascii=False)


def to_yaml(data: Any) -> str:
    """YAML in the same order."""
    import yaml

    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    return text
