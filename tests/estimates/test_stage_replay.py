"""The estimate's own stream through torch's allocator."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpu_mem_calculator.estimates.calculator import estimate, full_estimate
from gpu_mem_calculator.estimates.longest_sequence import longest_sequence
from gpu_mem_calculator.estimates.stage_ledgers import step_phases
from gpu_mem_calculator.estimates.stage_replay import (
    replay_stage,
    taken_under,
    too_large,
    with_block_rounding,
)
from gpu_mem_calculator.ledger.units import GIB, MIB
from gpu_mem_calculator.pytorch.replay.settings import AllocatorSettings
from gpu_mem_calculator.runfile.read import with_settings
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from tests.conftest import SMALL_LLAMA, small_run
from tests.corpus import sampled
from tests.properties.test_engines import RUNS

ROUNDED, SPLIT = "roundup_power2_divisions:2", "max_split_size_mb:40"


def wide(settings: str | None = None) -> dict[str, Any]:
    """A run with blocks that are larger than the largest that may be split."""
    training: dict[str, Any] = {"batch_size": 4}
    if settings is not None:
        training["pytorch_alloc_conf"] = settings
    return small_run(
        gpus=1, model={"config": {**SMALL_LLAMA, "vocab_size": 20000}}, training=training
    )


def test_the_allocators_settings_are_replayed() -> None:
    """Rounding sizes up takes more memory; large blocks that are not split are reused sooner."""
    plain, rounded, split = (
        full_estimate(wide(settings)).replayed for settings in (None, ROUNDED, SPLIT)
    )
    assert plain is not None
    assert rounded is not None
    assert split is not None
    assert rounded.reserved_bytes > plain.reserved_bytes > split.reserved_bytes
    assert rounded.needs_bytes > plain.needs_bytes > split.needs_bytes
    assert rounded.allocated_bytes > plain.allocated_bytes


@pytest.mark.parametrize(
    ("training", "same"),
    [
        ({"optimizer_implementation": "fused"}, True),  # DeepSpeed's own
        ({"optimizer_implementation": "foreach"}, False),
        ({"seq_len": 64}, False),
        ({"pytorch_alloc_conf": SPLIT}, False),
    ],
)
def test_the_same_run_is_replayed_once(training: dict[str, Any], same: bool) -> None:
    """Also where it is written otherwise; a run that differs in one choice has its own replay."""
    zero = partial(small_run, "deepspeed", engine={"zero_stage": 2})
    made = [full_estimate(zero(training=one)) for one in ({}, training)]
    assert (made[0].replayed is made[1].replayed) == same


@pytest.mark.parametrize("settings", sampled([SPLIT, ROUNDED, None], keep=1))
def test_the_settings_do_what_a_trace_says(settings: str | None) -> None:
    """Reserved and needed memory are within a small segment, 2 MiB, of the real model's code."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from gpu_mem_calculator.lab.trace.run import trace

    found, traced = estimate(wide(settings)), trace(wide(settings), steps=2)
    assert abs((found.reserved_bytes or 0) - traced.reserved_bytes) <= 2 * MIB
    assert abs((found.needs_bytes or 0) - traced.needs_bytes) <= 2 * MIB
    assert found.allocated_bytes == pytest.approx(traced.allocated_bytes, rel=0.001)


def test_settings_that_torch_does_not_have_are_refused() -> None:
    """With the nearest that it has."""
    with pytest.raises(InputError, match=r"pytorch_alloc_conf: .*did you mean 'max_split_size_mb'"):
        estimate(wide("max_split_size:40"))


@pytest.mark.parametrize("engine", ["pytorch_ddp", "fsdp", "deepspeed", "megatron_lm"])
def test_a_run_survives_in_what_it_needs_and_in_no_less(engine: str) -> None:
    """To one MiB."""
    made = full_estimate(small_run(engine))
    needs = made.result.needs_bytes
    assert needs is not None
    assert taken_under(made.resolved, 0, needs) == needs
    assert taken_under(made.resolved, 0, needs - MIB) > needs - MIB


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_phases_are_those_of_three_steps(micro_batches: int) -> None:
    """Start-up, then forward and backward of each micro-batch and the optimizer, three times."""
    run = small_run(training={"gradient_accumulation_steps": micro_batches})
    found = full_estimate(run).replayed
    assert found is not None
    assert len(found.phases) == 1 + 3 * (2 * micro_batches + 1)
    steps = [p.peak_bytes for name, p in found.phases.items() if name != "startup"]
    assert max(steps) == found.allocated_bytes
    assert found.phases["startup"].peak_bytes == found.startup_bytes


