"""`python -m maintenance.mutants`: sample, run, report; exit code 1 where fewer than 90 % are
noticed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path

import msgspec

from .sites import ROOT, Site, sample
from .switch import OPTIONS

FLOOR = 90.0
# Whole programs, browsers, clusters and traces: too slow to be run for each mutant.
LEFT_OUT = (
    *("architecture", "browser", "container", "deploy", "docs", "random_runs", "tools"),
    *("examples/test_bench*", "examples/test_train*"),
    *("measure/test_launchers.py", "properties/test_run_file_fuzz.py", "serving/test_traced.py"),
    *("trace/test_measured.py", "trace/test_deepspeed_measured.py"),
    *("web/test_fuzz.py", "web/test_killed.py"),
)


class Known(msgspec.Struct, frozen=True):
    """A mutant that no test can notice: its file, its line's text, its code, and why."""

    path: str
    line: str
    before: str
    after: str
    why: str


def known_survivors() -> list[Known]:
    """The rows of known.toml."""
    text = Path(__file__).with_name("known.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text).get("mutant", []), list[Known])


def environment(folder: Path, arguments: argparse.Namespace) -> dict[str, str]:
    """What the pytest session and all its children read."""
    paths = [ROOT, ROOT / "src", Path(__file__).parent / "hook"]
    return {
        **os.environ,
        "HYPOTHESIS_PROFILE": "mutants",
        "PYTHONPATH": os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")]),
        "MUTANTS_FOLDER": str(folder.absolute()),
        "MUTANTS_WORKERS": str(arguments.workers),
        "MUTANTS_BUDGET": str(arguments.budget),
        "MUTANTS_ONLY": json.dumps(arguments.only),
    }


def outcomes(sites: list[Site], arguments: argparse.Namespace) -> dict[int, dict[str, float]]:
    """Each mutant's result: the number of its tests, its exit status, seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name)
        sample_file, encoded = folder / "sample.json", msgspec.json.encode(sites)
        if not sample_file.exists() or sample_file.read_bytes() != encoded:
            folder.mkdir(parents=True, exist_ok=True)
            sample_file.write_bytes(encoded)
            for other in ("record.txt", "results.jsonl"):
                (folder / other).write_text("")
        ignored = [f"--ignore-glob=tests/{path}" for path in LEFT_OUT]
        subprocess.run(
            [sys.executable, "-m", "pytest", *OPTIONS, *ignored, *arguments.tests],
            cwd=ROOT,
            env=environment(folder, arguments),
            check=False,
        )
        rows = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
        return {int(row["number"]): row for row in rows}


def report(sites: list[Site], results: dict[int, dict[str, float]]) -> float:
    """Print survivors and the score by package; the percentage of mutants noticed or explained."""
    reasons = {(one.path, one.line, one.before, one.after): one.why for one in known_survivors()}
    alive = [site for site in sites if results[site.number]["status"] == 0]
    explained = [site for site in alive if site.place in reasons]
    for site in alive:
        why = reasons.get(site.place)
        tests = f"{results[site.number]['tests']:.0f} tests"
        print(f"{site.number:4} {'explained' if why else 'SURVIVED '} {site}  ({why or tests})")
    totals, lost = (Counter(site.package for site in some) for some in (sites, alive))
    print(", ".join(f"{name} {totals[name] - lost[name]}/{totals[name]}" for name in totals))
    percent = 100 * (1 - (len(alive) - len(explained)) / (len(sites) or 1))
    killed = len(sites) - len(alive)
    print(
        f"{len(sites)} mutants: {killed} killed, {len(explained)} explained, "
        f"{len(alive) - len(explained)} survived: {percent:.1f} % (floor {FLOOR:g} %)"
    )
    return percent


def main() -> int:
    """Run, print, and give the exit code."""
    parser = argparse.ArgumentParser(prog="python -m maintenance.mutants", description=__doc__)
    parser.add_argument("--number", type=int, default=250, help="about how many mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", type=int, nargs="*", default=[], help="mutants by number")
    parser.add_argument("--list", action="store_true", help="print the sample, run nothing")
    parser.add_argument("--folder", type=Path, help="keep records here, and go on from them")
    parser.add_argument(
        "--budget", type=float, default=20, help="CPU seconds of one mutant's tests"
    )
    parser.add_argument("--tests", nargs="*", default=["tests"], help="test files or folders")
    arguments = parser.parse_args()
    sites = sample(arguments.number, arguments.seed)
    if arguments.list:
        print(*(f"{site.number:4} {site}" for site in sites), sep="\n")
        return 0
    start = time.monotonic()
    results = outcomes(sites, arguments)
    percent = report([site for site in sites if site.number in results], results)
    print(f"{time.monotonic() - start:.0f} s")
    return int(percent < FLOOR)


if __name__ == "__main__":
    sys.exit(main())
