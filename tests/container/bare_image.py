"""Makes what an image would hold, without an engine: the Dockerfile's steps in a bare Debian.

    python -m tests.container.bare_image --root FOLDER
    python -m tests.container.bare_image --root FOLDER --run quick 7

The first makes the stage `tool` and FOLDER.json beside it; the second runs its entry point, as its
user, on read-only files.

Needs root, mmdebstrap and bubblewrap (apt-get install mmdebstrap bubblewrap). The base is not the
pinned image, which no registry here could give, but what Debian's own archive holds for its suite:
the same packages, fetched today. Pip and apt go to the network as this machine's do.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import build_context
from .bare_run import entry
from .dockerfile import DockerfileError, Stage, Step, expanded, needed, read

CONTEXT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "gpu-mem-calculator")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What this machine's pip and apt need to reach the network, by variable; a value that is a file
# goes along. None of it stays in the image.
CARRIED = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "PIP_CERT",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_INDEX_URL",
    "PIP_TRUSTED_HOST",
)
# What a slim image of Debian leaves out of every package.
SLIM = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/lintian/*",
)
# What an image of Debian tells apt: keep nothing that can be fetched again.
CLEAN = 'Dir::Cache::pkgcache ""; Dir::Cache::srcpkgcache ""; APT::Keep-Downloaded-Packages "0";'


@dataclass
class Image:
    """A stage as far as it is built: its files and what would be its configuration."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    table: list[tuple[str, float, int]] = field(default_factory=list)

    @property
    def folder(self) -> str:
        """Where a step works."""
        return str(self.config.get("WorkingDir", "/"))

    def known(self) -> dict[str, str]:
        """The variables that a step sees: ENV wins over ARG."""
        return {**self.arguments, **self.environment}


def build(
    target: str, root: Path, cache: Path = CACHE, given: Mapping[str, str] | None = None
) -> Image:
    """Every stage that the target needs, its files in `root`; `given` are build arguments."""
    work = root.with_name(root.name + ".stages")
    for folder in (work, root):
        if folder.exists():
            shutil.rmtree(folder)
    images: dict[str, Image] = {}
    stages = needed(read(CONTEXT / "deploy/Dockerfile"), target)
    every = [step for stage in stages for step in stage.steps if step.name == "ARG"]
    if unknown := (given or {}).keys() - {name for step in every for name in step.pairs({})}:
        raise DockerfileError(f"{target} has no ARG {', '.join(sorted(unknown))}")
    for stage in stages:
        at = root if stage.name == target else work / stage.name
        at.mkdir(parents=True)
        image = images[stage.name] = begun(stage, at, images, cache)
        [(_, _, held)] = image.table
        for step in stage.steps:
            start = time.perf_counter()
            STEPS[step.name](image, step, images)
            image.arguments |= {k: v for k, v in (given or {}).items() if k in image.arguments}
            seconds, now = time.perf_counter() - start, size(image.root)
            image.table.append((f"{stage.name}: {step.name} {step.text}", seconds, now - held))
            held = now
    shutil.rmtree(work, ignore_errors=True)
    done = images[target]
    done.table = [row for image in images.values() for row in image.table]
    done.config["Env"] = [f"{name}={value}" for name, value in done.environment.items()]
    root.with_name(root.name + ".json").write_text(json.dumps(done.config, indent=2) + "\n")
    return done


def begun(stage: Stage, root: Path, images: Mapping[str, Image], cache: Path) -> Image:
    """A stage before its first step: nothing, an earlier stage, or Debian."""
    start = time.perf_counter()
    image = Image(root)
    if stage.base in images:
        earlier = images[stage.base]
        subprocess.run(["cp", "-a", f"{earlier.root}/.", root], check=True)
        image.environment, image.config = {**earlier.environment}, {**earlier.config}
    elif match := re.match(r"debian:([a-z]+)-", stage.base):
        subprocess.run(["tar", "-xf", debian(match[1], cache), "-C", root], check=True)
        image.environment["PATH"] = PATH
    elif stage.base != "scratch":
        raise DockerfileError(
            f"line {stage.line}: FROM {stage.base} is neither Debian, scratch nor an earlier stage"
        )
    seconds = time.perf_counter() - start
    image.table.append((f"{stage.name}: FROM {stage.base}", seconds, size(root)))
    return image


def debian(suite: str, cache: Path) -> Path:
    """A bare Debian as an archive: made once and kept."""
    kept = cache / f"{suite}.tar"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        options = [f"--dpkgopt={line}" for line in SLIM]
        hook = f"--customize-hook=cd \"$1\"; echo '{CLEAN}' > etc/apt/apt.conf.d/clean"
        hook += "; rm -f var/cache/apt/*.bin"
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            new = os.path.join(folder, "new.tar")
            line = ["mmdebstrap", "--quiet", "--variant=minbase", *options, hook, suite, new]
            subprocess.run(line, check=True)
            os.rename(new, kept)
    return kept


