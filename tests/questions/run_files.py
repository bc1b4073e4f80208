"""Draws run files: engines, servers and programs, with options of every section."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

from gpu_mem_calculator import catalog
from gpu_mem_calculator.runfile.config import (
    EngineConfig,
    EvaluationConfig,
    GenerationConfig,
    LoraConfig,
    ParallelismConfig,
    TrainingConfig,
)
from gpu_mem_calculator.runfile.inference_config import InferenceConfig
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.serving import server, server_names
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines import engine, engine_names
from tests.golden.drawn_values import values
from tests.tools import draw as programs

RunData = dict[str, Any]
SMALL, MIDDLE, LARGE = 3e9, 9e9, 80e9  # parameters
LAYERS = (1, 2, 2, 3, 4, 6, 8)
NUMBERS_OF_GPUS = (1, 1, 1, 2, 2, 4, 8, 8, 16, 64)
SEQUENCES = (1, 16, 100, 128, 512, 1000, 2048, 4096, 8192, 32_768)
BATCHES = (1, 1, 1, 2, 3, 4, 8, 64)
ALLOCATOR = (
    "expandable_segments:True",
    "max_split_size_mb:128",
    "garbage_collection_threshold:0.6",
    "roundup_power2_divisions:4",
    "max_non_split_rounding_mb:64",
    "expandable_segments:True,garbage_collection_threshold:0.8",
    "max_split_size_mb:64,roundup_power2_divisions:[256:1,512:2,>:4]",
)
# Values of keys whose type says nothing about which values are sensible.
MORE: Mapping[str, tuple[Any, ...]] = {
    "batch_size": BATCHES,
    "seq_len": SEQUENCES,
    "pytorch_alloc_conf": ALLOCATOR,
    "cublas_workspace_config": (":4096:2:16:8", ":16:8"),
    "target_modules": ("all-linear", ["q_proj", "v_proj"], ["o_proj"], ["c_attn"], r".*proj"),
    "dropout": (0.0, 0.1),
    "label_smoothing": (0.0, 0.1),
    "liger": (True, ["rms_norm"], ["rope", "swiglu"]),
    "recompute": ("op", "every_2nd_layer", "attention_kept", "full_offloaded", "core_attn"),
    "compile": (True, "layers", "max-autotune"),
    "reference_model": (True, "gpt2", "llama3.2-1b"),
    "pipeline_model_parallel_layout": ("Et|tL", "E|t|t|L", "Ett|ttL"),
    "speculative_model": ("llama3.2-1b", "gpt2", "qwen3-0.6b"),
    "engine_version": ("0.6.5", "0.8.5", "0.11.0", "0.5.3", "1.0.0", "3.0.0", "b6000", "9.0"),
    "engine_generation": ("v0", "v1", "pytorch", "tensorrt"),
    "virtual_pipeline_size": (2, 4),
    "sub_group_size": (1000, 10**6, 10**9),
}
OBJECTS: Mapping[str, type[Struct]] = {
    "lora": LoraConfig,
    "evaluation": EvaluationConfig,
    "generation": GenerationConfig,
}
TRAINED: Mapping[str, type[Struct]] = {
    "training": TrainingConfig,
    "parallelism": ParallelismConfig,
    "engine": EngineConfig,
}
AXES = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
UNCHECKED, TRIES = 0.1, 20  # share of draws that may be refused; draws until one is not
WEIGHTS = (8, 3, 5)  # how often a section of them is drawn
HERE = Path(__file__).parent


@cache
def configs() -> list[RunData]:
    """A small config.json of every family."""
    text = (HERE.parent / "models" / "families" / "cases.json").read_text(encoding="utf-8")
    return list(json.loads(text).values())


@cache
def presets(most: float = float("inf")) -> list[str]:
    """The names of presets with fewer parameters."""
    return [row["name"] for row in catalog.rows("index") if row["num_parameters"] < most]


def model(rng: Random) -> RunData:
    """A preset with few layers or whole, a config.json, or plain numbers."""
    kind = rng.choices(("cut", "small", "any", "config", "numbers"), (45, 12, 5, 18, 20))[0]
    if kind == "cut":
        return {"name": rng.choice(presets()), "num_layers": rng.choice(LAYERS)}
    if kind == "config":
        return {"config": rng.choice(configs())}
    if kind == "numbers":
        return plain_numbers(rng)
    return {"name": rng.choice(presets(SMALL if kind == "small" else float("inf")))}


def plain_numbers(rng: Random) -> RunData:
    """A model of plain numbers; its count of parameters may be off."""
    heads, head_dim = rng.choice((4, 8, 12, 16, 32)), rng.choice((32, 64, 80, 128))
    found: RunData = {
        "num_layers": rng.choice(LAYERS),
        "hidden_size": heads * head_dim,
        "num_attention_heads": heads,
        "vocab_size": rng.choice((512, 32_000, 50_257, 128_256)),
        "max_seq_len": rng.choice((512, 2048, 4096, 131_072)),
    }
    extra: dict[str, tuple[Any, ...]] = {
        "num_key_value_heads": (1, 2, heads),
        "intermediate_size": (heads * head_dim * 4, 11_008, 1000),
        "gated_mlp": (True, False),
        "normalization": ("rmsnorm", "layernorm"),
        "position_embedding": ("rope", "learned", "alibi", "none"),
        "bias": (True, False),
        "dropout": (0.0, 0.1),
        "tie_word_embeddings": (True, False),
        "num_parameters": ("7B", "350M", 10**8, "1.5e9"),
        "num_experts": (4, 8),
        "top_k": (1, 2),
        "expert_intermediate_size": (512, 2048),
        "shared_expert_intermediate_size": (0, 512),
        "largest_layer_params": (10**6, 10**8),
    }
    for key in rng.sample(sorted(extra), rng.randint(0, 5)):
        found[key] = rng.choice(extra[key])
    return found


def hardware(rng: Random, *, most_gpus: int = 64) -> RunData:
    """A card, or its memory alone, and how many."""
    kind = rng.random()
    found: RunData = {"gpu": rng.choice(catalog.names("gpus"))}
    if kind < 0.35:
        found = {"gpu": rng.choice(("h100", "h200", "a100", "4090", "t4", "b200", "3090"))}
    elif kind < 0.5:
        found = {"gpu_memory_gb": rng.choice((8, 16, 24, 40, 80, 141, 192.5))}
    elif kind < 0.55:
        found["available_memory_bytes"] = rng.choice((3, 11, 33)) * 2**30
    gpus = rng.choice([n for n in NUMBERS_OF_GPUS if n <= most_gpus])
    if gpus > 1 or rng.random() < 0.5:
        found["num_gpus"] = gpus
    if gpus == 16 and rng.random() < 0.3:
        found["num_nodes"] = 2
    if rng.random() < 0.06:
        found["interconnect"] = rng.choice(catalog.names("links"))
    return found


def drawn_value(rng: Random, section: str, kinds: type[Struct], key: str, name: str) -> Any:
    """A value of a key for an engine; an object has a few keys of its own."""
    if key in OBJECTS:
        inner = OBJECTS[key]
        words = rng.sample(inner.__struct_fields__, rng.randint(1, 3))
        return {one: drawn_value(rng, f"{section}.{key}", inner, one, name) for one in words}
    among = MORE.get(key) or values(section, kinds, key, name) or (True, 1, "none")
    return rng.choice(among)


def accepted(run: RunData) -> bool:
    """Whether a run has no problem that its sections show."""
    try:
        resolve(read(run).file)
    except InputError:
        return False
    except Exception:
        return True
    return True


def _start(rng: Random, start: Callable[[Random], RunData]) -> RunData:
    """A run to begin with, which is accepted nine times of ten."""
    run = start(rng)
    for _ in range(TRIES):
        if rng.random() < UNCHECKED or accepted(run):
            break
        run = start(rng)
    return run


def _with_option(rng: Random, run: RunData, section: str, key: str, value: Any) -> RunData:
    """The run with an option, left out again where it is refused, nine times of ten."""
    longer = {**run, section: {**run.get(section, {}), key: value}}
    return longer if rng.random() < UNCHECKED or accepted(longer) else run


def training(rng: Random) -> RunData:
    """A training run of an engine, with up to six options of any section."""
    name = rng.choice(engine_names())
    run = _start(rng, lambda draw: _bare_training(draw, name))
    for _ in range(rng.choice((0, 1, 2, 3, 4, 6, 9))):
        section = rng.choices(tuple(TRAINED), WEIGHTS)[0]
        kinds = TRAINED[section]
        known = engine(name).options if section == "engine" else kinds.__struct_fields__
        if keys := sorted({*known} - {"type", "seq_len", "dtype"}):
            key = rng.choice(keys)
            value = drawn_value(rng, section, kinds, key, name)
            run = _with_option(rng, run, section, key, value)
    return run


def _bare_training(rng: Random, name: str) -> RunData:
    run: RunData = {
        "model": model(rng),
        "training": {"seq_len": rng.choice(SEQUENCES), "batch_size": rng.choice(BATCHES)},
        "engine": {"type": name},
        "hardware": hardware(rng),
    }
    if "zero_stage" in engine(name).options:
        run["engine"]["zero_stage"] = rng.choice((0, 1, 2, 3))
    sizes = {
        f"{axis}_parallel_size": rng.choice((2, 2, 4))
        for letters, axis in AXES.items()
        if letters in engine(name).axes and rng.random() < 0.25
    }
    return {**run, "parallelism": sizes} if sizes else run


def serving(rng: Random) -> RunData:
    """A server with up to five of its options."""
    name = rng.choice(server_names())
    run = _start(rng, lambda draw: _bare_server(draw, name))
    for key in rng.sample(sorted(server(name).options), rng.choice((0, 1, 2, 3, 5))):
        value = drawn_value(rng, "inference", InferenceConfig, key, name)
        run = _with_option(rng, run, "inference", key, value)
    return run


def _bare_server(rng: Random, name: str) -> RunData:
    most = 1 if name == "transformers" else 8
    return {
        "model": model(rng),
        "inference": {"engine": name},
        "hardware": hardware(rng, most_gpus=most),
    }


def torchtitan(rng: Random) -> RunData:
    """torchtitan's job file as a program."""
    args = {
        "training.local_batch_size": rng.choice((1, 2, 8)),
        "training.seq_len": rng.choice((512, 2048, 8192)),
        "activation_checkpoint.mode": rng.choice(("none", "selective", "full")),
    }
    kept = rng.sample(sorted(args), rng.randint(1, 3))
    return _program(rng, "torchtitan", {key: args[key] for key in kept})


