"""Helm itself: a `helm` on the PATH, or the one that fetch_helm.py puts beside this Python."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from .cases import Case, rendered
from .render import CHART, KUBERNETES, ChartError, objects

HELM = shutil.which("helm") or shutil.which("helm", path=str(Path(sys.prefix, "bin")))


def with_helm(case: Case, folder: Path) -> list[dict[str, Any]]:
    """A case's documents as the program renders them; ChartError where it refuses."""
    assert HELM is not None
    given = folder / "given.yaml"
    given.write_text(json.dumps(case.values), encoding="utf-8")
    command = [HELM, "template", case.name, str(CHART), "--namespace", case.namespace]
    command += [part for file in case.files for part in ("--values", str(CHART / file))]
    command += ["--values", str(given)]
    command += [part for line in case.sets for part in ("--set", line)]
    command += ["--kube-version", KUBERNETES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChartError(done.stderr.strip())
    return objects(done.stdout)


def in_process(case: Case, _: Path) -> list[dict[str, Any]]:
    """A case's documents as gotpl renders them."""
    return rendered(case)


# Who renders: Helm itself only where it is there.
RENDERERS = {"gotpl": in_process} | ({"helm": with_helm} if HELM else {})


def by_name(documents: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Documents by kind and name: their order says nothing."""
    named = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    assert len(named) == len(documents), "two documents of one kind and name"
    return named
