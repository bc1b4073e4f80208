"""The instructions of a Dockerfile, for the tests that look at them."""

from __future__ import annotations

import re

from tests.conftest import ROOT

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
TEXT = DOCKERFILE.read_text(encoding="utf-8")
Step = tuple[str, str]  # the instruction's name, and the rest of it with flags


def steps(text: str) -> list[Step]:
    """Each instruction, with its continued lines as one."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    whole = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines)).splitlines()
    pairs = [line.strip().partition(" ")[::2] for line in whole if line.strip()]
    return [(name.upper(), rest.strip()) for name, rest in pairs]


def stages(text: str = TEXT) -> dict[str, list[Step]]:
    """The instructions of each stage by its name, in order, FROM first."""
    found: dict[str, list[Step]] = {}
    for name, rest in steps(text):
        if name == "FROM":
            found[rest.split()[-1]] = []
        found[next(reversed(found))].append((name, rest))
    return found


def last(stage: str, name: str) -> str:
    """What the last such instruction of a stage says."""
    return [rest for step, rest in stages()[stage] if step == name][-1]