def megatron(rng: Random) -> RunData:
    """Megatron-LM's options as a program."""
    args: RunData = {
        "micro_batch_size": rng.choice((1, 2, 4)),
        "seq_length": rng.choice((512, 2048, 4096)),
        "tensor_model_parallel_size": rng.choice((1, 2)),
        "bf16": True,
    }
    if rng.random() < 0.4:
        args["use_distributed_optimizer"] = True
    return _program(rng, "megatron", args)


def _program(rng: Random, tool: str, args: RunData) -> RunData:
    name = rng.choice(presets(SMALL))
    return {"model": {"name": name}, "program": {"tool": tool, "args": args}}


KINDS: tuple[Callable[[Random], RunData], ...] = (*programs.KINDS, torchtitan, megatron)


def _bare_program(rng: Random) -> RunData:
    run = rng.choice(KINDS)(rng)
    run["hardware"] = hardware(rng, most_gpus=16)
    if rng.random() < 0.5:
        run["model"] = {"name": run["model"]["name"], "num_layers": rng.choice(LAYERS)}
    return run


def program(rng: Random) -> RunData:
    """A run in the words of transformers, TRL, Lightning, torchtitan or Megatron-LM."""
    run = _start(rng, _bare_program)
    if rng.random() < 0.1:
        run["program"]["args"][rng.choice(("foo", "max_steps", "learning_rate"))] = rng.choice(
            (1, "x", None, -1)
        )
    return run
