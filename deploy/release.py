"""Builds what is released, and checks it: `make release`.

    python deploy/release.py FOLDER

FOLDER gets the source, a wheel for every platform, one for this platform with the replay in C, the
list of components (CycloneDX) and SHA256SUMS. Each wheel is installed in every Python that is here.
What comes from an index is checked by its hash (requirements.txt).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from components import bill, python_components

ROOT = Path(__file__).parent.parent
REQUIREMENTS = ROOT / "deploy" / "requirements.txt"
OLDEST = (3, 11)
NO_LIBRARY = {"GPU_MEM_CALC_REPLAY": "python"}  # the wheel has no replay in C
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def run(*words: str | Path, **more: str) -> str:
    """What a program prints; `more` are variables. Ends where it fails."""
    environment = {**os.environ, **more}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run([*map(str, words)], cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: exit code {done.returncode}")
    return done.stdout.decode()


def new_python(interpreter: str | Path, folder: Path) -> Path:
    """A virtual environment with what requirements.txt lists; its Python."""
    run(interpreter, "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, *PIP, "install", "--only-binary", ":all:", "--require-hashes", "-r", REQUIREMENTS)
    return python


def build(python: Path, folder: Path) -> list[Path]:
    """The source and both wheels, built with pinned tools."""
    for kind, more in (("sdist", {}), ("wheel", NO_LIBRARY), ("wheel", {})):
        run(python, "-m", "hatchling", "build", "--target", kind, "--directory", folder, **more)
    found = sorted(folder.glob("gpu_mem_calculator-*"))
    kinds = [one.name.split("-", 2)[-1] for one in found]
    if len(found) != 3 or not any("none-any" in kind for kind in kinds):
        sys.exit(f"there is no compiler, or an old file, in {folder}: {', '.join(kinds)}")
    return found


def pythons() -> Iterator[str]:
    """Every Python that is new enough: this one, those on the PATH, and those of pyenv."""
    names = [f"python3.{minor}" for minor in range(OLDEST[1], 20)]
    found = [sys.executable, *filter(None, map(shutil.which, names))]
    shelf = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found += [str(one) for one in sorted(shelf.glob("3.*/bin/python3"))]
    known: set[str] = set()
    for one in found:
        ask = "import sys; print(*sys.version_info[:2], sys.base_prefix)"
        done = subprocess.run([one, "-c", ask], capture_output=True, text=True)
        said = done.stdout.split()
        if not done.returncode and tuple(map(int, said[:2])) >= OLDEST and said[1] not in known:
            known.add(said[1])
            yield one


def check_installs(interpreter: str, wheels: list[Path]) -> None:
    """Install each wheel in a new environment, and estimate with it."""
    with tempfile.TemporaryDirectory() as folder:
        python = new_python(interpreter, Path(folder))
        command, said = python.parent / "gpu-mem-calc", run(python, "--version").strip()
        for wheel in wheels:
            run(python, *PIP, "install", "--force-reinstall", "--no-deps", "--no-index", wheel)
            version = run(command, "--version").strip()
            kind = "Python" if "none-any" in wheel.name else "C"
            if not re.fullmatch(rf"gpu-mem-calc \S+ \(replay in {kind}\)", version):
                sys.exit(f"{wheel.name}: it says {version!r}")
            answer = run(command, "quick", "gpt2", "--gpu", "4090")
            if not answer.startswith("fits: "):
                sys.exit(f"{wheel.name}: it says {answer.splitlines()[:1]}")
            print(f"{wheel.name}: installed and run by {said}", flush=True)


def components(python: Path, wheel: Path) -> str:
    """The list of the wheel's components: itself and what it needs."""
    with tempfile.TemporaryDirectory() as folder:
        needed = Path(folder) / "needed.txt"
        blocks = re.split(r"^(?=[\w.-]+==)", REQUIREMENTS.read_text("utf-8"), flags=re.MULTILINE)
        kept = [one for one in blocks if one.lower().startswith(("msgspec==", "pyyaml=="))]
        needed.write_text("".join(kept), encoding="utf-8")
        target = Path(folder) / "packages"
        install = (*PIP, "install", "--target", target)
        run(python, *install, "--require-hashes", "--only-binary", ":all:", "-r", needed)
        run(python, *install, "--no-deps", "--no-index", wheel)
        return bill(python_components(target), [])


def main(folder: Path) -> int:
    """Build, check, and list."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        sys.exit(f"{folder} is not empty; remove what is in it")
    with tempfile.TemporaryDirectory() as tools:
        python = new_python(sys.executable, Path(tools))
        made = build(python, folder)
        print(run(sys.executable, "-m", "twine", "check", "--strict", *made), flush=True)
        wheels = [one for one in made if one.suffix == ".whl"]
        for interpreter in pythons():
            check_installs(interpreter, wheels)
        listed = folder / "gpu-mem-calculator.cdx.json"
        listed.write_text(components(python, wheels[0]), encoding="utf-8")
    sums = [
        f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in [*made, listed]
    ]
    (folder / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    print("".join(sums), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
