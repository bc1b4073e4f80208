"""What is true of every step, whatever the model, the engine, the sequence, the card and the link.

No part is negative or longer than the whole, parts add up, and a step does not get shorter with a
longer sequence, a slower link, or a card that is slower in every figure.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator import catalog
from gpu_mem_calculator.estimates.machine import machine_of
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.timing.curves.machine import Machine
from gpu_mem_calculator.timing.training.clock import sustained_share
from gpu_mem_calculator.timing.training.step import step_seconds
from gpu_mem_calculator.timing.training.step_seconds import PARTS, StepSeconds
from gpu_mem_calculator.tools.read import read
from tests.corpus import sampled

LESS = 1 - 1e-9  # rounding
OTHER_CURVES = 0.9  # of cards whose kernels were measured by themselves
SEQUENCES = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384, 32768, 65536, 131072)
CARDS = (
    *("h100-80gb-sxm", "a100-80gb-sxm", "h200-141gb-sxm", "b200-180gb-sxm", "gb200-186gb"),
    *("rtx-4090", "rtx-3090", "t4", "v100-32gb-sxm", "l4", "mi300x"),
)
FOUR = {"gradient_accumulation_steps": 4}
SET_UPS: dict[str, dict[str, dict[str, Any]]] = {
    "ddp": {"engine": {"type": "pytorch_ddp"}},
    "recompute": {
        "engine": {"type": "pytorch_ddp"},
        "training": {"activation_checkpointing": "full"},
    },
    "eager": {"engine": {"type": "pytorch_ddp"}, "training": {"attention": "eager"}},
    "qlora": {
        "engine": {"type": "pytorch_ddp"},
        "training": {"lora": {"r": 16}, "quantization": "nf4"},
    },
    "fsdp": {"engine": {"type": "fsdp"}},
    "hybrid": {"engine": {"type": "fsdp", "sharding_strategy": "hybrid_shard"}},
    "zero-0": {"engine": {"type": "deepspeed", "zero_stage": 0}},
    "zero-2": {"engine": {"type": "deepspeed", "zero_stage": 2, "offload_optimizer": "cpu"}},
    "zero-3": {"engine": {"type": "deepspeed", "zero_stage": 3}},
    "megatron": {
        "engine": {
            "type": "megatron_lm",
            "overlap_grad_reduce": True,
            "overlap_param_gather": True,
            "distributed_optimizer": True,
        }
    },
    "tensor": {
        "engine": {"type": "megatron_lm"},
        "parallelism": {"tensor_parallel_size": 2, "sequence_parallel": True},
    },
    "context": {"engine": {"type": "megatron_lm"}, "parallelism": {"context_parallel_size": 16}},
    "pipeline": {
        "engine": {"type": "megatron_lm"},
        "parallelism": {"pipeline_parallel_size": 2, "tensor_parallel_size": 4},
        "training": FOUR,
    },
    "experts": {"engine": {"type": "megatron_lm"}, "parallelism": {"expert_parallel_size": 8}},
    "megatron-deepspeed": {
        "engine": {"type": "megatron_deepspeed", "zero_stage": 1},
        "parallelism": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
        "training": FOUR,
    },
}


def resolved(model: str, set_up: str, gpu: str, gpus: int = 16, **hardware: Any) -> ResolvedRun:
    """One set-up of a model; InputError where its engine refuses it."""
    sections = SET_UPS[set_up]
    training = {"seq_len": 256, "batch_size": 1, **sections.get("training", {})}
    file = {**sections, "model": {"name": model}, "training": training}
    return resolve(read({**file, "hardware": {"gpu": gpu, "num_gpus": gpus, **hardware}}).file)


def timed(run: ResolvedRun, machine: Machine | None = None, seq: int = 4096) -> StepSeconds:
    """The seconds of a step with sequences of `seq` tokens."""
    return step_seconds(
        replace(run.run, seq=seq), run.engine.name, machine or machine_of(run.hardware)
    )


def check_parts(seconds: StepSeconds, where: object) -> None:
    """No part is negative or longer than the whole, and parts add up."""
    parts = [float(getattr(seconds, part)) for part in PARTS]
    assert min(parts) >= 0, where
    assert max(parts) <= seconds.estimate, where
    assert sum(parts) == pytest.approx(seconds.estimate), where
    assert 0 < seconds.low <= seconds.estimate <= seconds.high, where


PRESETS = [row["name"] for row in catalog.rows("index")]


def test_the_cards_are_known() -> None:
    """And so is a set-up of each kind."""
    for gpu in CARDS:
        assert resolved("llama3.1-8b", "ddp", gpu)
    for set_up in SET_UPS:
        assert resolved("mixtral-8x7b" if set_up == "experts" else "llama3.1-8b", set_up, CARDS[0])


@pytest.mark.parametrize("model", sampled(PRESETS, 3))
def test_steps_of_every_preset(model: str) -> None:
    """Over engines and sequences, each model on some of the cards."""
    for number, set_up in enumerate(SET_UPS):
        gpu = CARDS[(PRESETS.index(model) + number) % len(CARDS)]
        try:
            run = resolved(model, set_up, gpu)
        except InputError:
            continue
        last = 0.0
        for seq in SEQUENCES:
            seconds = timed(run, seq=seq)
            where = (set_up, gpu, seq)
            check_parts(seconds, where)
            assert seconds.estimate >= last * LESS, where
            last = float(seconds.estimate)


MODELS = ("llama3.1-8b", "llama3.2-1b", "gemma3-4b", "gpt-oss-20b", "mixtral-8x7b", "deepseek-v3")


@pytest.mark.parametrize("set_up", sampled(list(SET_UPS), 3))
def test_no_step_is_faster_over_a_slower_link(set_up: str) -> None:
    """Two nodes; of two networks one has less of the rate, the longer hop and fewer ports."""
    rows = [row for row in catalog.rows("links") if row["scope"] == "node"]
    for model in MODELS:
        try:
            run = resolved(model, set_up, "h100-80gb-sxm")
        except InputError:
            continue
        times = {}
        for row in rows:
            for nics in (8, 1):
                used = replace(run.hardware, interconnect=row["name"], nics_per_node=nics)
                key = row["bandwidth_gb_per_s"], -row["latency_us"], nics
                times[key] = timed(run, machine_of(used)).estimate
        for (fast, a), (slow, b) in permutations(times.items(), 2):
            if all(x >= y for x, y in zip(fast, slow, strict=True)):
                assert b >= a * LESS, (model, fast, slow)


def figures(machine: Machine) -> tuple[Any, ...]:
    """What a data sheet says of a card, and its generation, which decides its kernels: the newest
    are assumed for cards of other vendors.
    """
    capability = tuple(map(int, (machine.capability or "99.0").split(".")))
    return (
        *(machine.peak[dtype] for dtype in ("bf16", "fp16", "fp32")),
        machine.memory_bytes_per_second,
        machine.within.bytes_per_second,
        machine.multiprocessors,
        capability,
    )


def same_curves(fast: Machine, slow: Machine) -> bool:
    """Whether two cards differ by their figures alone."""
    return fast.sources == slow.sources and sustained_share(fast) >= sustained_share(slow)


@pytest.mark.parametrize(
    ("model", "set_up", "gpus"),
    sampled(
        [
            ("llama3.2-1b", "ddp", 1),
            ("llama3.1-8b", "fsdp", 8),
            ("llama3.1-8b", "tensor", 8),
            ("mixtral-8x7b", "experts", 8),
            ("gemma3-4b", "ddp", 1),
            ("llama3.1-8b", "zero-3", 8),
        ],
        2,
    ),
)
def test_no_card_is_faster_that_is_slower_in_every_figure(
    model: str, set_up: str, gpus: int
) -> None:
    """Exactly where both follow the same curves; measured curves of two cards differ more."""
    found: dict[str, tuple[Machine, float]] = {}
    for row in catalog.rows("gpus"):
        try:
            run = resolved(model, set_up, row["name"], gpus)
            machine = machine_of(run.hardware, "infiniband-ndr")
        except InputError:
            continue
        found[row["name"]] = machine, float(timed(run, machine).estimate)
    assert len(found) > 100
    for (name, (fast, a)), (other, (slow, b)) in permutations(found.items(), 2):
        if all(x >= y for x, y in zip(figures(fast), figures(slow), strict=True)):
            assert b >= a * (LESS if same_curves(fast, slow) else OTHER_CURVES), (name, other)


def test_two_nodes_on_one_slow_port_each_are_slow() -> None:
    """Llama-3.1-8B on 16 A100: 32 GB of gradients and gathers over 1.25 GB/s."""
    training = {"gradient_accumulation_steps": 8, "seq_len": 4096, "batch_size": 1}
    hardware = {"gpu": "a100-80gb-sxm", "num_gpus": 16, "interconnect": "ethernet-10g"}
    seconds = []
    for strategy in ("hybrid_shard", "full_shard"):
        engine = {"type": "fsdp", "sharding_strategy": strategy}
        file = {"model": {"name": "llama3.1-8b"}, "training": training, "engine": engine}
        run = resolve(read({**file, "hardware": hardware}).file)
        seconds.append(timed(run).exposed_communication)
        wide = replace(run.hardware, nics_per_node=8)
        assert timed(run, machine_of(wide)).estimate < seconds[-1] / 4
    assert seconds[0] > 26
    assert seconds[1] > 48
