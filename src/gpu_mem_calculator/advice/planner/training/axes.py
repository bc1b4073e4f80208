"""The axes of the space: what a set-up chooses, by engine, and the values that are tried.

A numeric axis is a size, and all its values are evaluated at once. A structural axis is a choice
between programs, and each combination is evaluated by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec import Struct

from ....models.arch.arch import Arch
from ....models.arch.blocks import Moe
from ....training.engines import engine_knobs

TP, PP, CP, EP = "tp", "pp", "cp", "ep"
CHUNKS, RECOMPUTED, BATCH = "chunks", "recomputed", "batch"
# Numeric axes. Those of a pipeline and those of a rank are two lists of combinations; arrays have a
# dimension for pipeline stages, then one for each list.
PIPE, RANK = (PP, CHUNKS, RECOMPUTED), (TP, CP, EP, BATCH)
NUMERIC = (*PIPE, *RANK)
KEYS: Mapping[str, str] = {
    TP: "parallelism.tensor_parallel_size",
    PP: "parallelism.pipeline_parallel_size",
    CP: "parallelism.context_parallel_size",
    EP: "parallelism.expert_parallel_size",
    CHUNKS: "parallelism.virtual_pipeline_size",
    RECOMPUTED: "training.recompute.recompute_num_layers",
    BATCH: "training.batch_size",
}
# Sizes that follow from the others, from the GPUs and the global batch.
DERIVED: Mapping[str, str] = {
    "dp": "parallelism.data_parallel_size",
    "micro_batches": "training.gradient_accumulation_steps",
}
LEAST_TOKENS = 1024  # of a sequence on one rank: shorter parts are slower and save little
MOST_BATCH, MOST_CHUNKS, MOST_PP = 64, 16, 128
PARTS = 8  # of a chunk: how many of its layers are recomputed
NO_LAYERS = -1  # the value of RECOMPUTED where a structure says what is recomputed
OPTIMIZER = "training.optimizer"
COUNT_EMBEDDING = "engine.account_for_embedding_in_pipeline_split"
OVERLAPPED = "engine.overlap_param_gather"
COUNT_LOSS = "engine.account_for_loss_in_pipeline_split"


class EngineAxes(Struct, frozen=True):
    """What is tried of one engine: sizes other than the micro-batch, choices by key, and choices of
    models with experts.
    """

    sizes: tuple[str, ...]
    choices: Mapping[str, tuple[Any, ...]]
    of_experts: Mapping[str, tuple[Any, ...]] = {}


@cache
def engine_axes(name: str) -> EngineAxes:
    """The axes of an engine, from its knobs."""
    knobs = engine_knobs(name)
    keys = {knob.key for knob in knobs}
    values = {of: {k.key: k.values for k in knobs if k.of_experts == of} for of in (False, True)}
    return EngineAxes(
        tuple(axis for axis, key in KEYS.items() if key in keys),
        {key: tried for key, tried in values[False].items() if tried},
        values[True],
    )


def divisors(number: int, most: int) -> list[int]:
    """The divisors of a number, at most `most`."""
    return [n for n in range(1, min(number, most) + 1) if number % n == 0]


def powers(most: int) -> list[int]:
    """1, 2, 4 ... up to `most`."""
    return [1 << i for i in range(max(most, 1).bit_length()) if 1 << i <= most]


def axis_values(
    arch: Arch, *, num_gpus: int, gpus_per_node: int, seq: int, global_batch: int
) -> dict[str, list[int]]:
    """The values of each numeric axis that a model and its GPUs allow."""
    layers = len(arch.layers)
    experts = [layer.mlp.num_experts for layer, _, _ in arch.runs if isinstance(layer.mlp, Moe)]
    return {
        TP: [n for n in divisors(num_gpus, gpus_per_node) if n in (*powers(n), gpus_per_node)],
        PP: divisors(num_gpus, min(layers, MOST_PP)),
        CP: [n for n in powers(max(seq // LEAST_TOKENS, 1)) if num_gpus % n == 0],
        EP: [n for n in powers(min(experts)) if num_gpus % n == 0] if experts else [1],
        CHUNKS: [n for n in range(1, MOST_CHUNKS + 1) if not (layers % n and (layers + 2) % n)],
        BATCH: divisors(global_batch, MOST_BATCH),
    }