def test_many_micro_batches_are_replayed_as_four() -> None:
    """Those after the fourth find the blocks of those before: the numbers are the same."""
    four, many = (estimate(small_run(training={"gradient_accumulation_steps": n})) for n in (4, 64))
    assert (four.needs_bytes, four.reserved_bytes) == (many.needs_bytes, many.reserved_bytes)
    replay = full_estimate(small_run(training={"gradient_accumulation_steps": 64})).replayed
    assert replay is not None
    assert len(replay.phases) == 1 + 3 * (2 * 4 + 1)


@pytest.mark.parametrize("batch", [10**3, 10**6])
def test_large_runs_are_replayed_and_absurd_ones_are_not(batch: int) -> None:
    """Terabytes are replayed like any run; what no one has is answered by the ledger alone."""
    run = {"model": {"name": "llama3.1-405b"}, "training": {"batch_size": batch, "seq_len": 128}}
    made = full_estimate(run)
    assert made.result.allocated_bytes > 2**43
    assert (made.replayed is None) == (batch == 10**6)
    if made.replayed is not None:
        blocks = made.ledger.entries[-1]
        assert 0 <= int(blocks.bytes) < made.result.allocated_bytes // 100


CONFS = ("backend:native", "expandable_segments:True", ROUNDED, SPLIT)
SHAPES = st.tuples(
    st.sampled_from(sorted(RUNS)),
    st.integers(1, 5),
    st.integers(1, 700),
    st.integers(1, 6),
    st.sampled_from(CONFS),
)


@example(("fsdp-hybrid", 4, 3, 2, "expandable_segments:True"))  # outputs wait for replicas
@given(SHAPES)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_blocks_are_larger_than_tensors_by_rounding_alone(shape: tuple[Any, ...]) -> None:
    """Ledger and stream agree, so what is left between them is the allocator's rounding."""
    name, batch, seq, micro, conf = shape
    run = RUNS[name]
    training = {
        **run["training"],
        "batch_size": batch,
        "seq_len": seq,
        "gradient_accumulation_steps": micro,
        "pytorch_alloc_conf": conf,
    }
    made = full_estimate({**run, "training": training})
    (blocks,) = (e for e in made.ledger.entries if e.name == "blocks larger than their tensors")
    assert made.replayed is not None
    assert 0 <= blocks.bytes <= made.replayed.slack_bytes


@given(st.sampled_from(sorted(RUNS)), st.integers(1, 4), st.integers(1, 400), st.integers(1, 3))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_run_needs_at_least_what_its_ledger_has_at_the_peak(
    name: str, batch: int, seq: int, micro: int
) -> None:
    """What does not fit by the ledger does not fit by the replay, so it need not be replayed."""
    training = {"batch_size": batch, "seq_len": seq, "gradient_accumulation_steps": micro}
    run = {**RUNS[name], "training": {**RUNS[name]["training"], **training}}
    by_ledger = full_estimate(run, replay=False).result.allocated_bytes
    needs = full_estimate(run).result.needs_bytes
    assert needs is not None
    assert needs >= by_ledger


@pytest.mark.parametrize("wrong", [-(2**26), 2**40])
def test_a_ledger_that_its_stream_does_not_follow_is_an_error(wrong: int) -> None:
    """A difference that is negative or larger than rounding is refused."""
    resolved = resolve(read(small_run()).file)
    ledger = resolved.engine.ledger(resolved.run)
    found = replay_stage(resolved, 0, ledger)
    assert found is not None
    far = msgspec.structs.replace(found, allocated_bytes=found.allocated_bytes + wrong)
    with pytest.raises(AssertionError, match="blocks have"):
        with_block_rounding(ledger, far)


def test_the_first_forward_has_no_workspace_of_backward() -> None:
    """The first step of ZeRO-3 gathers more than later ones; its forward may be the peak."""
    run = {
        "model": {"config": {"model_type": "minimax_m2", "num_hidden_layers": 1}},
        "training": {"batch_size": 1, "seq_len": 100, "lora": {"r": 8}},
        "engine": {"type": "deepspeed", "zero_stage": 3},
        "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 2},
    }
    made = full_estimate(run)
    assert made.replayed is not None
    (entry,) = (e for e in made.ledger.entries if e.name == "cuBLAS workspace of backward")
    assert [entry.at(name) for name in ("first.forward", "forward")] == [0, 32 * 2**20]


@pytest.mark.parametrize(
    ("conf", "most"), [("", 64 * 1024 * GIB), ("expandable_segments:True", 1024 * GIB)]
)
def test_runs_up_to_the_bound_are_replayed(conf: str, most: int) -> None:
    """64 TiB is the most; with segments that expand, the addresses of one."""
    allocator = AllocatorSettings.parse(conf) if conf else AllocatorSettings()
    ledgers: Any = [SimpleNamespace(peak=lambda peak=peak: peak) for peak in (most, most + 1)]
    assert [too_large(one, allocator) for one in ledgers] == [False, True]


