"""Lists what is in the tool's image: sbom.cdx.json (CycloneDX 1.6) and LICENSES.md.

    python deploy/components.py PACKAGES [STATUS]

PACKAGES is the image's folder of Python packages, or one that pip filled from the same pins; STATUS
is the image's var/lib/dpkg/status.d. Without STATUS, Debian's entries stay as they are listed.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from email.parser import HeaderParser
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from license_expression import AND, OR, LicenseWithExceptionSymbol, Licensing  # type: ignore[import-untyped]
from packageurl import PackageURL

HERE = Path(__file__).parent
LIST = HERE / "sbom.cdx.json"
OWN = "gpu-mem-calculator"
FACTS = tomllib.loads((HERE / "licences.toml").read_text(encoding="utf-8"))
PERMISSIVE = frozenset(FACTS["permissive"]["names"])
Entry = Mapping[str, Any]  # a component in JSON


def licence(found: Distribution) -> str:
    """The SPDX expression of a Python distribution."""
    stated = found.metadata.get_all("License-Expression") or []
    kinds = set(found.metadata.get_all("Classifier") or []) & FACTS["classifiers"].keys()
    known = sorted((FACTS["classifiers"][kind] for kind in kinds), reverse=True)
    if not stated and not known:
        raise ValueError(f"{found.name}: its licence is not in licences.toml; look it up, add it")
    return " OR ".join(stated or known)


def component(name: str, version: str | None, said: str, purl: PackageURL | None) -> Component:
    """A library with its licence, an SPDX expression."""
    expression = LicenseExpression(re.sub(r"\s+", " ", said))
    reference = purl.to_string() if purl else name
    return Component(
        name=name, version=version, licenses=[expression], purl=purl, bom_ref=reference
    )


def python_components(packages: Path) -> Iterator[Component]:
    """Each wheel, and inside it what was linked into it."""
    for found in distributions(path=[str(packages)]):
        name = re.sub(r"[-_.]+", "-", found.name).lower()
        purl = PackageURL("pypi", name=name, version=found.version)
        entry = component(name, found.version, licence(found), purl)
        for each in (*_bundled(name), *_crates(found)):
            each.bom_ref.value = f"{name}/{each.bom_ref.value}"
            entry.components.add(each)
        yield entry


def _bundled(name: str) -> Iterator[Component]:
    for library, said in FACTS["bundled"].get(name, {}).items():
        yield component(library, None, said, None)


def _crates(found: Distribution) -> Iterator[Component]:
    """What the wheel's own list says was linked in; what only built it is not in it."""
    for file in found.files or []:
        if file.match("*.dist-info/sboms/*.json"):
            listed = Bom.from_json(json.loads(file.read_text()))  # type: ignore[attr-defined]
            for each in listed.components:
                if each.scope in (None, ComponentScope.REQUIRED):
                    said = " AND ".join(one.value for one in each.licenses)
                    yield component(each.name, each.version, said, each.purl)


def debian_components(status: Path) -> Iterator[Component]:
    """Each Debian package."""
    for path in status.iterdir():
        said = HeaderParser().parsestr(path.read_text(encoding="utf-8"))
        name, version = said["Package"], said["Version"]
        purl = PackageURL("deb", "debian", name, version, {"distro": "debian-13"})
        yield component(name, version, FACTS["debian"][name], purl)


def listed_debian() -> Iterator[Component]:
    """The Debian packages of the present list."""
    for each in Bom.from_json(json.loads(LIST.read_text(encoding="utf-8"))).components:  # type: ignore[attr-defined]
        if each.purl.type == "deb":
            yield each


def bill(python: Iterable[Component], debian: Iterable[Component]) -> str:
    """The whole list as JSON, with neither a date nor a number of its own: it is compared."""
    wheels = list(python)
    [own] = [each for each in wheels if each.name == OWN]
    own.type = ComponentType.APPLICATION
    bom = Bom(components=[*debian, *(each for each in wheels if each is not own)])
    bom.metadata.component = own
    bom.register_dependency(own, wheels)  # the library asks for some; they are left out below
    data = json.loads(JsonV1Dot6(bom).output_as_string())
    del data["serialNumber"], data["metadata"]["timestamp"], data["dependencies"]
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def permissive(expression: str) -> bool:
    """Whether one may take a component under permissive licences alone."""

    def holds(node: Any) -> bool:
        if isinstance(node, AND | OR):
            return (all if isinstance(node, AND) else any)(map(holds, node.args))
        if isinstance(node, LicenseWithExceptionSymbol):
            return holds(node.license_symbol)
        return node.key in PERMISSIVE

    return holds(Licensing().parse(expression))


def _said(entry: Entry) -> str:
    return str(entry["licenses"][0]["expression"])


PAGE = """\
# What is in the image of {name} {version}, and its licences

Written by `deploy/components.py` from the installed packages; `sbom.cdx.json` is for programs.
The program itself is {licence}. Texts are in the image: `/usr/share/doc/*/copyright`, \
`/usr/share/common-licenses`,
and each wheel's `*.dist-info/licenses`.

| component | version | licence | |
|---|---|---|---|
{rows}

## Inside wheels

Linked into the wheel's library, as the wheel's own list says (as built for arm64).

| wheel | licence | |
|---|---|---|
{inner}
"""


def page(listed: Mapping[str, Any]) -> str:
    """LICENSES.md: every component, those inside wheels by licence."""
    own = listed["metadata"]["component"]
    entries = sorted(listed["components"], key=lambda each: each["purl"])  # Debian's first
    rows = [
        f"| {each['name']} | {each['version']} | {_said(each)} "
        f"| {FACTS['notes'].get(each['name'], '')} |"
        for each in entries
    ]
    return PAGE.format(
        name=own["name"],
        version=own["version"],
        licence=_said(own),
        rows="\n".join(rows),
        inner="\n".join(row for each in entries for row in _inner_rows(each)),
    )


def _inner_rows(wheel: Entry) -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for each in wheel.get("components", []):
        name = f"{each['name']} {each.get('version', '')}".strip()
        groups.setdefault(_said(each), []).append(name)
    for said, names in sorted(groups.items()):
        yield f"| {wheel['name']} | {said} | {', '.join(names)} |"


def main() -> int:
    """Write both."""
    packages, *status = map(Path, sys.argv[1:])
    debian = debian_components(status[0]) if status else listed_debian()
    text = bill(python_components(packages), debian)
    LIST.write_text(text, encoding="utf-8")
    (HERE / "LICENSES.md").write_text(page(json.loads(text)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
