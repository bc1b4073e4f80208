"""The set-ups of a server that are searched: engines, parallel sizes, formats."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from msgspec import Struct

from ....models.arch.arch import Arch
from ....models.arch.blocks import Moe
from ....run.engine import Engine
from ....runfile.resolve.serving_split import (
    DATA,
    GPUS_PER_NODE,
    PIPELINE,
    TENSOR,
    shards_layers,
    tensor_parallel_problem,
)
from ....runfile.text.errors import InputError
from ....serving import server, server_names, server_row
from ..answers.serving_question import ServingQuestion

EXPERTS, CACHE, WEIGHTS = "expert_parallel_size", "kv_cache_dtype", "quantization"
ATTENTION_GROUPS = "enable_dp_attention"
MOST_STAGES = 8
SECTION = "inference."


class ServingSetup(Struct, frozen=True, kw_only=True):
    """One server: its engine, its keys of `inference`, and its GPUs."""

    engine: str
    keys: dict[str, Any]
    gpus: int


def serving_setups(question: ServingQuestion, arch: Arch, gpus: int) -> list[ServingSetup]:
    """Every set-up of a server on at most `gpus` GPUs, of every engine asked for."""
    names = question.engines or server_names()
    return [one for name in names for one in _engine_setups(question, arch, server(name), gpus)]


def _engine_setups(
    question: ServingQuestion, arch: Arch, engine: Engine, gpus: int
) -> Iterator[ServingSetup]:
    fixed = own_keys(question.fix)
    varied = own_keys(question.vary)
    if any(key not in engine.options for key in (*fixed, *varied)):
        return
    tried = {
        CACHE: ["auto", "fp8"] if engine.serve is not None else ["auto"],
        **{key: [value] for key, value in fixed.items() if key not in SIZES},
        **{key: values for key, values in varied.items() if key not in SIZES},
    }
    if server_row(engine.name).reads_gguf:
        tried = {WEIGHTS: ["none"], CACHE: ["auto"], **_given(tried, fixed, varied)}
    for sizes, count in _sizes(arch, engine, gpus, _wanted_sizes(fixed, varied)):
        for values in product(*tried.values()):
            formats = dict(zip(tried, values, strict=True))
            yield ServingSetup(engine=engine.name, keys={**sizes, **_shown(formats)}, gpus=count)


SIZES = (TENSOR, PIPELINE, DATA, EXPERTS, ATTENTION_GROUPS)


def own_keys(keys: dict[str, Any]) -> dict[str, Any]:
    """Keys of `inference` without their section; another section's are refused."""
    for key in keys:
        if not key.startswith(SECTION):
            raise InputError(f"{key} is not a key of a server's set-up; fix keys of `inference`")
    return {key.removeprefix(SECTION): value for key, value in keys.items()}


def _given(
    tried: dict[str, list[Any]], fixed: dict[str, Any], varied: dict[str, Any]
) -> dict[str, list[Any]]:
    return {key: values for key, values in tried.items() if key in fixed or key in varied}


def _shown(formats: dict[str, Any]) -> dict[str, Any]:
    """The formats without those that are an engine's default."""
    return {key: value for key, value in formats.items() if (key, value) != (CACHE, "auto")}


def _wanted_sizes(fixed: dict[str, Any], varied: dict[str, Any]) -> dict[str, list[Any]]:
    """The values of parallel sizes that the user gives."""
    given = {key: [value] for key, value in fixed.items() if key in SIZES}
    return {**given, **{key: values for key, values in varied.items() if key in SIZES}}


def _sizes(
    arch: Arch, engine: Engine, gpus: int, wanted: dict[str, list[Any]]
) -> Iterator[tuple[dict[str, Any], int]]:
    """Parallel sizes of one server, and its GPUs."""
    if engine.serve is None:
        yield {}, 1
    elif not shards_layers(engine):
        yield from (({}, count) for count in doubled(min(gpus, MOST_STAGES, len(arch.layers))))
    else:
        for tp, pp in product(_tensor_sizes(arch, gpus, wanted), _stages(arch, engine, wanted)):
            if tp * pp <= gpus:
                yield from _replica_sizes(arch, engine, gpus, tp, pp, wanted)


def _tensor_sizes(arch: Arch, gpus: int, wanted: dict[str, list[Any]]) -> list[int]:
    if TENSOR in wanted:
        return wanted[TENSOR]
    most = min(gpus, GPUS_PER_NODE)
    return [tp for tp in range(1, most + 1) if not tensor_parallel_problem(arch, tp)]


def _stages(arch: Arch, engine: Engine, wanted: dict[str, list[Any]]) -> list[int]:
    if PIPELINE in wanted:
        return wanted[PIPELINE]
    return doubled(min(MOST_STAGES, len(arch.layers))) if PIPELINE in engine.options else [1]


def _replica_sizes(
    arch: Arch, engine: Engine, gpus: int, tp: int, pp: int, wanted: dict[str, list[Any]]
) -> Iterator[tuple[dict[str, Any], int]]:
    """The ways in which the ranks of a server share experts and attention."""
    sizes = {TENSOR: tp, **({PIPELINE: pp} if pp > 1 else {})}
    found: list[tuple[dict[str, Any], int]] = [({}, tp * pp)]
    if any(isinstance(layer.mlp, Moe) for layer, _, _ in arch.runs):
        found += _expert_sizes(engine, gpus, tp, pp)
    for more, count in found:
        keys = {**sizes, **more}
        if all(keys.get(axis, _one(axis)) in values for axis, values in wanted.items()):
            yield keys, count


def _one(axis: str) -> Any:
    return False if axis == ATTENTION_GROUPS else 1


def _expert_sizes(
    engine: Engine, gpus: int, tp: int, pp: int
) -> Iterator[tuple[dict[str, Any], int]]:
    """Expert parallelism over all ranks of a server; with data-parallel attention as well."""
    if EXPERTS in engine.options and tp > 1:
        yield {EXPERTS: tp}, tp * pp
    if ATTENTION_GROUPS in engine.options and tp > 1:
        yield {DATA: tp, ATTENTION_GROUPS: True, EXPERTS: tp}, tp * pp
    elif DATA in engine.options and pp == 1:
        for dp in doubled(gpus // tp)[1:]:
            yield {DATA: dp, EXPERTS: tp * dp}, tp * dp


def doubled(most: int) -> list[int]:
    """Powers of two up to `most`."""
    return [2**power for power in range(most.bit_length()) if 2**power <= most]
