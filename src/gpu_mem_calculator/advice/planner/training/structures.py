"""Structures: every combination of choices that an engine accepts, and the sizes it accepts.

Stages, chunks and recomputed layers that a model's layers allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, product
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.mesh import Mesh
from ....models.arch.arch import Arch
from ....models.arch.blocks import Moe
from ....run.recompute import FULL, NONE
from ....run.run import DEFAULT_OPTIMIZER, Run
from ....runfile.resolve.resolve_training import draft_training
from ....runfile.resolve.resolved_run import ResolvedRun
from ....runfile.resolve.training_rules import key_problems
from ....runfile.text.errors import InputError
from ....tools.read import read
from ....training.engines import engine_knobs, engine_row
from ....training.knob import IMPLEMENTATION, RECOMPUTE
from ....training.optimizers import OPTIMIZERS, optimizer_name
from ....training.rules import problems
from .axes import (
    BATCH,
    CHUNKS,
    COUNT_EMBEDDING,
    CP,
    EP,
    KEYS,
    NO_LAYERS,
    NUMERIC,
    OPTIMIZER,
    PARTS,
    PIPE,
    PP,
    RANK,
    RECOMPUTED,
    TP,
    engine_axes,
)

Settings = Mapping[str, Any]  # keys of a run file, as section.key, with their values


def find_pipes(
    values: Mapping[str, list[int]], settings: Settings, num_layers: int, *, equal: bool = True
) -> list[tuple[int, ...]]:
    """Stages, chunks and recomputed layers. Some engines' stages share the layers equally, with
    embedding and loss where they count. Several chunks need several stages; where ends count, also
    `equal` layers, for which alone the moments of the schedule are arrays
    (training/step/chunks.py).
    """
    several = [(p, c) for p, c in product(values[PP], values[CHUNKS]) if p > 1 or c == 1]
    if not engine_row(settings["engine.type"]).equal_stages:
        return [(pp, chunks, NO_LAYERS) for pp, chunks in several]
    counted = bool(settings.get(COUNT_EMBEDDING))
    layers = num_layers + 2 * counted
    pipes: list[tuple[int, ...]] = []
    for pp, chunks in several:
        size, rest = divmod(layers, pp * chunks)
        if rest == 0 and size and pp > counted and (equal or chunks == 1 or not counted):
            pipes += [(pp, chunks, count) for count in _recomputed(size, settings, values)]
    return pipes


def _recomputed(size: int, settings: Settings, values: Mapping[str, list[int]]) -> list[int]:
    """How many layers of a chunk are recomputed, most first."""
    if settings.get(RECOMPUTE) != FULL:
        return [NO_LAYERS]
    if RECOMPUTED in values:
        return sorted((n for n in values[RECOMPUTED] if n <= size), reverse=True)
    return sorted({size * part // PARTS for part in range(PARTS + 1)}, reverse=True)


BLOCK = {"recompute_granularity": FULL, "recompute_method": "block"}
Sizes = Mapping[str, int]  # a value of every numeric axis
MESH = RANK[:-1]  # without the micro-batch, to which no engine objects
OFFLOADED, STAGE = "engine.offload_optimizer", "engine.zero_stage"


class Structure(Struct, frozen=True, kw_only=True):
    """One combination of structural choices.

    - `settings`: keys of a run file that every set-up of it has
    - `pipes`: stages and chunks that its engine accepts; `ranks`: sizes of the other axes
    - `derived`: values that the question allows of sizes that follow from the others
    - `resolved`: one of its set-ups, from which the others differ in their sizes alone
    """

    engine: str
    settings: Settings
    pipes: tuple[tuple[int, ...], ...]
    ranks: tuple[tuple[int, ...], ...]
    resolved: ResolvedRun
    derived: Mapping[str, tuple[int, ...]] = {}

    def sizes(self, pipe: int, rank: int) -> dict[str, int]:
        """The sizes at one place of the two lists."""
        values = (*self.pipes[pipe], *self.ranks[rank])
        return dict(zip(NUMERIC, values, strict=True))


def choices(
    engine: str,
    given: Mapping[str, list[Any]],
    *,
    experts: bool,
    optimizer: str = DEFAULT_OPTIMIZER,
) -> Iterator[dict[str, Any]]:
    """Every combination of an engine's choices, once; `given` are values of a key to try instead.
    `experts`: the model has them; `optimizer`: the one that is stepped, unless it is varied.
    """
    axes = engine_axes(engine)
    own = {**axes.choices, **(axes.of_experts if experts else {})}
    table = {key: list(values) for key, values in own.items()}
    table |= {key: list(values) for key, values in given.items()}
    found: list[dict[str, Any]] = []
    for values in product(*table.values()):
        combination = dict(zip(table, values, strict=True))
        if IMPLEMENTATION not in given:
            combination = _implemented(combination, optimizer)
        if _is_sensible(combination) and combination not in found:
            found.append(dict(combination))
            for knob in engine_knobs(engine):
                if combination.get(knob.key):
                    combination |= {k: v for k, v in knob.also.items() if k not in combination}
            yield combination


def _implemented(combination: dict[str, Any], optimizer: str) -> dict[str, Any]:
    """The combination with an implementation that its optimizer has: the default in the place of
    one that it lacks, and no word for an optimizer that has none.
    """
    row = OPTIMIZERS.get(optimizer_name(str(combination.get(OPTIMIZER, optimizer))))
    if row is None or combination.get(IMPLEMENTATION) in (None, *row.implementations):
        return combination
    if row.implementations:
        return combination | {IMPLEMENTATION: row.default}
    return {key: value for key, value in combination.items() if key != IMPLEMENTATION}


def _is_sensible(combination: Settings) -> bool:
    """Whether no choice contradicts another: DeepSpeed offloads weights in stage 3 alone, and only
    with the optimizer; it offloads the optimizer from stage 1 on.
    """
    stage, offloads = combination.get(STAGE, 3), combination.get(OFFLOADED, "none") != "none"
    if combination.get("engine.offload_param", "none") != "none":
        return bool(stage == 3 and offloads)
    return not (offloads and stage == 0)


def run_file(
    base: Mapping[str, Any], settings: Settings, sizes: Sizes, global_batch: int
) -> dict[str, Any]:
    """The run file of one set-up: `base` has the model, the hardware and what is fixed."""
    file: dict[str, Any] = {section: dict(values) for section, values in base.items()}
    ranks = sizes[TP] * sizes[PP] * sizes[CP]
    data_parallel = max(file["hardware"]["num_gpus"] // ranks, 1)
    micro_batches = max(global_batch // (data_parallel * sizes[BATCH]), 1)
    values = {
        **settings,
        **size_settings(sizes),
        "parallelism.data_parallel_size": data_parallel,
        "training.gradient_accumulation_steps": micro_batches,
    }
    for key, value in values.items():
        section, _, name = key.partition(".")
        if value is None:
            file[section].pop(name, None)
        else:
            file.setdefault(section, {})[name] = value
    return file


def size_settings(sizes: Sizes) -> dict[str, Any]:
    """Sizes as keys of a run file; None takes a key out."""
    layers = sizes[RECOMPUTED]
    values: dict[str, Any] = {KEYS[axis]: sizes[axis] for axis in NUMERIC if axis != RECOMPUTED}
    if layers == 0:
        values[RECOMPUTE] = NONE
    elif layers > 0:
        values[RECOMPUTE] = None
        values["training.recompute"] = {**BLOCK, "recompute_num_layers": layers}
    return values


def with_sizes(run: Run, sizes: Mapping[str, Any], dp: Any, micro_batches: Any) -> Run:
    """A run with other sizes: ints, or arrays of them."""
    layers = sizes[RECOMPUTED]
    given = isinstance(layers, int) and layers == NO_LAYERS
    return replace(
        run,
        mesh=Mesh(dp=dp, tp=sizes[TP], pp=sizes[PP], cp=sizes[CP], ep=sizes[EP]),
        batch=sizes[BATCH],
        micro_batches=micro_batches,
        virtual_stages=sizes[CHUNKS],
        rule=run.rule if given else replace(run.rule, first_layers=layers),
    )


def find_structure(
    base: Mapping[str, Any],
    arch: Arch,
    engine: str,
    settings: Settings,
    values: Mapping[str, list[int]],
    global_batch: int,
    accepted: list[Sizes],
    refused: list[str],
) -> Structure | None:
    """The structure of some choices with the sizes that its engine accepts; None without any.

    `accepted` has sizes of other structures of the engine, which are tried first. `refused` gets
    the problems of a structure without any.
    """
    chosen = {"engine.type": engine, **settings}
    has = (*engine_axes(engine).sizes, BATCH)
    own = {axis: values[axis] if axis in has else [1] for axis in values}
    ranks = list(product(*(own[axis] for axis in RANK)))
    pipes = find_pipes(own, chosen, len(arch.layers), equal=len(arch.runs) == 1)
    if not (pipes and ranks):
        return None
    every = (_named(PIPE, p) | _named(RANK, r) for p, r in product(pipes, ranks))
    sizes = chain([one for one in accepted if tuple(one[axis] for axis in PIPE) in pipes], every)
    ends = [_named(PIPE, end(pipes)) | _named(RANK, end(ranks)) for end in (min, max)]
    resolved = _first_accepted(base, chosen, sizes, ends, global_batch, refused)
    if resolved is None:
        return None
    run = resolved.run
    first = run.rule.first_layers
    some = {PP: int(run.mesh.pp), CHUNKS: int(run.virtual_stages), BATCH: int(run.batch)}
    some |= {TP: int(run.mesh.tp), CP: int(run.mesh.cp), EP: int(run.mesh.ep)}
    some[RECOMPUTED] = NO_LAYERS if first is None else first
    if some not in accepted:
        accepted.append(some)
    meshes = [
        mesh
        for mesh in product(*(own[axis] for axis in MESH))
        if is_accepted(resolved, some | _named(MESH, mesh))
    ]
    stages = {one[:-1]: one for one in pipes}  # no rule looks at how many layers are recomputed
    possible = {
        key for key, one in stages.items() if is_accepted(resolved, some | _named(PIPE, one))
    }
    return Structure(
        engine=engine,
        settings=chosen,
        pipes=tuple(one for one in pipes if one[:-1] in possible),
        ranks=tuple((*mesh, batch) for mesh in meshes for batch in own[BATCH]),
        resolved=resolved,
    )


def by_program(structure: Structure, arch: Arch) -> Iterator[Structure]:
    """The structure in parts that run the same operations: all-to-all sends nothing on a rank that
    has all experts, and sorts nothing on one that has a single expert.
    """
    experts = {layer.mlp.num_experts for layer, _, _ in arch.runs if isinstance(layer.mlp, Moe)}
    parts: dict[tuple[bool, ...], list[tuple[int, ...]]] = {}
    for rank in structure.ranks:
        tp, _, ep, _ = rank
        kind = (tp == 1, ep == 1, ep in experts) if experts else ()
        parts.setdefault(kind, []).append(rank)
    for ranks in parts.values():
        yield replace(structure, ranks=tuple(ranks))


def _named(axes: tuple[str, ...], values: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(axes, values, strict=True))


def is_accepted(resolved: ResolvedRun, sizes: Sizes) -> bool:
    """Whether the rules accept some sizes, given data parallelism and micro-batches to match."""
    return not next(_problems(resolved, sizes), None)


def _problems(resolved: ResolvedRun, sizes: Sizes) -> Iterator[str]:
    """Why a run with other sizes is refused, whatever the GPUs and the global batch."""
    run = with_sizes(resolved.run, sizes, 64 * sizes[EP], 4 * sizes[PP])
    return problems(run, resolved.engine)


def _first_accepted(
    base: Mapping[str, Any],
    settings: Settings,
    sizes: Iterable[Sizes],
    ends: Iterable[Sizes],
    global_batch: int,
    refused: list[str],
) -> ResolvedRun | None:
    """The first set-up that all rules accept; `ends`: the smallest and the largest sizes.

    What refuses the run with both does not depend on sizes: then no other ones are tried.
    """
    num_gpus = base["hardware"]["num_gpus"]
    for one in (one for one in sizes if makes_up(one, num_gpus, global_batch)):
        try:
            file = read(run_file(base, settings, one, global_batch)).file
            drafted = draft_training(file)
        except InputError as error:
            refused += [problem for problem in error.problems if problem not in refused]
            return None
        of_keys = list(key_problems(drafted.run, file, drafted.engine))
        found = list(problems(drafted.run, drafted.engine, of_keys))
        if not found:
            return drafted
        refused += [problem for problem in found if problem not in refused]
        if of_keys or set.intersection(*({*_problems(drafted, end)} for end in ends)):
            return None
    return None


def makes_up(sizes: Sizes, num_gpus: int, global_batch: int) -> bool:
    """Whether sizes make up all GPUs and the global batch."""
    ranks = sizes[TP] * sizes[PP] * sizes[CP]
    if num_gpus % ranks:
        return False
    return global_batch % (num_gpus // ranks * sizes[BATCH]) == 0
