"""Compare estimates with traces over many random runs: `make compare-traces N=500`.

Usage: python -m tests.random_runs [--runs N] [--seed S] [--first I] [--only INDEX]

A run is told by its seed and its index: `--seed 0 --only 17` does that one again and prints its
run file, for `gpu-mem-calc trace --config FILE --diff`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import warnings
from collections.abc import Iterable

from .compare import Compared, compare
from .runs import run_file

FAR = 0.3  # percent: runs that are further off are listed
COLUMNS = f"{'':24}{'runs':>5}{'mean %':>9}{'median %':>10}{'worst %':>9}  worst run\n"


def main() -> int:
    """Compare, and print the summary."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.random_runs",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=500, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="which runs")
    parser.add_argument("--first", type=int, default=0, help="the index to begin with")
    parser.add_argument("--only", type=int, help="one run, and its run file")
    args = parser.parse_args()
    indices = [args.only] if args.only is not None else range(args.first, args.first + args.runs)
    if args.only is not None:
        print(json.dumps(run_file(args.seed, args.only), indent=2))
    done, failed = _compared(args.seed, indices)
    print(summary(done))
    for index, reason in failed:
        print(f"not traced: run {index}, {reason}")
    return 0


def _compared(seed: int, indices: Iterable[int]) -> tuple[list[Compared], list[tuple[int, str]]]:
    """Every run, with a line of progress on standard error; one that cannot be run is told."""
    done: list[Compared] = []
    failed: list[tuple[int, str]] = []
    for number, index in enumerate(indices, 1):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PEFT's and FSDP's, which tell users of torch
                done.append(compare(seed, index))
        except Exception as error:  # what transformers or torch refuse is a finding, too
            failed.append((index, f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"))
        print(f"\r{number} runs, {len(failed)} not traced", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return done, failed


def summary(done: list[Compared]) -> str:
    """Errors of the asked peak by engine and by family, and every run that is far off."""
    text = "bytes that tensors ask for at the peak, estimate against trace\n" + COLUMNS
    text += _line("all", done)
    for engine in sorted({one.engine for one in done}):
        text += _line(engine, [one for one in done if one.engine == engine])
    for family in sorted({one.family for one in done}):
        text += _line(family, [one for one in done if one.family == family])
    allocated = [abs(one.allocated_pct) for one in done] or [0.0]
    text += f"\nallocated, with the allocator's blocks: mean {statistics.mean(allocated):.3f} %, "
    text += f"median {statistics.median(allocated):.3f} %, worst {max(allocated):.2f} %\n"
    far = sorted((one for one in done if abs(one.asked_pct) > FAR), key=lambda o: -abs(o.asked_pct))
    text += f"\n{len(far)} of {len(done)} runs are more than {FAR} % off\n"
    return text + "".join(
        f"  run {one.index:4} {one.asked_pct:+7.2f} %  {one.engine}, {one.family}; most in "
        f"{one.worst_phase[0]}: {one.worst_phase[1]:+.2f} %\n"
        for one in far
    )


def _line(name: str, done: list[Compared]) -> str:
    if not done:
        return f"{name:24}{0:5}\n"
    errors = [abs(one.asked_pct) for one in done]
    worst = max(done, key=lambda one: abs(one.asked_pct))
    return (
        f"{name:24}{len(done):5}{statistics.mean(errors):9.3f}{statistics.median(errors):10.4f}"
        f"{max(errors):9.2f}  {worst.index}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
