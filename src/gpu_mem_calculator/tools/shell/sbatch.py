"""Slurm's lines in a script: the nodes, GPUs and card that it asks for (sbatch's manual)."""

from __future__ import annotations

import re

from msgspec import Struct

from ..launchers.slurm_cards import slurm_card
from ..reading.card import NamedCard
from ..translation.arguments import tables

LINE = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
OPTION = re.compile(r"(--[\w-]+|-[A-Za-z])(?:[ =]*(\"[^\"]*\"|'[^']*'|[^\s#]+))?")
SHORT: dict[str, str] = tables(__file__)["short"]
MOST_LINES = 200


class Allocation(Struct, frozen=True):
    """What a script asks Slurm for; None where it does not say it."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    tasks_per_node: int | None = None
    gpus: int | None = None
    card: NamedCard | None = None

    @property
    def num_gpus(self) -> int | None:
        """The GPUs of all nodes."""
        if self.gpus is not None:
            return self.gpus
        each = self.gpus_per_node
        return None if each is None else (self.nodes or 1) * each

    def environment(self) -> dict[str, str]:
        """The variables that Slurm sets."""
        nodes, each, tasks = self.nodes, self.gpus_per_node, self.tasks_per_node
        whole = None if tasks is None else (nodes or 1) * tasks
        values = {
            "SLURM_NNODES": nodes,
            "SLURM_JOB_NUM_NODES": nodes,
            "SLURM_GPUS_PER_NODE": each,
            "SLURM_GPUS_ON_NODE": each,
            "SLURM_NTASKS_PER_NODE": tasks,
            "SLURM_NTASKS": whole,
            "SLURM_NPROCS": whole,
        }
        return {name: str(value) for name, value in values.items() if value is not None}


def read_allocation(text: str) -> Allocation:
    """The nodes and GPUs in the script's #SBATCH lines."""
    given: dict[str, str] = {}
    for line in LINE.findall(text)[:MOST_LINES]:
        for name, value in OPTION.findall(line):
            given[SHORT.get(name, name)] = value.strip("\"'")
    nodes = _count(given.get("--nodes"))
    each = _gpus(given.get("--gpus-per-node")) or _gres(given.get("--gres", ""))
    tasks = _count(given.get("--ntasks-per-node"))
    gpus = _gpus(given.get("--gpus"))
    per_task, all_tasks = _gpus(given.get("--gpus-per-task")), _count(given.get("--ntasks"))
    if per_task and not (each or gpus):
        each = per_task * tasks if tasks else None
        gpus = per_task * all_tasks if all_tasks and not tasks else None
    return Allocation(nodes, each, tasks, gpus, slurm_card(given))


def _count(text: str | None) -> int | None:
    """A number: `4`, the first of `2-4`, the last part of `a100:8`."""
    found = re.fullmatch(r"(?:[\w.-]*:)?(\d{1,6})(?:-\d+)?", text or "")
    return int(found[1]) if found and int(found[1]) > 0 else None


def _gpus(text: str | None) -> int | None:
    """The number of `[TYPE:]COUNT`; a type alone is one GPU."""
    alone = re.fullmatch(r"[\w.-]*[A-Za-z][\w.-]*", text or "")
    return 1 if alone else _count(text)


def _gres(text: str) -> int | None:
    found = re.search(r"\bgpu(?::[\w.-]+)?(?::(\d{1,4}))?(?![\w:])", text)
    return (int(found[1]) if found[1] else 1) if found else None
