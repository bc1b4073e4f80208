"""Draws run files with numbers at the bounds of the schema, as far as the rules take them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import cache
from math import log2
from random import Random
from typing import Any

from msgspec import Meta, Struct

from gpu_mem_calculator.models.families.config import MOST_LAYERS
from gpu_mem_calculator.runfile.config import EngineConfig, TrainingConfig
from gpu_mem_calculator.runfile.field_types import MOST_STAGES
from gpu_mem_calculator.runfile.inference_config import InferenceConfig
from gpu_mem_calculator.runfile.read import key_types, parts
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.serving import servers
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines import engine, engine_names
from tests.models.families.test_shapes import CASES

PRESETS = ("llama3.1-8b", "llama3.1-405b", "mixtral-8x7b", "deepseek-v3", "gpt2", "mamba2-780m")
CARDS = ("h100-80gb-sxm", "a100-80gb-sxm", "t4")
MOST = 10**9
BATCHES = (1, 2, 1000, 10**6, MOST)
TOKENS = (1, 128, 4096, 10**5, 10**6, 5 * 10**7, MOST)
MICRO_BATCHES = (1, 4, 1000, 10**6, MOST)
DATA_PARALLEL = (2, 8, 1000, 10**6, 10**7)
STARTS, TRIES, MOST_MORE = 100, 25, 4
# Other choices, by section and key; each is tried as it stands.
CHOICES: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("training", "activation_checkpointing", ("full", "selective")),
    ("training", "lora", ({"r": 1}, {"r": 16}, {"r": MOST})),
    ("training", "optimizer", ("adamw_8bit", "sgd", "muon", "adafactor", "paged_adamw_8bit")),
    ("training", "attention", ("eager",)),
    ("training", "evaluation", ({"batch_size": MOST, "batches": MOST, "keep_logits": True},)),
    ("training", "generation", ({"prompt": MOST, "new_tokens": MOST, "sequences": 10**6},)),
    ("training", "pytorch_alloc_conf", ("expandable_segments:True", "max_split_size_mb:21")),
    ("engine", "offload_optimizer", ("cpu", "nvme")),
    ("engine", "offload_param", ("cpu",)),
    ("engine", "sharding_strategy", ("shard_grad_op", "hybrid_shard")),
)
Change = tuple[str, str, Any]


def drawn(seed: int) -> dict[str, Any]:
    """A run file that is not refused; every third one is a server's."""
    rng = Random(f"extreme/{seed}")
    return _server(rng) if seed % 3 == 2 else _training(rng)


def _training(rng: Random) -> dict[str, Any]:
    name = rng.choice(engine_names())
    run = _start(rng, {"engine": {"type": name}, "training": {"seq_len": 128}})
    if name == "deepspeed":
        run = _with(run, [("engine", "zero_stage", rng.choice((1, 2, 3, 3, 3)))])
    run = _split(rng, run, engine(name).axes)
    for key, among in (
        ("batch_size", BATCHES),
        ("seq_len", TOKENS),
        ("gradient_accumulation_steps", MICRO_BATCHES),
    ):
        if rng.random() < 0.6:
            run = _with(run, [("training", key, rng.choice(among))])
    bounds = [*_bounds("training", TrainingConfig), *_bounds("engine", EngineConfig)]
    return _with_more(rng, run, bounds)


def _server(rng: Random) -> dict[str, Any]:
    run = _start(rng, {"inference": {"engine": rng.choice(sorted(servers()))}})
    if rng.random() < 0.3:
        stages = rng.choice((2, 8, MOST_STAGES))
        run = _with(
            run, [("inference", "pipeline_parallel_size", stages), ("hardware", "num_gpus", stages)]
        )
    return _with_more(rng, run, [*_bounds("inference", InferenceConfig)], 2 * MOST_MORE)


def _start(rng: Random, rest: dict[str, Any]) -> dict[str, Any]:
    """A model, a card and the rest, which are not refused."""
    for _ in range(STARTS):
        run = {"model": _model(rng), **rest, "hardware": {"gpu": rng.choice(CARDS), "num_gpus": 1}}
        if _accepted(run):
            break
    return run


