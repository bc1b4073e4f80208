"""FSDP version 1: flat parameters, start-up, reductions, what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.ledger.ledger import Ledger
from gpu_mem_calculator.models.arch.blocks import Weight
from gpu_mem_calculator.pytorch.replay.stream import UNTIL_MARK
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines.fsdp.flat.layout import ALL_REDUCE, POST_BACKWARD, UNSHARD
from gpu_mem_calculator.training.engines.fsdp.flat.units import FlatOptions, FlatUnit, flat_unit
from gpu_mem_calculator.training.engines.fsdp.units import UnitBits, UnitParameter
from tests.conftest import small_run
from tests.corpus import sampled
from tests.training.engines.test_fsdp_stream import STEP, live_peak, written

MIXED = UnitBits(32, 16, 16)
LORA = {"r": 8, "target_modules": ["q_proj"]}


def unit(*sizes: int, ranks: int = 4, orig: bool = False, bits: UnitBits = MIXED) -> FlatUnit:
    """The unit of vectors of these sizes."""
    weights = [Weight(f"w{i}", (("n", size),)) for i, size in enumerate(sizes)]
    parameters = [UnitParameter(weight, bits, True) for weight in weights]
    return flat_unit(parameters, bits, FlatOptions(ranks, orig, False))


@pytest.mark.parametrize(
    ("sizes", "orig", "shard", "states"),
    [
        ((10, 10), False, 5, (5,)),
        ((10, 11), False, 6, (6,)),  # 21 elements in four equal parts
        ((10, 10), True, 7, (7, 0)),  # the second begins at 16: 26 elements
        ((4, 40), True, 12, (4, 4)),  # the second begins at 8: its first 4 are rank 0's
    ],
)
def test_a_flat_parameter_is_padded(
    sizes: tuple[int, ...], orig: bool, shard: int, states: tuple[int, ...]
) -> None:
    """To equal parts; with original parameters each begins at 16 bytes of the compute dtype."""
    found = unit(*sizes, orig=orig)
    assert (found.shard, found.states) == (4 * shard, states)
    assert found.gathered == 2 * 4 * shard


def test_only_a_flat_parameter_without_padding_is_padded_for_its_reduction() -> None:
    """Original parameters have the padding in the flat one."""
    assert unit(10, 11).padded_grad == 2 * 24
    assert unit(10, 10).padded_grad == 0
    assert unit(10, 11, orig=True).padded_grad == 0


def test_one_rank_has_a_copy_instead_of_a_gathered_parameter() -> None:
    """In mixed precision only: NO_SHARD computes with the flat parameter itself."""
    alone = unit(10, 10, ranks=1)
    assert (alone.gathered, alone.cast, alone.alone) == (0, 0, 2 * 20)
    assert unit(10, 10, ranks=1, bits=UnitBits(32, 32, 32)).alone == 0


def ledger(gpus: int = 8, training: dict[str, Any] | None = None, **engine: Any) -> Ledger:
    """The ledger of a small run."""
    options = {"type": "fsdp", "fsdp_version": 1, **engine}
    given = {"precision": "bf16_mixed", **(training or {})}
    found = resolve(read(small_run("fsdp", gpus, training=given, engine=options)).file)
    return found.engine.ledger(found.run)


def test_a_model_made_on_the_gpu_is_there_as_a_whole() -> None:
    """Start-up from the CPU has one unit at a time, twice."""
    whole, moved = (
        int(ledger(init_device=where).peak(phases=("startup",))) for where in ("cuda", "cpu")
    )
    assert whole > 1.5 * moved
    assert int(ledger(init_device="meta").peak(phases=("startup",))) == moved


@pytest.mark.parametrize("version", [1, 2])
def test_no_two_instants_have_one_title(version: int) -> None:
    """Answers name instants by their titles."""
    found = ledger(training={"gradient_accumulation_steps": 2}, fsdp_version=version)
    titles = [one.title for one in found.instants if one.present]
    assert sorted(titles) == sorted(set(titles))


def test_frozen_weights_beside_adapters_take_gradients() -> None:
    """They are views of a flat parameter that takes one, so adapters save optimizer states only."""
    lora, full = (
        ledger(training=training, use_orig_params=True) for training in ({"lora": LORA}, {})
    )

    def layers(found: Ledger) -> int:
        name = "dense layers: flat gradient"
        return sum(int(entry.bytes) for entry in found.entries if entry.name == name)

    assert layers(lora) > layers(full) > 0
    assert not [
        e for e in lora.entries if e.name == "embedding and head: flat gradient" and e.bytes
    ]


@pytest.mark.parametrize(
    ("strategy", "least"), [("full_shard", 0), ("shard_grad_op", 1), ("no_shard", 2)]
)
def test_less_sharding_takes_more(strategy: str, least: int) -> None:
    """Each strategy more than the one before."""
    order = ["full_shard", "shard_grad_op", "no_shard"]
    peaks = [int(ledger(sharding_strategy=one).peak()) for one in order]
    assert sorted(peaks) == peaks
    assert order.index(strategy) == least


@pytest.mark.parametrize(
    ("strategy", "precision", "stream"),
    [
        ("full_shard", "fp32", POST_BACKWARD),
        ("full_shard", "bf16_mixed", POST_BACKWARD),
        ("hybrid_shard", "fp32", POST_BACKWARD),
        ("hybrid_shard", "bf16_mixed", ALL_REDUCE),
        ("no_shard", "fp32", UNSHARD),
    ],
)
def test_a_reduced_gradient_is_of_the_stream_that_casts_it(
    strategy: str, precision: str, stream: int
) -> None:
    """Or, where nothing is cast, of the one that reduces it; alone it is the flat gradient."""
    hybrid = {"hybrid_shard_size": 4} if strategy == "hybrid_shard" else {}
    found = ledger(training={"precision": precision}, sharding_strategy=strategy, **hybrid)
    names = [entry for entry in found.entries if entry.name.endswith("sharded gradients")]
    assert {entry.cuda_stream for entry in names} == {stream}


def test_the_host_is_two_gathers_ahead() -> None:
    """A gathered parameter that forward freed is kept until the gather after the next; without the
    limit until the phase ends.
    """
    found = resolve(read(small_run("fsdp", 8, engine={"type": "fsdp", "fsdp_version": 1})).file)
    stream = written(found)
    assert {end == UNTIL_MARK for _, _, end in stream.uses} == {True, False}
    options = {**found.run.options, "limit_all_gathers": False}
    free = written(replace(found, run=replace(found.run, options=options)))
    assert {end for _, _, end in free.uses} == {UNTIL_MARK}


@pytest.mark.parametrize(
    ("gpus", "training", "engine", "words"),
    [
        (8, {}, {"keep_low_precision_grads": True}, "torch's optimizers"),
        (8, {}, {"reshard_root_after_forward": True}, "keeps the root"),
        (8, {}, {"sharding_strategy": "hybrid_shard", "hybrid_shard_size": 1}, "no_shard"),
        (1, {}, {"cpu_offload": True}, "over one rank"),
        (8, {"lora": LORA}, {}, "use_orig_params to true"),
        (8, {"lora": {**LORA, "dora": True}}, {"use_orig_params": True}, "dora"),
        (
            8,
            {"lora": LORA, "precision": "bf16_pure"},
            {"use_orig_params": True},
            "lora.adapter_dtype",
        ),
        (8, {}, {"fsdp_version": 2, "use_orig_params": True}, "fsdp_version to 1"),
        (
            8,
            {},
            {"fsdp_version": 2, "init_device": "cuda", "cpu_offload": True},
            "leave it out, which is 'meta'",
        ),
    ],
)
def test_what_it_refuses(
    gpus: int, training: dict[str, Any], engine: dict[str, Any], words: str
) -> None:
    """Each problem is one sentence that names the value and a way out."""
    with pytest.raises(InputError, match=words) as problem:
        ledger(gpus, training, **engine)
    assert len(problem.value.problems) == 1


@pytest.mark.parametrize(
    "changes",
    sampled(
        {
            "flat": {},
            "original": {"engine": {"use_orig_params": True, "backward_prefetch": "none"}},
            "lora": {
                "engine": {"use_orig_params": True, "init_device": "cuda"},
                "training": {"lora": LORA},
            },
        },
        keep=1,
    ),
)
def test_an_estimate_is_what_a_trace_finds(changes: dict[str, Any]) -> None:
    """The same allocations by torch's own FullyShardedDataParallel on fake tensors."""
    pytest.importorskip("torch")
    pytest.importorskip("peft")
    from gpu_mem_calculator.lab.trace.run import trace

    config = {
        "model_type": "llama",
        "hidden_size": 512,
        "intermediate_size": 1024,
        "vocab_size": 2048,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "tie_word_embeddings": False,
    }
    run = {
        "model": {"config": config},
        "training": {
            "batch_size": 1,
            "seq_len": 32,
            "precision": "bf16_mixed",
            **changes.get("training", {}),
        },
        "engine": {"type": "fsdp", "fsdp_version": 1, **changes.get("engine", {})},
        "hardware": {"gpu": "h200", "num_gpus": 4},
    }
    resolved = resolve(read(run).file)
    computed = resolved.engine.ledger(resolved.run)
    found = trace(run, steps=2).stream
    assert live_peak(found) == pytest.approx(int(computed.peak(phases=STEP)), rel=2e-4)
    start = live_peak(replace(found, events=found.events[: found.marks[0][0]], marks=[(0, "")]))
    assert start == pytest.approx(int(computed.peak(phases=("startup",))), rel=2e-4)


def test_version_2_starts_from_shards_unless_told() -> None:
    """A model on the CPU is moved unit by unit, one on the GPU is there as a whole."""
    peaks = [
        int(ledger(fsdp_version=2, **start).peak(phases=("startup",)))
        for start in ({}, {"init_device": "cpu"}, {"init_device": "cuda"})
    ]
    assert peaks[0] < peaks[1] < peaks[2]
    assert int(ledger(fsdp_version=2, init_device="meta").peak(phases=("startup",))) == peaks[0]
