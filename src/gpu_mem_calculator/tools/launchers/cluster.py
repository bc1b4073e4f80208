"""srun and mpirun: how many processes they start."""

from __future__ import annotations

import re

from msgspec import Struct

from ..reading.card import NamedCard
from .launcher_options import LauncherOptions, split_options
from .slurm_cards import slurm_card

MPIRUN = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")


class Processes(Struct, frozen=True):
    """Processes that a launcher starts, its nodes and their card; None where it does not say."""

    count: int | None = None
    nodes: int | None = None
    card: NamedCard | None = None


def srun(words: list[str]) -> tuple[Processes, dict[str, str], list[str]]:
    """What srun says, variables that it sets, and the command that it starts."""
    options = split_options("srun", words[1:])
    nodes = options.number("nodes")
    each, gpus = options.number("ntasks_per_node"), _gpus(options)
    count = options.number("ntasks") or (each * nodes if each and nodes else None)
    if gpus and (count is None or (nodes and count <= nodes)):
        # one task for each node, which starts the others
        count = gpus * (nodes or 1)
    given = {f"--{name.replace('_', '-')}": values[-1] for name, values in options.given.items()}
    return Processes(count, nodes, slurm_card(given)), {}, list(options.rest)


def _gpus(options: LauncherOptions) -> int | None:
    """GPUs of a node."""
    written = options.last("gpus_per_node", "gres") or ""
    found = re.search(r"(?:^|gpu:)(?:[\w.+-]+:)?(\d+)$", written)
    return int(found[1]) if found else None


def mpirun(words: list[str]) -> tuple[Processes, dict[str, str], list[str]]:
    """The same of mpirun."""
    options = split_options("mpirun", words[1:])
    count = options.number("np", "n", "c")
    hosts = [one for one in (options.last("host") or "").split(",") if one]
    each = options.number("npernode", "ppn")
    slots = [
        int(slot) if slot.isdecimal() else 1 for _, _, slot in (h.partition(":") for h in hosts)
    ]
    count = count or (each * len(hosts) if each and hosts else sum(slots)) or None
    nodes = len({one.partition(":")[0] for one in hosts}) or (
        -(-count // each) if count and each else None
    )
    variables = dict(one.split("=", 1) for one in options.given.get("x", ()) if "=" in one)
    return Processes(count, nodes), variables, list(options.rest)
