"""Runs what `bare_image.py` made as a container would run: its user, its environment, read-only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def configured(root: Path) -> dict[str, Any]:
    """The image's configuration, which lies beside its files."""
    text = root.with_name(root.name + ".json").read_text(encoding="utf-8")
    config: dict[str, Any] = json.loads(text)
    return config


def inside(
    root: Path, words: Sequence[str], environment: Mapping[str, str] | None = None
) -> list[str]:
    """The command line that runs words in a root: its own user, no capability, nothing writable.

    /tmp is the exception, as it is with `docker run --read-only --tmpfs /tmp`.
    """
    config = configured(root)
    uid, _, gid = config["User"].partition(":")
    line = [
        "bwrap",
        "--die-with-parent",
        "--ro-bind",
        str(root),
        "/",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--tmpfs",
        "/tmp",
        "--unshare-user",
        "--uid",
        uid,
        "--gid",
        gid,
        "--unshare-pid",
        "--cap-drop",
        "ALL",
        "--new-session",
        "--clearenv",
    ]
    given = dict(pair.split("=", 1) for pair in config["Env"]) | dict(environment or {})
    for name, value in given.items():
        line += ["--setenv", name, value]
    return [*line, "--chdir", config["WorkingDir"], *words]


def entry(root: Path, words: Sequence[str]) -> list[str]:
    """The command line of the image's entry point with words, or with its own CMD."""
    config = configured(root)
    return inside(root, [*config["Entrypoint"], *(words or config["Cmd"])])
