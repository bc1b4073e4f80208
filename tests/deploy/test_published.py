"""Every document of every case is what its published schema takes, and no more."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from .cases import CASES, documents
from .published import CUSTOM, VERSIONS, problems


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", CASES)
def test_a_case_is_valid(name: str, version: str) -> None:
    """No key unknown, none of a wrong type, none missing."""
    found = {one["kind"]: problems(one, version) for one in documents(name)}
    assert not any(found.values()), found


def test_the_versions_are_the_three_newest() -> None:
    """A newer one comes with kubernetes-validate."""
    assert [one.rsplit(".", 1)[0] for one in VERSIONS] == ["1.35", "1.36", "1.37"]


def first(kind: str) -> dict[str, Any]:
    """Some case's document of that kind, to be changed."""
    return copy.deepcopy(
        next(one for name in CASES for one in documents(name) if one["kind"] == kind)
    )


def pod_spec(document: dict[str, Any]) -> dict[str, Any]:
    """The first pod spec in a document, however deep."""
    held = document if isinstance(document, dict) else {}
    if "containers" in held:
        return held
    below = [v for v in held.values() if isinstance(v, dict)]
    below += [one for v in held.values() if isinstance(v, list) for one in v]
    return next((spec for one in below if (spec := pod_spec(one))), {})


@pytest.mark.parametrize("kind", ["Job", "Deployment", *sorted(CUSTOM)])
def test_an_unknown_key_is_found(kind: str) -> None:
    """In the object's own specification."""
    wrong = first(kind)
    wrong["spec"]["surprise"] = 1
    assert any("surprise" in one for one in problems(wrong, VERSIONS[-1]))


@pytest.mark.parametrize("kind", ["Job", "Deployment", *sorted(CUSTOM - {"TrainJob"})])
def test_a_mistake_in_a_pod_is_found(kind: str) -> None:
    """A key unknown to pods, and a number in place of text; a TrainJob's are its runtime's."""
    wrong = first(kind)
    pod_spec(wrong)["hostNetworking"] = True
    assert any("hostNetworking" in one for one in problems(wrong, VERSIONS[-1]))
    wrong = first(kind)
    pod_spec(wrong)["containers"][0]["args"] = [8]
    assert any("args" in one for one in problems(wrong, VERSIONS[-1]))
