"""Documents against published schemas: Kubernetes' three newest, and three custom resources'."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import kubernetes_validate
from jsonschema import Draft202012Validator, ValidationError
from referencing import Registry, Resource

HERE = Path(__file__).parent / "schemas"
VERSIONS = list(dict.fromkeys(kubernetes_validate.utils.all_versions()))[-3:]
# Kinds that are not Kubernetes' own: distil.py made their schemas.
CUSTOM = {path.stem for path in HERE.glob("*.json")}


def _read(version: str, name: str) -> dict[str, Any]:
    folder = files(kubernetes_validate) / "kubernetes-json-schema" / f"v{version}-local-strict"
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return found


@cache
def _registry(version: str) -> Registry[Any]:
    return Resource.from_contents(_read(version, "_definitions")) @ Registry()


@cache
def schema(version: str, api_version: str, kind: str) -> Draft202012Validator:
    """The strict check of one kind: a key that it does not name is refused."""
    if kind in CUSTOM:
        found = json.loads((HERE / f"{kind}.json").read_text(encoding="utf-8"))
    else:
        group, _, name = api_version.rpartition("/")
        ending = f"{group.split('.')[0]}-{name}" if group else name
        found = _read(version, f"{kind.lower()}-{ending}")
    return Draft202012Validator(found, registry=_registry(version))


def problems(document: dict[str, Any], version: str) -> list[str]:
    """What that version of Kubernetes would refuse, each with where it is."""
    check = schema(version, document["apiVersion"], document["kind"])
    return [described(error) for error in check.iter_errors(document)]


def described(error: ValidationError) -> str:
    """Where, and what."""
    return f"{'.'.join(map(str, error.absolute_path))}: {error.message[:200]}"
