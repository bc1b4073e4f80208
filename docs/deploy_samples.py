"""What pods print, as docs/deploy/estimate.md shows it: the run files of the chart's overrides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import samples
import yaml

PAGE = samples.ROOT / "docs" / "deploy" / "estimate.md"
OVERRIDES = samples.ROOT / "deploy" / "helm" / "gpu-mem-calculator" / "overrides"
FILE = "/run/run.json"  # where the chart mounts the run file
HEAD, TAIL = 9, 8  # lines that are shown of an answer


def run_file(name: str) -> dict[str, Any]:
    """The run file inside an override."""
    found: dict[str, Any] = yaml.safe_load((OVERRIDES / f"{name}.yaml").read_text("utf-8"))["run"]
    return found


def log(name: str, options: str = "", **hardware: int) -> list[str]:
    """The log of the Job of an override, with some keys of its hardware changed."""
    run = run_file(name)
    run["hardware"].update(hardware)
    with samples.folder() as folder:
        path = Path(folder) / "run.json"
        path.write_text(json.dumps(run), "utf-8")
        out, _ = samples.printed(f"calculate --config {path} {options}")
    return out.replace(str(path), FILE).splitlines()


def block(lines: list[str]) -> str:
    """Lines as a block."""
    return "\n".join(["```", *lines, "```"])


def bodies() -> dict[str, str]:
    """What stands between the marks of the page."""
    return {
        "log": block([*log("estimate")[:HEAD], "…"]),
        "log-check": block(log("estimate", "--check", num_gpus=16)[-TAIL:]),
        "log-serving": block([*log("estimate-serving")[:HEAD], "…"]),
    }
