"""Measures one case in this process: sets the conditions, runs the job, and makes the row.

A row has its environment: the card, and the versions of the packages that ran.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ...runfile.read import as_dict
from ...runfile.text.errors import InputError
from ...runfile.text.files import write_file
from ...tools.translation.arguments import tables
from ..jobs.job import FAKE, NCCL, World
from ..jobs.megatron_defaults import with_script_defaults
from .card import host_state
from .cases_file import MeasureCase
from .child_process import Tell
from .probe import Probe
from .program import program
from .runs_file import Row

PACKAGES: dict[str, str] = tables(__file__)["packages"]
SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
DRIVER = Path("/proc/driver/nvidia/version")


def card() -> dict[str, Any]:
    """The names of the card, its driver version and torch's."""
    torch = import_module("torch")
    return {
        "gpu": torch.cuda.get_device_name(),
        **({"driver": number} if (number := driver()) else {}),
        "torch": torch.__version__,
    }


def driver(path: Path = DRIVER) -> str:
    """The version of NVIDIA's driver, as the kernel reports it; empty where it does not."""
    try:
        words = path.read_text(encoding="utf-8").splitlines()[0].split()
    except (OSError, IndexError):
        return ""
    return next((word for word in words if word[:1].isdigit() and "." in word), "")


def versions() -> dict[str, str]:
    """Versions of the packages that this process has loaded."""
    loaded = {}
    for package, module in PACKAGES.items():
        if module in sys.modules:
            try:
                loaded[package] = version(package)
            except PackageNotFoundError:
                module_version = getattr(sys.modules[module], "__version__", None)
                loaded[package] = str(module_version) if module_version else "unknown"
    return loaded


def allocator_setting() -> str | None:
    """The allocator's settings of the environment, or None."""
    return next((value for name in SETTINGS if (value := os.environ.get(name))), None)


ONE_RANK = "nccl, 1 rank"  # one process cannot be several ranks of a real process group
HISTORY = 2_000_000  # events that a snapshot keeps


def measure_case(case: MeasureCase, tell: Tell) -> Row:
    """Measure a case: this process plays one rank. `tell` gets each phase as it ends."""
    job = program(case.config, case.function, case.values)
    check_rank(case.rank, job.num_ranks)
    kind = job.process_group
    conf = set_allocator(case.alloc_conf or job.alloc_conf)
    known = row_environment(case, conf, ONE_RANK if kind == NCCL else kind)
    rank = case.rank if kind == FAKE else 0
    head = {"group": job.group, "phases": job.phases(case.steps)}
    probe, world = prepared(case, known, head, tell, process_group=kind, rank=rank)
    try:
        run_with_snapshot(lambda: job.start(world), case.snapshot)
    except Exception:
        with suppress(Exception):  # a broken CUDA context counts nothing
            tell({"died": probe.counters()})
        raise
    return finished_row(case, job.group, probe, known)


def prepared(
    case: MeasureCase, known: dict[str, Any], head: dict[str, Any], tell: Tell, **place: Any
) -> tuple[Probe, World]:
    """The probe and the world of a case, under its cap; `tell` gets the head of its row."""
    probe = case_probe(case, tell)
    tell({"environment": known, "context_bytes": probe.context_bytes, **head})
    set_cap(case.cap_bytes, probe.total)
    steps = probe.clock.steps if probe.clock else case.steps
    return probe, World(device="cuda", mark=probe.mark, steps=steps, **place)


def case_probe(case: MeasureCase, tell: Tell) -> Probe:
    """The probe of a case; `tell` gets each phase with its figures."""
    steps = case.steps if case.averages and not case.snapshot else None
    timed = 0 if case.snapshot or case.cap_bytes is not None else case.timed
    return Probe(
        lambda name, figures: tell({"phase": name, **figures}),
        steps,
        probed=case.steps,
        timed=0 if case.config.get("inference") is not None else timed,
    )


def run_with_snapshot(job: Callable[[], None], snapshot: str | None) -> None:
    """Run a job; write torch's memory snapshot to the file `snapshot`, also where the job fails."""
    if snapshot is None:
        job()
        return
    memory = import_module("torch").cuda.memory
    memory._record_memory_history(max_entries=HISTORY, stacks="python")
    try:
        job()
    finally:
        write_file(snapshot, pickle.dumps(memory._snapshot()), "--snapshot")


def finished_row(case: MeasureCase, group: str, probe: Probe, known: dict[str, Any]) -> Row:
    """The row of a case that did not fail."""
    pinned = probe.pinned_bytes()
    known = {**known, **versions()}
    if probe.clock and probe.clock.measured():
        known |= {"timed_steps": probe.clock.timed, **host_state(), **probe.clock.state}
    if pinned:
        known["host_pinned_bytes"] = pinned
    figures = {"measured": probe.measured(), "phases": probe.phases, "environment": known}
    return {**row_head(case, group), **figures}


def row_head(case: MeasureCase, group: str) -> Row:
    """The first keys of every row of a case."""
    function = {"function": case.function, "with": dict(case.values)} if case.function else {}
    config = with_script_defaults(as_dict(case.config))
    name = case.group or group
    return {"id": case.id, "group": name, "config": config, **function, "rank": case.rank}


def row_environment(case: MeasureCase, conf: str | None, group: str) -> dict[str, Any]:
    """The `environment` of a row, as far as it is known before the job runs."""
    known: dict[str, Any] = {"process_group": group, "steps": case.steps, **card()}
    if conf:
        known["alloc_conf"] = conf
    if case.cap_bytes is not None:
        known["cap_bytes"] = case.cap_bytes
    return known


def check_rank(rank: int, ranks: int) -> None:
    """Raise where the job has no such rank."""
    if not 0 <= rank < ranks:
        known = f"{ranks} rank{'s' * (ranks > 1)}; use 0{f' to {ranks - 1}' * (ranks > 1)}"
        raise InputError(f"--rank {rank}: the job has {known}")


def set_allocator(conf: str | None) -> str | None:
    """Set the allocator's settings before CUDA starts; returns those in force, the shell's too."""
    if not conf:
        return allocator_setting()
    torch = import_module("torch")
    os.environ["PYTORCH_ALLOC_CONF"] = conf
    try:
        torch._C._accelerator_setAllocatorSettings(conf)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"alloc_conf={conf!r} is not what torch takes: {reason}") from None
    return conf


def set_cap(cap_bytes: int | None, total_bytes: int) -> None:
    """Limit torch to this many bytes, as a smaller card would."""
    if cap_bytes is None:
        return
    if cap_bytes > total_bytes:
        fix = f"{total_bytes}; give less"
        raise InputError(f"--cap {cap_bytes} bytes is more than this card has, {fix}")
    # torch rounds the product of share and total down, so half a byte more keeps the cap whole
    share = min(1.0, (cap_bytes + 0.5) / total_bytes)
    import_module("torch").cuda.set_per_process_memory_fraction(share)