def _model(rng: Random) -> dict[str, Any]:
    """A preset, a family's config.json with as many layers as may be, or plain numbers."""
    kind = rng.random()
    if kind < 0.3:
        return {"name": rng.choice(PRESETS)}
    if kind < 0.6:
        config = dict(CASES[rng.choice(sorted(CASES))])
        return {"config": {**config, "num_hidden_layers": MOST_LAYERS}}
    heads = rng.choice((1, 8, 32, 128))
    model = {
        "num_layers": rng.choice((1, 2, 100, MOST_LAYERS - 1, MOST_LAYERS, MOST_LAYERS)),
        "hidden_size": heads * rng.choice((8, 64, 128, 1024, 10**5)),
        "num_attention_heads": heads,
        "vocab_size": rng.choice((1, 32_000, 10**6, MOST)),
    }
    if rng.random() < 0.3:
        experts = rng.choice((8, 1000, 10**5, MOST))
        model |= {"moe_enabled": True, "num_experts": experts, "top_k": rng.choice((1, 2, experts))}
    return model


def _split(rng: Random, run: dict[str, Any], axes: frozenset[str]) -> dict[str, Any]:
    """The run on more GPUs, over the axes that its engine has."""
    sizes = {"pp": (2, 8, 64, MOST_STAGES), "tp": (2, 8, 64), "cp": (2, 8, 1024)}
    names = {"pp": "pipeline", "tp": "tensor", "cp": "context"}
    for axis, among in sizes.items():
        if axis in axes and rng.random() < 0.5:
            size = rng.choice(among)
            more = _more_gpus(run, size)
            run = _with(run, [("parallelism", f"{names[axis]}_parallel_size", size), more])
    if rng.random() < 0.3:
        run = _with(run, [("parallelism", "virtual_pipeline_size", rng.choice((2, 4, 100)))])
    if rng.random() < 0.7:
        run = _with(run, [_more_gpus(run, rng.choice(DATA_PARALLEL))])
    if "ep" in axes and rng.random() < 0.3:
        run = _with(run, [("parallelism", "expert_parallel_size", rng.choice((2, 8, 1000)))])
    return run


def _more_gpus(run: dict[str, Any], times: int) -> Change:
    return ("hardware", "num_gpus", min(MOST, run["hardware"]["num_gpus"] * times))


def _with_more(
    rng: Random, run: dict[str, Any], bounds: Sequence[tuple[str, str, int, int]], most: int = 0
) -> dict[str, Any]:
    """The run with up to some more keys at a bound, or with another choice."""
    wanted = rng.randint(0, most or MOST_MORE)
    for _ in range(TRIES):
        if not wanted:
            break
        if rng.random() < 0.6:
            section, key, low, high = rng.choice(bounds)
            value: Any = rng.choice((low, low + 1, high, int(2 ** rng.uniform(0, log2(high)))))
        else:
            section, key, among = rng.choice(CHOICES)
            value = rng.choice(among)
        if key not in run.get(section, {}):
            changed = _with(run, [(section, key, value)])
            wanted -= changed is not run
            run = changed
    return run


@cache
def _bounds(section: str, kinds: type[Struct]) -> tuple[tuple[str, str, int, int], ...]:
    """The keys of a section that are whole numbers: section, key, the least and the most."""
    return tuple(
        (section, key, *found) for key, kind in key_types(kinds).items() for found in _of(kind)
    )


def _of(kind: Any) -> Iterator[tuple[int, int]]:
    for part in parts(kind):
        for meta in getattr(part, "__metadata__", ()):
            if (
                isinstance(meta, Meta)
                and part.__origin__ is int
                and meta.ge is not None
                and meta.le
            ):
                yield int(meta.ge), int(meta.le)


def _with(run: dict[str, Any], changes: Sequence[Change]) -> dict[str, Any]:
    """The run with some changes; as it is where they are refused together."""
    changed = copy.deepcopy(run)
    for section, key, value in changes:
        changed.setdefault(section, {})[key] = value
    return changed if _accepted(changed) else run


def _accepted(run: dict[str, Any]) -> bool:
    try:
        resolve(read(run).file)
    except InputError:
        return False
    return True