def test_a_tensor_beyond_a_segments_addresses_is_not_replayed() -> None:
    """Also where a card were as large as it."""
    training = {"seq_len": 10**9, "batch_size": 2, "pytorch_alloc_conf": "expandable_segments:True"}
    run = small_run(training=training, hardware={"gpu_memory_bytes": 10**15})
    made = full_estimate(run)
    assert made.replayed is None
    longest = longest_sequence(full_estimate(with_settings(run, ["training.seq_len=512"])))
    assert longest is not None
    assert longest < 10**9


SETTINGS = ["expandable_segments:True", "garbage_collection_threshold:0.6"]


@pytest.mark.parametrize("conf", SETTINGS)
@pytest.mark.parametrize("case", ["megatron", "pytorch_ddp"])
def test_a_run_needs_at_most_what_it_reserves(case: str, conf: str) -> None:
    """Whatever the settings: with that much torch never has to release memory."""
    training: dict[str, Any] = {"batch_size": 4, "seq_len": 16}
    model: dict[str, Any] = {"name": "gpt2-large", "num_layers": 1}
    if case == "pytorch_ddp":
        training = {"batch_size": 5, "seq_len": 255, "precision": "fp16_mixed"}
        training |= {"optimizer": "muon", "attention": "eager"}
        model = {"name": "gpt2-medium", "num_layers": 4}
    data = {
        "model": model,
        "training": {**training, "pytorch_alloc_conf": conf},
        "engine": {"type": case},
        "hardware": {"gpu": "rtx-5060-ti-8gb", "num_gpus": 4},
    }
    result = estimate(data)
    assert result.allocated_bytes <= result.needs_bytes <= result.reserved_bytes
    assert result.margin_bytes >= 0


def test_needs_are_at_least_what_is_allocated() -> None:
    """Also where blocks are not split, and so are larger with room than on the least card."""
    run = {
        "model": {"name": "codellama-34b", "num_layers": 1},
        "training": {"seq_len": 1, "pytorch_alloc_conf": "max_split_size_mb:64"},
        "engine": {"type": "fsdp", "fsdp_version": 2, "forward_prefetch": False},
        "hardware": {"gpu": "h100", "num_gpus": 8},
    }
    result = full_estimate(run).result
    assert result.needs_bytes is not None
    assert result.reserved_bytes is not None
    assert result.allocated_bytes <= result.needs_bytes <= result.reserved_bytes


def test_a_ledger_that_is_a_bound_is_kept() -> None:
    """One layer whose peak is before its first product; 4-bit projections that are recomputed."""
    hardware = {"gpu": "h100"}
    served = {"model": {"name": "bloom-560m", "num_layers": 1}, "hardware": hardware}
    packed = {
        **{"model": {"name": "mistral-7b", "num_layers": 1}, "hardware": hardware},
        "training": {
            **{"seq_len": 544, "precision": "fp16_mixed", "autocast": True},
            **{"activation_checkpointing": "full", "lora": {"r": 8, "adapter_dtype": "bf16"}},
            **{"quantization": "nf4", "nf4_compute_dtype": "bf16", "from_pretrained": True},
            "upcast_unquantized": False,
        },
    }
    section = {"engine": "transformers", "do_sample": False, "dtype": "fp16"}
    for run in ({**served, "inference": section}, packed):
        by_ledger = full_estimate(run, replay=False).result.allocated_bytes
        result = full_estimate(run).result
        assert result.allocated_bytes >= by_ledger
        assert sum(msgspec.to_builtins(result.breakdown).values()) == pytest.approx(
            result.total_memory_per_gpu_gb
        )


def test_doras_magnitudes_on_every_rank_of_a_deep_model_have_the_ledgers_peak() -> None:
    """The ledger has 3 MiB more than the stream; the larger figure is the answer."""
    lora = {"r": 16, "target_modules": ["down_proj"], "dora": True, "adapter_dtype": "fp32"}
    training = {"batch_size": 1, "seq_len": 512, "activation_checkpointing": "full", "lora": lora}
    engine = {"type": "deepspeed", "zero_stage": 3, "stage3_param_persistence_threshold": 81920}
    run = {**small_run(training=training, engine=engine), "model": {"name": "llama3.3-70b"}}
    found = full_estimate(read(run).file)
    assert found.result.allocated_bytes == int(found.ledger.peak(phases=step_phases(found.ledger)))
