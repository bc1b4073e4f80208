"""Lists what is in the tool's image: sbom.cdx.json (CycloneDX 1.6) and LICENSES.md.

python deploy/components.py ROOT    of the files that bare_image.py made
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from email.parser import HeaderParser
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PACKAGES = "usr/lib/python3/dist-packages"
STATUS = "var/lib/dpkg/status.d"
# Debian says it in prose, in usr/share/doc/<package>/copyright; this is of the files that are here.
DEBIAN = {
    "base-files": "GPL-2.0-or-later",
    "ca-certificates": "MPL-2.0 AND GPL-2.0-or-later",
    "gcc-14-base": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "libbz2-1.0": "bzip2-1.0.6",
    "libc6": "LGPL-2.1-or-later",
    "libexpat1": "MIT",
    "libffi8": "MIT",
    "libgcc-s1": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "liblzma5": "0BSD",
    "libpython3.13-minimal": "PSF-2.0",
    "libpython3.13-stdlib": "PSF-2.0",
    "libssl3t64": "Apache-2.0",
    "libzstd1": "BSD-3-Clause OR GPL-2.0-only",
    "media-types": "LicenseRef-public-domain",
    "openssl-provider-legacy": "Apache-2.0",
    "python3.13-minimal": "PSF-2.0",
    "zlib1g": "Zlib",
}
CLASSIFIERS = {
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
}
# C libraries inside wheels that carry no list of their own.
BUNDLED = {"httptools": {"llhttp": "MIT"}, "pyyaml": {"libyaml": "MIT"}, "uvloop": {"libuv": "MIT"}}
PERMISSIVE = {
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "bzip2-1.0.6",
    "CC0-1.0",
    "ISC",
    "LicenseRef-public-domain",
    "MIT",
    "MIT-0",
    "PSF-2.0",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Unlicense",
    "Zlib",
}
NOTES = {
    "base-files": "names and links of folders, and the texts of licences",
    "ca-certificates": "certificates, as data (MPL-2.0); its scripts are not called",
    "gcc-14-base": "the licence of libgcc-s1, and no program",
    "libc6": "linked dynamically and unchanged; its source is Debian's package of this version",
    "libgcc-s1": "linked dynamically; the exception allows it from programs of any licence",
    "obstore": "the wheel carries no text of its licence",
    "media-types": "a table of public information, as Debian states it",
}

Component = dict[str, Any]


def licence(found: Distribution) -> str:
    """The SPDX expression of a Python distribution."""
    stated = found.metadata.get_all("License-Expression") or []
    kinds = found.metadata.get_all("Classifier") or []
    known = sorted((CLASSIFIERS[kind] for kind in kinds if kind in CLASSIFIERS), reverse=True)
    if not stated and not known:
        raise ValueError(f"{found.name}: its licence is not among CLASSIFIERS; look it up, add it")
    return " OR ".join(stated or known)


def component(name: str, version: str, expression: str, purl: str) -> Component:
    """One entry; a version or an address that is not known is left out."""
    entry = {
        "type": "library",
        "bom-ref": purl or name,
        "name": name,
        "version": version,
        "licenses": [{"expression": expression}],
        "purl": purl,
    }
    return {key: value for key, value in entry.items() if value}


def python_components(root: Path) -> Iterator[Component]:
    """Each wheel, and inside it what was linked into it."""
    for found in distributions(path=[str(root / PACKAGES)]):
        name = re.sub(r"[-_.]+", "-", found.name).lower()
        entry = component(name, found.version, licence(found), f"pkg:pypi/{name}@{found.version}")
        inner = [component(each, "", said, "") for each, said in BUNDLED.get(name, {}).items()]
        for file in found.files or []:
            if file.match("*.dist-info/sboms/*.json"):
                inner += _crates(json.loads(file.read_text()))
        if inner:
            for each in inner:
                each["bom-ref"] = f"{name}/{each['bom-ref']}"
            entry["components"] = sorted(inner, key=_order)
        yield entry


def _crates(listed: Mapping[str, Any]) -> Iterator[Component]:
    """What a wheel's own list says was linked in; what only built it is not in it."""
    for each in listed["components"]:
        if each.get("scope", "required") == "required":
            said = " AND ".join(one["expression"] for one in each["licenses"])
            said = re.sub(r"\s+", " ", said)
            yield component(each["name"], each["version"], said, each["purl"])


