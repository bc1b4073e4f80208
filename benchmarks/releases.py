"""CPU time of reading which releases a user has, as multiples of `python -c pass` in the same run.

Each place is read in a process of its own, which imports first what `check` needs to read a
command: an environment of 300 packages, files that pin as many, an image's tag. No socket may be
opened.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from .questions import IN_C, ROOT, environment
from .speed import ROUNDS, bare

PACKAGES, WHEELS = 300, 40  # of an environment; files of a package that a lock file names
AIM_MS = 50  # CPU milliseconds of each on a machine whose Python starts in 10
AIM = AIM_MS / 10
NAMES = ("vllm", "torch", "transformers", *(f"package-{i}" for i in range(PACKAGES - 3)))
PINS = {name: f"{3 + i % 7}.{i % 11}.0" for i, name in enumerate(NAMES)}
FREEZE = "".join(f"{name}=={version}\n" for name, version in PINS.items())
HASH = "sha256:" + "0123456789abcdef" * 4
# What the process runs: it says how long it took, and fails where it found nothing.
READER = """
import sys, time
def refuse(event, arguments):
    if event.startswith("socket."):
        raise SystemExit(f"the network is used: {event}")
sys.addaudithook(refuse)
import gpu_mem_calculator.tools.launchers.launch, gpu_mem_calculator.tools.read
start = time.process_time()
from pathlib import Path
from gpu_mem_calculator.tools.launchers.environments import installed
from gpu_mem_calculator.tools.releases.pins import file_releases, image_releases, pinned
found = %s
found = list(getattr(found, "releases", found))
print(time.process_time() - start)
assert "vllm" in [one.package for one in found], found
"""
Make = Callable[[Path], str]  # writes a place into a folder, and gives what reads it


def installed_here(folder: Path) -> str:
    """A virtual environment, as pip leaves it."""
    place = folder / "lib" / "python3.12" / "site-packages"
    for name, version in PINS.items():
        (place / name).mkdir(parents=True)
        (place / f"{name}-{version}.dist-info").mkdir()
    (folder / "bin").mkdir()
    (folder / "bin" / "python3").touch()
    return f"installed([{str(folder / 'bin' / 'python3')!r}, 'train.py'], Path())"


def conda_prefix(folder: Path) -> str:
    """A conda environment, whose folder of records conda leaves."""
    (folder / "conda-meta").mkdir()
    for name, version in PINS.items():
        (folder / "conda-meta" / f"{name}-{version}-py312_0.json").touch()
    return f"installed(['conda', 'run', '-p', {str(folder)!r}, 'vllm'], Path())"


def beside(name: str, text: str) -> Make:
    """A file in the folder in which the command would run."""

    def make(folder: Path) -> str:
        (folder / name).write_text(text, encoding="utf-8")
        return f"pinned(Path({str(folder)!r}))"

    return make


def listed(folder: Path) -> str:
    """What pip freeze prints, in a file that --at names."""
    (folder / "freeze.txt").write_text(FREEZE, encoding="utf-8")
    return f"file_releases({str(folder / 'freeze.txt')!r})"


def locked(name: str, version: str) -> str:
    """A package of a lock file, with the files that it could be installed from."""
    wheels = "".join(
        f'    {{ url = "https://files.example/{name}-{version}-{i}.whl", hash = "{HASH}" }},\n'
        for i in range(WHEELS)
    )
    return f'\n[[package]]\nname = "{name}"\nversion = "{version}"\nwheels = [\n{wheels}]\n'


LOCKED = "version = 1\n" + "".join(locked(*pin) for pin in PINS.items())
HASHED = "".join(
    f"{name}=={version} \\\n" + f"    --hash={HASH} \\\n" * (WHEELS - 1) + f"    --hash={HASH}\n"
    for name, version in PINS.items()
)
PIPFILE = json.dumps(
    {
        "default": {
            name: {"hashes": [HASH] * WHEELS, "version": f"=={v}"} for name, v in PINS.items()
        }
    },
    indent=4,
)
DOCKERFILE = "FROM nvidia/cuda:12.8.0-base\nRUN pip install \\\n" + "".join(
    f"    {name}=={version} \\\n" for name, version in PINS.items()
)
PLACES: dict[str, Make] = {
    "an environment": installed_here,
    "a conda prefix": conda_prefix,
    "requirements.txt": beside("requirements.txt", HASHED),
    "uv.lock": beside("uv.lock", LOCKED),
    "Pipfile.lock": beside("Pipfile.lock", PIPFILE),
    "a Dockerfile": beside("Dockerfile", DOCKERFILE),
    "pip freeze": listed,
    "an image's tag": lambda _: "image_releases('vllm/vllm-openai:v0.14.1')",
}


def seconds(code: str) -> float:
    """The least CPU seconds in which a process reads a place."""
    command = [sys.executable, "-c", READER % code]
    variables = {**environment(IN_C), "PYTHONPATH": str(ROOT / "src")}
    runs = (
        subprocess.run(command, env=variables, stdout=subprocess.PIPE, check=True)
        for _ in range(ROUNDS)
    )
    return min(float(run.stdout) for run in runs)


def main() -> None:
    """A line for each place."""
    print(f"{'ratio':>8} {'aim':>6} {'CPU ms':>7}  {PACKAGES} packages in (aim: {AIM_MS} ms)")
    for name, make in PLACES.items():
        with tempfile.TemporaryDirectory() as folder:
            taken = seconds(make(Path(folder)))
        ratio = taken / bare(IN_C, ROUNDS)
        missed = "  MISSED" * (ratio > AIM)
        print(f"{ratio:8.1f} {AIM:6.1f} {1000 * taken:7.1f}  {name}{missed}", flush=True)


if __name__ == "__main__":
    main()
