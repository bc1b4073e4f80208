"""The laws of memory over presets, engines, servers, sequences and cards."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator import catalog
from gpu_mem_calculator.estimates.calculator import Estimate, full_estimate
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from tests.corpus import sampled

from .bytes import estimate_laws, ledger_laws

PRESETS = list(catalog.names("index"))
CARDS = list(catalog.names("gpus"))
LINKED = [name for name in CARDS if "mig" not in name and not name.startswith("apple")]
SMALL = ("gpt2", "gpt2-medium", "llama3.2-1b", "qwen2.5-0.5b", "qwen3-0.6b", "tinyllama-1.1b")
NVME = {"zero_stage": 3, "offload_optimizer": "nvme", "stage3_param_persistence_threshold": 1}
ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"engine": {"type": "pytorch_ddp"}},
    "ddp, chunked": {"engine": {"type": "pytorch_ddp"}, "training": {"loss": "chunked"}},
    "lora": {"engine": {"type": "pytorch_ddp"}, "training": {"lora": {"r": 8}}},
    "fsdp": {"engine": {"type": "fsdp"}},
    "fsdp 1": {"engine": {"type": "fsdp", "fsdp_version": 1}},
    "zero 0": {"engine": {"type": "deepspeed", "zero_stage": 0}},
    "zero 2": {"engine": {"type": "deepspeed", "zero_stage": 2}},
    "zero 3": {"engine": {"type": "deepspeed", "zero_stage": 3}},
    "zero 3, chunked": {
        "engine": {"type": "deepspeed", **NVME, "sub_group_size": 1_000_000},
        "training": {"loss": "chunked", "precision": "fp32", "gradient_accumulation_steps": 3},
    },
    "recompute": {
        "engine": {"type": "deepspeed", "zero_stage": 3},
        "training": {"activation_checkpointing": "full", "loss": "chunked"},
    },
    "megatron": {"engine": {"type": "megatron_lm"}},
    "megatron-deepspeed": {"engine": {"type": "megatron_deepspeed", "zero_stage": 1}},
}
SERVERS = ("vllm", "sglang", "tensorrt_llm", "tgi", "llamacpp", "transformers")
SERVING: tuple[dict[str, Any], ...] = (
    {},
    {"max_seq_len": 4096},
    {"prompt_len": 1000, "new_tokens": 4000},
    {"new_tokens": 40_000},
    {"max_seq_len": 32_768, "batch_size": 16},
)
SETTINGS: tuple[str | None, ...] = (
    None,
    "expandable_segments:True",
    "garbage_collection_threshold:0.6",
    "max_split_size_mb:64",
    "roundup_power2_divisions:4",
)
OPTIMIZERS = ("adamw", "sgd", "adamw_8bit", "paged_adamw_8bit", "adafactor", "lion", "muon")
SEQUENCES = (1, 16, 255, 4096, 16_384, 131_072)


def trained(preset: str, engine: str) -> dict[str, Any]:
    """A run of a preset with an engine, on eight cards."""
    sections = ENGINES[engine]
    return {
        "model": {"name": preset},
        "training": {"batch_size": 1, "seq_len": 16, **sections.get("training", {})},
        "engine": sections["engine"],
        "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 8},
    }


@pytest.mark.parametrize(
    ("preset", "engine"), sampled([(p, e) for e in ENGINES for p in PRESETS], 16)
)
def test_ledgers_over_sequences(preset: str, engine: str) -> None:
    """A preset with an engine, at every sequence."""
    try:
        found = resolve(read(trained(preset, engine)).file)
    except InputError:
        return  # a model that the engine does not have
    for index, seq in enumerate(SEQUENCES):
        run = replace(found.run, batch=1 + 5 * (index % 2), seq=seq)
        assert list(ledger_laws(found.engine.ledger(run))) == [], seq


def served(preset: str, engine: str, draw: random.Random) -> dict[str, Any]:
    """A server of a preset on a card that is drawn."""
    inference = {"engine": engine, **draw.choice(SERVING)}
    if draw.random() < 0.3 and engine not in ("llamacpp", "transformers"):
        inference["gpu_memory_utilization"] = draw.choice((0.1, 0.5, 0.95))
    return {
        "model": {"name": preset},
        "inference": inference,
        "hardware": {"gpu": draw.choice(CARDS), "num_gpus": draw.choice((1, 1, 2, 8))},
    }


def estimated(data: dict[str, Any], *, replay: bool) -> Estimate | None:
    """An estimate; None where the run is refused."""
    try:
        return full_estimate(data, replay=replay)
    except InputError:
        return None


@pytest.mark.parametrize(
    ("preset", "engine"), sampled([(p, e) for e in SERVERS for p in PRESETS], 40)
)
def test_servers_on_cards(preset: str, engine: str) -> None:
    """A preset on each server, with a question and a card that are drawn."""
    draw = random.Random(f"{preset} {engine}")
    for _ in range(2):
        data = served(preset, engine, draw)
        found = estimated(data, replay=False)
        assert found is None or list(estimate_laws(found)) == [], data


def replayed(number: int) -> dict[str, Any]:
    """A run of a small preset that is drawn: engine, sequence, optimizer, allocator, card."""
    draw = random.Random(number)
    engine = draw.choice(list(ENGINES))
    data = trained(draw.choice(SMALL), engine)
    data["training"] |= {
        "seq_len": draw.choice((16, 255, 1024)),
        "batch_size": draw.choice((1, 2, 5)),
        "optimizer": draw.choice(OPTIMIZERS if engine in ("ddp", "lora") else ("adamw", "adam")),
        "gradient_accumulation_steps": draw.choice((1, 1, 3)),
        "pytorch_alloc_conf": draw.choice(SETTINGS),
    }
    data["hardware"] = {"gpu": draw.choice(LINKED), "num_gpus": draw.choice((1, 2, 8))}
    return data


@pytest.mark.parametrize("number", sampled(range(600), 16))
def test_replayed_runs_on_cards(number: int) -> None:
    """Small presets with the allocator's replay."""
    data = replayed(number)
    found = estimated(data, replay=True)
    assert found is None or list(estimate_laws(found)) == [], data


def test_most_of_the_questions_are_answered() -> None:
    """A law that never meets an answer proves nothing."""
    runs = [estimated(replayed(number), replay=False) for number in range(60)]
    assert sum(run is not None for run in runs) > 25