def debian_components(root: Path) -> Iterator[Component]:
    """Each Debian package."""
    for path in (root / STATUS).iterdir():
        said = HeaderParser().parsestr(path.read_text(encoding="utf-8"))
        name, version = said["Package"], said["Version"]
        purl = f"pkg:deb/debian/{name}@{version.replace(':', '%3A').replace('+', '%2B')}"
        yield component(name, version, DEBIAN[name], f"{purl}?distro=debian-13")


def _order(entry: Component) -> tuple[str, str, str]:
    return entry.get("purl", "")[:7], entry["name"], entry.get("version", "")


def bill(root: Path) -> dict[str, Any]:
    """The whole list as CycloneDX, with neither a date nor a number of its own: it is compared."""
    python = sorted(python_components(root), key=_order)
    [own] = [each for each in python if each["name"] == "gpu-mem-calculator"]
    rest = [each for each in python if each is not own]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**own, "type": "application"}},
        "components": [*sorted(debian_components(root), key=_order), *rest],
    }


def permissive(expression: str) -> bool:
    """Whether one may take a component under permissive licences alone."""
    plain = re.sub(r"\s+WITH\s+[\w.-]+", "", expression)
    words = re.findall(r"[()]|[\w.-]+", plain)
    known = {"AND": "and", "OR": "or", "(": "(", ")": ")"}
    return bool(eval(" ".join(known.get(word) or str(word in PERMISSIVE) for word in words)))


def _said(entry: Component) -> str:
    return str(entry["licenses"][0]["expression"])


def page(listed: Mapping[str, Any]) -> str:
    """LICENSES.md: every component, those inside wheels by licence."""
    own = listed["metadata"]["component"]
    lines = [
        f"# What is in the image of {own['name']} {own['version']}, and its licences",
        "",
        "Written by `deploy/components.py` from the image's files; `sbom.cdx.json` is the same for "
        "programs.",
        f"The program itself is {_said(own)}. Texts are in the image: "
        "`/usr/share/doc/*/copyright`, `/usr/share/common-licenses`,",
        "and each wheel's `*.dist-info/licenses`.",
        "",
        *_table(listed["components"]),
        "",
        "## Inside wheels",
        "",
        "Linked into the wheel's library, as the wheel's own list says (as built for arm64).",
        "",
        "| wheel | licence | |",
        "|---|---|---|",
    ]
    for entry in listed["components"]:
        groups: dict[str, list[str]] = {}
        for each in entry.get("components", []):
            name = f"{each['name']} {each.get('version', '')}".strip()
            groups.setdefault(_said(each), []).append(name)
        for said, names in sorted(groups.items()):
            lines.append(f"| {entry['name']} | {said} | {', '.join(names)} |")
    return "\n".join(lines) + "\n"


def _table(entries: Sequence[Component]) -> Iterator[str]:
    yield "| component | version | licence | |"
    yield "|---|---|---|---|"
    for each in entries:
        note = NOTES.get(each["name"], "")
        yield f"| {each['name']} | {each['version']} | {_said(each)} | {note} |"


def main() -> int:
    """Write both."""
    listed = bill(Path(sys.argv[1]))
    text = json.dumps(listed, indent=1, ensure_ascii=False) + "\n"
    (HERE / "sbom.cdx.json").write_text(text, encoding="utf-8")
    (HERE / "LICENSES.md").write_text(page(listed), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