def run(image: Image, step: Step, images: Mapping[str, Image]) -> None:
    """RUN: the shell in the stage's own files, as root, on this machine's network."""
    if "User" in image.config:
        raise DockerfileError(f"line {step.line}: RUN after USER is not done here; move it before")
    environment = {"HOME": "/root", **image.known()}
    command = [
        "bwrap",
        "--die-with-parent",
        "--unshare-pid",
        "--bind",
        str(image.root),
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
        "--tmpfs",
        "/run",
        "--ro-bind",
        "/etc/resolv.conf",
        "/etc/resolv.conf",
        "--clearenv",
    ]
    for name in CARRIED:
        value = os.environ.get(name, "")
        if value and Path(value).is_file():
            command += ["--ro-bind", value, f"/run/{name}"]
            value = f"/run/{name}"
        if value:
            environment.setdefault(name, value)
    for name, value in environment.items():
        command += ["--setenv", name, value]
    done = subprocess.run(
        [*command, "--chdir", image.folder, "/bin/sh", "-c", step.text],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        raise DockerfileError(f"line {step.line}: RUN ended with {done.returncode}")


def copy(image: Image, step: Step, images: Mapping[str, Image]) -> None:
    """COPY: from an earlier stage as it is; from the context what is sent of it, as root's."""
    *sources, last = [expanded(word, image.known()) for word in step.words()]
    target = image.root / os.path.join(image.folder, last).lstrip("/")
    into = last.endswith(("/", ".")) or len(sources) > 1
    for source in sources:
        if "from" in step.flags:
            files = images[step.flags["from"]].root / source.strip("/")
            contents = [f"{files}/."] if files.is_dir() else [str(files)]
            (target if files.is_dir() or into else target.parent).mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", *contents, target], check=True)
        else:
            _from_context(source.strip("/"), target, into, step.line)


def _from_context(source: str, target: Path, into: bool, line: int) -> None:
    known = build_context.rules((CONTEXT / ".dockerignore").read_text(encoding="utf-8"))
    paths = list(build_context.sent(CONTEXT, known, source))
    if not paths:
        raise DockerfileError(f"line {line}: COPY {source}: not in the build context")
    for path in paths:
        inner = Path(path).name if path == source and into else Path(path).relative_to(source)
        place = target / inner
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(CONTEXT / path, place)
        os.chown(place, 0, 0)


def variable(image: Image, step: Step, images: Mapping[str, Image]) -> None:
    """ARG, ENV and LABEL."""
    pairs = step.pairs(image.known())
    if step.name == "LABEL":
        image.config.setdefault("Labels", {}).update(pairs)
    else:
        (image.environment if step.name == "ENV" else image.arguments).update(pairs)


def place(image: Image, step: Step, images: Mapping[str, Image]) -> None:
    """WORKDIR, made where it is not there; USER; EXPOSE."""
    value = expanded(step.text, image.known())
    if step.name == "WORKDIR":
        image.config["WorkingDir"] = os.path.join(image.folder, value)
        (image.root / image.folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
    elif step.name == "USER":
        image.config["User"] = value
    else:
        image.config.setdefault("ExposedPorts", {})[f"{value}/tcp"] = {}


def command(image: Image, step: Step, images: Mapping[str, Image]) -> None:
    """ENTRYPOINT, CMD and HEALTHCHECK."""
    if step.name == "HEALTHCHECK":
        kind, _, rest = step.text.partition(" ")
        words = Step(step.line, "HEALTHCHECK", {}, rest).command() if kind == "CMD" else []
        test = ["CMD", *words] if words else ["NONE"]
        image.config["Healthcheck"] = {"Test": test, **step.flags}
    else:
        image.config[step.name.title()] = step.command()


STEPS = {
    "ARG": variable,
    "CMD": command,
    "COPY": copy,
    "ENTRYPOINT": command,
    "ENV": variable,
    "EXPOSE": place,
    "HEALTHCHECK": command,
    "LABEL": variable,
    "RUN": run,
    "USER": place,
    "WORKDIR": place,
}


def size(root: Path) -> int:
    """The bytes of all files, one with several names once."""
    seen, total = set(), 0
    for at, _, files in os.walk(root):
        for name in files:
            found = os.lstat(os.path.join(at, name))
            if found.st_ino not in seen:
                seen.add(found.st_ino)
                total += found.st_size
    return total


def compressed(root: Path) -> int:
    """The bytes of the files as a layer would be sent: a tar through gzip."""
    with tempfile.TemporaryFile() as file:
        subprocess.run(["tar", "-C", root, "-cz", "."], stdout=file, check=True)
        return file.tell()


def report(image: Image) -> None:
    """Print each step with its seconds and bytes, and what the image weighs."""
    for name, seconds, grown in image.table:
        print(f"{seconds:7.1f} s {grown / 1e6:9.1f} MB  {name[:90]}")
    start = time.perf_counter()
    done = subprocess.run(entry(image.root, ["--version"]), capture_output=True, text=True)
    seconds = time.perf_counter() - start
    whole, sent = size(image.root) / 1e6, compressed(image.root) / 1e6
    print(
        f"files {whole:.1f} MB, as tar.gz {sent:.1f} MB; "
        f"{done.stdout.strip() or done.stderr.strip()} in {seconds:.2f} s"
    )


def lacking() -> str:
    """What of this machine is missing, as a sentence; nothing where all is there."""
    missing = [name for name in ("mmdebstrap", "bwrap") if shutil.which(name) is None]
    missing += ["the right to be root"] * (os.geteuid() != 0)
    return f"building without an engine needs {' and '.join(missing)}" if missing else ""


def main() -> int:
    """Build, or run what was built."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True, help="the folder for the files")
    parser.add_argument("--target", default="tool", help="the Dockerfile's stage (tool)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where the bare Debian is kept")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--run", nargs=argparse.REMAINDER, help="words for a built entry point")
    args = parser.parse_args()
    root = args.root.absolute()
    if args.run is not None:
        return subprocess.run(entry(root, args.run)).returncode
    if missing := lacking():
        print(missing, file=sys.stderr)
        return 2
    try:
        given = dict(pair.partition("=")[::2] for pair in args.build_arg)
        report(build(args.target, root, args.cache, given))
    except (DockerfileError, subprocess.CalledProcessError) as error:
        print(f"deploy/Dockerfile, {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
