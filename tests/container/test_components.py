"""What is in the image is listed, pinned and licensed, and the lists are current."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.metadata import distribution
from typing import Any

import components
import pytest
from packaging.requirements import Requirement

from gpu_mem_calculator import __version__
from tests.conftest import ROOT

from .dockerfile import TEXT

LISTED: dict[str, Any] = json.loads((ROOT / "deploy/sbom.cdx.json").read_text(encoding="utf-8"))
PURL = re.compile(r"pkg:(deb/debian|pypi|cargo)/[a-z0-9._+%-]+@[^@?#]+(\?\S+)?", re.IGNORECASE)


def pins(name: str = "constraints.txt") -> dict[str, str]:
    """Each pinned distribution and its version."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {plain(found): version for found, version in pairs}


def plain(name: str) -> str:
    """A distribution's name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def listed(kind: str) -> dict[str, str]:
    """The versions of what is listed under a kind of address."""
    every = LISTED["components"]
    return {each["name"]: each["version"] for each in every if each["purl"].startswith(kind)}


def installed_by(names: list[str]) -> set[str]:
    """What CPython 3.13 on Linux needs for some requirements, as their metadata says."""
    found: set[str] = set()
    waiting = [(Requirement(name), "") for name in names]
    while waiting:
        need, extra = waiting.pop()
        here = {"python_version": "3.13", "python_full_version": "3.13.5", "extra": extra}
        if need.marker and not need.marker.evaluate({**here, "sys_platform": "linux"}):
            continue
        found.add(plain(need.name))
        inner = distribution(need.name).requires or []
        waiting += [(Requirement(each), one) for each in inner for one in need.extras or {""}]
    return found


def test_what_the_image_installs_is_what_is_listed_and_pinned() -> None:
    """From pyproject.toml's requirements down; a new one must be pinned and listed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    image = [*project["dependencies"], *extras["hub"], *extras["web"], *extras["plan"]]
    needed = installed_by(image)
    assert listed("pkg:pypi/").keys() == needed
    assert listed("pkg:pypi/").items() <= pins().items()


def test_the_program_is_listed_in_its_version() -> None:
    """A new version needs a new list."""
    assert LISTED["metadata"]["component"]["version"] == __version__


def test_the_debian_packages_are_those_of_the_dockerfile() -> None:
    """By name: Debian's archive has newer versions whenever it is asked."""
    [packages] = re.findall(r'PACKAGES="([^"]+)"', TEXT)
    packages = packages.replace("\\\n", "")
    assert listed("pkg:deb/").keys() == set(packages.split()) == components.FACTS["debian"].keys()


def test_the_page_of_licences_says_the_same() -> None:
    """`python deploy/components.py PACKAGES` writes both."""
    assert (ROOT / "deploy/LICENSES.md").read_text(encoding="utf-8") == components.page(LISTED)


def test_a_licence_that_asks_for_more_has_a_note() -> None:
    """Everything else can be had under permissive licences."""
    outer = LISTED["components"]
    inner = [each for entry in outer for each in entry.get("components", [])]
    asking = {
        each["name"]
        for each in [*outer, *inner]
        if not components.permissive(each["licenses"][0]["expression"])
    }
    assert asking == {"base-files", "ca-certificates", "gcc-14-base", "libc6", "libgcc-s1"}
    assert asking <= components.FACTS["notes"].keys()
    assert len(inner) > 200


@pytest.mark.parametrize(
    ("expression", "fine"),
    [
        ("MIT", True),
        ("GPL-2.0-only", False),
        ("MIT OR GPL-2.0-only", True),
        ("MIT AND LGPL-2.1-or-later", False),
        ("(MIT OR GPL-2.0-only) AND Zlib", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0-or-later WITH GCC-exception-3.1", False),
    ],
)
def test_an_expression_is_permissive_or_not(expression: str, fine: bool) -> None:
    """One of several, all of several."""
    assert components.permissive(expression) is fine


def test_every_entry_can_be_looked_up() -> None:
    """An address by which scanners know it; references that are there once."""
    entries = [*LISTED["components"], LISTED["metadata"]["component"]]
    assert all(PURL.fullmatch(each["purl"]) for each in entries)
    inner = [each for entry in entries for each in entry.get("components", [])]
    references = [each["bom-ref"] for each in [*entries, *inner]]
    assert len(references) == len(set(references))


def test_the_list_is_valid() -> None:
    """Against CycloneDX 1.6's own schema."""
    json_validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema")
    validator = json_validation.JsonStrictValidator(schema.SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(LISTED)) is None
    assert validator.validate_str(json.dumps({**LISTED, "components": [{"name": 1}]})) is not None


def test_the_torch_image_pins_what_the_measuring_extras_name() -> None:
    """Its frameworks, and nothing that constraints.txt pins already."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    named = {plain(Requirement(each).name) for each in (*extras["torch"], *extras["measure"])}
    more = pins("deploy/torch-constraints.txt")
    assert named - {"gpu-mem-calculator"} <= more.keys() | pins().keys()
    assert not more.keys() & pins().keys()
