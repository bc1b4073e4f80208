"""The space of a question: every structure that an engine accepts, with its sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from ....models.arch.blocks import Moe
from ....run.run import DEFAULT_OPTIMIZER
from ....runfile.find_model.model_source import find_model
from ....runfile.resolve.hardware import find_hardware
from ....runfile.resolve.training_defaults import default_sequence
from ....tools.read import read
from ....training.engines import engine_names
from ..answers.question import PlanQuestion
from .axes import BATCH, DERIVED, KEYS, NUMERIC, OVERLAPPED, PIPE, RANK, axis_values, engine_axes
from .structures import Sizes, Structure, by_program, choices, find_structure

SIZE_KEYS = {key: axis for axis, key in (*KEYS.items(), *DERIVED.items())}


def base_file(question: PlanQuestion) -> dict[str, Any]:
    """What every set-up of a question has: model, hardware, sequence and what is fixed."""
    base: dict[str, Any] = {"model": question.model, "hardware": dict(question.hardware)}
    training: dict[str, Any] = {}
    if question.seq_len is not None:
        training["seq_len"] = question.seq_len
    base["training"] = training
    for key, value in question.fix.items():
        if key not in SIZE_KEYS:
            section, _, name = key.partition(".")
            base.setdefault(section, {})[name] = value
    return base


def structures(question: PlanQuestion, refused: list[str] | None = None) -> Iterator[Structure]:
    """Every structure that an engine of the question accepts; `refused` gets why others are not."""
    base, why = base_file(question), [] if refused is None else refused
    file = read({k: v for k, v in base.items() if k in ("model", "hardware", "training")}).file
    arch, hardware = find_model(file.model).arch, find_hardware(file.hardware, None)
    seq = question.seq_len or default_sequence(arch.max_seq_len, file.model.max_seq_len)
    batch = question.sequences
    base["hardware"]["num_gpus"] = hardware.num_gpus
    values = axis_values(
        arch,
        num_gpus=hardware.num_gpus,
        gpus_per_node=hardware.gpus_per_node,
        seq=seq,
        global_batch=batch,
    )
    given, chosen = _given(question)
    has_experts = any(isinstance(layer.mlp, Moe) for layer, _, _ in arch.runs)
    values |= {axis: given[axis] for axis in given if axis in NUMERIC}
    derived = {axis: tuple(given[axis]) for axis in given if axis in DERIVED}
    for engine in question.engines or engine_names():
        if not _has_sizes(engine, given):
            continue
        accepted: list[Sizes] = []
        optimizer = str(base["training"].get("optimizer", DEFAULT_OPTIMIZER))
        for settings in choices(engine, chosen, experts=has_experts, optimizer=optimizer):
            found = find_structure(base, arch, engine, settings, values, batch, accepted, why)
            if found is not None:
                yield from by_program(replace(found, derived=derived), arch)


def _has_sizes(engine: str, given: dict[str, list[int]]) -> bool:
    """Whether an engine has every size that is given, or may leave it at 1."""
    has = (*engine_axes(engine).sizes, BATCH, *DERIVED)
    return all(axis in has or 1 in values for axis, values in given.items())


def _given(question: PlanQuestion) -> tuple[dict[str, list[int]], dict[str, list[Any]]]:
    """Values of sizes, and of choices, that the question gives."""
    numeric: dict[str, list[int]] = {}
    choose: dict[str, list[Any]] = {}
    every = map(engine_axes, engine_names())
    choices = {key for axes in every for key in (*axes.choices, *axes.of_experts, OVERLAPPED)}
    for key, values in [*((k, [v]) for k, v in question.fix.items()), *question.vary.items()]:
        if key in SIZE_KEYS:
            numeric[SIZE_KEYS[key]] = [int(value) for value in values]
        elif key in choices or key in question.vary:
            choose[key] = list(values)
    return numeric, choose


def searched_axes(structures: list[Structure]) -> dict[str, list[Any]]:
    """Each axis with the values that some structure has."""
    axes: dict[str, dict[Any, None]] = {}
    for structure in structures:
        for key, value in structure.settings.items():
            axes.setdefault(key, {})[value] = None
        for names, rows in ((PIPE, structure.pipes), (RANK, structure.ranks)):
            for row in rows:
                for axis, size in zip(names, row, strict=True):
                    axes.setdefault(KEYS[axis], {})[size] = None
    return {key: list(values) for key, values in axes.items()}
