"""Saving, resuming and merging: what each engine gathers, stages, copies and loads."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator import estimate
from gpu_mem_calculator.advice.training.remedies import remedies
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.fit_verdict import FITS, SHORT
from gpu_mem_calculator.estimates.node import STEADY, PhaseMemory
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.run.phases import (
    EVALUATION,
    MERGING,
    MERGING_ON_HOST,
    RESUMING,
    SAVING,
    SAVING_OPTIMIZER,
    STARTUP,
)
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.training.engines import engines

PARAMETERS = 1_235_814_400  # llama3.2-1b, whose head is its embedding
RANKS = 8
FSDP, FSDP1 = {"type": "fsdp"}, {"type": "fsdp", "fsdp_version": 1}
MEGATRON = {"type": "megatron_lm"}
ZERO3 = {"type": "deepspeed", "zero_stage": 3}


def phases(engine: dict[str, Any], gpus: int = RANKS, **training: Any) -> dict[str, PhaseMemory]:
    """The phases of a life, by name."""
    found = estimate(
        {
            "model": {"name": "llama3.2-1b"},
            "training": {"seq_len": 512, **training},
            "engine": engine,
            "hardware": {"gpu": "h200", "num_gpus": gpus},
        }
    )
    return {one.name: one for one in found.phases}


def beside_steps(found: dict[str, PhaseMemory], name: str) -> int:
    """Bytes of a node that a phase takes beside those of steps."""
    return found[name].host_bytes - found[STEADY].host_bytes


@pytest.mark.parametrize(
    ("saving", "model", "states"),
    [
        ("sharded_on_host", 4 * PARAMETERS, 8 * PARAMETERS),
        ("full_state_dict", 4 * PARAMETERS, 8 * PARAMETERS),
        ("async", 12 * PARAMETERS, None),
    ],
)
def test_what_fsdp_saves_is_on_the_host(saving: str, model: int, states: int | None) -> None:
    """Shards of all ranks or the whole on the first; an asynchronous save stages both together."""
    found = phases(FSDP, saving=saving)
    twice = 4 * 128256 * 2048 if saving == "full_state_dict" else 0  # the tied table
    assert beside_steps(found, SAVING) == pytest.approx(model + twice, rel=1e-3)
    if states is None:
        assert SAVING_OPTIMIZER not in found
    else:
        assert beside_steps(found, SAVING_OPTIMIZER) == pytest.approx(states, rel=1e-3)


def test_shards_are_written_one_after_the_other() -> None:
    """By default the largest shard and the one before it are on each rank's host."""
    found, shard = phases(FSDP), 4 * 128256 * 2048 // RANKS
    assert beside_steps(found, SAVING) == RANKS * (2 * shard + 10**7)
    assert found[SAVING].gpu_bytes < found[STEADY].gpu_bytes


def test_version_1_gathers_a_unit_before_it_shards_it() -> None:
    """The root, here, is the largest."""
    sharded = {version: phases({**FSDP, "fsdp_version": version}) for version in (1, 2)}
    more = sharded[1][SAVING].gpu_bytes - sharded[2][SAVING].gpu_bytes
    assert more == pytest.approx(4 * 128256 * 2048, rel=0.01)


@pytest.mark.parametrize("engine", [FSDP, FSDP1])
def test_a_whole_state_dict_on_each_gpu_decides(engine: dict[str, Any]) -> None:
    """Without offload_to_cpu the model is on the GPU beside its shards, and the states after it."""
    run = {
        "model": {"name": "llama3.1-8b"},
        "training": {"seq_len": 512, "saving": "full_state_dict_on_gpus"},
        "engine": engine,
        "hardware": {"gpu": "a100-40gb", "num_gpus": 8},
    }
    found = estimate(run)
    assert found.verdict == SHORT
    gpu = {one.name: one.gpu_bytes for one in found.phases}
    assert min(gpu[SAVING], gpu[SAVING_OPTIMIZER]) > 8 * found.num_parameters
    assert found.allocated_bytes >= gpu[SAVING]
    assert estimate({**run, "training": {"seq_len": 512, "saving": "sharded"}}).verdict == FITS


def test_an_average_is_gathered_beside_the_model() -> None:
    """Its shards are on the GPU in each step, and its whole on the first rank's host."""
    plain, both = (phases(FSDP, saving="full_state_dict", **more) for more in ({}, {"ema": "gpu"}))
    own = both[STEADY].gpu_bytes - plain[STEADY].gpu_bytes
    assert own == pytest.approx(4 * PARAMETERS // RANKS, rel=0.01)
    more = beside_steps(both, SAVING) - beside_steps(plain, SAVING)
    assert more == pytest.approx(4 * PARAMETERS, rel=1e-3)
    on_host = phases({}, gpus=1, ema="cpu")[STEADY].host_bytes
    own = on_host - phases({}, gpus=1)[STEADY].host_bytes
    assert own == pytest.approx(4 * PARAMETERS, rel=1e-6)  # with its buffers


def test_megatron_writes_what_each_rank_has() -> None:
    """In torch_dist model and states of all ranks once; the older format gathers fp32 weights and
    states on the first data-parallel rank.
    """
    sharded = {**MEGATRON, "distributed_optimizer": True}
    each = beside_steps(phases(sharded), SAVING)
    assert each == pytest.approx(14 * PARAMETERS, rel=0.01)
    assert beside_steps(phases(MEGATRON), SAVING) == pytest.approx(each, rel=0.01)
    older = phases(sharded, saving="full_state_dict")
    assert beside_steps(older, SAVING) == pytest.approx(12 * PARAMETERS, rel=0.01)


def test_a_resumed_optimizer_has_its_states_twice() -> None:
    """Megatron and ZeRO make moments beside those they have loaded, each rank its shard."""
    sharded = {**MEGATRON, "distributed_optimizer": True}
    moments = 8 * PARAMETERS / RANKS
    for engine in (sharded, ZERO3, FSDP):
        found = phases(engine)
        more = found[RESUMING].gpu_bytes - found.get(SAVING, found[STEADY]).gpu_bytes
        assert engine is ZERO3 or more == pytest.approx(moments, rel=0.1)
    found = phases(ZERO3)
    alone = found[RESUMING].gpu_bytes - found[SAVING_OPTIMIZER].gpu_bytes
    assert alone == pytest.approx(moments, rel=0.1)


def test_fsdp_1_loads_the_whole_model_on_each_rank() -> None:
    """Version 2 does on the first alone, and sends it."""
    first, second = (phases(one, saving="full_state_dict")[RESUMING] for one in (FSDP1, FSDP))
    assert first.host_bytes > 4 * PARAMETERS * RANKS
    assert second.host_bytes < 8 * PARAMETERS + 3 * GIB


def test_where_torch_load_puts_a_checkpoint_decides() -> None:
    """All ranks on the GPU that it was saved from; on its own each has the weights twice."""

    def resumed(where: str) -> Any:
        return estimate(
            {
                "model": {"name": "llama3.2-1b"},
                "training": {"seq_len": 512, "precision": "fp32", "resuming": where},
                "hardware": {"gpu": "a100-40gb", "num_gpus": RANKS},
            }
        )

    peaks = {}
    for where, word in {"gpu": FITS, "first_gpu": SHORT, "cpu": FITS}.items():
        found = resumed(where)
        assert found.verdict == word
        peaks[where] = next(one for one in found.phases if one.name == RESUMING)
        assert peaks[where].asked
    assert peaks["gpu"].gpu_bytes - peaks["cpu"].gpu_bytes == 4 * PARAMETERS
    more = peaks["first_gpu"].gpu_bytes - peaks["gpu"].gpu_bytes
    assert more == (RANKS - 1) * 12 * PARAMETERS
    assert peaks["cpu"].host_bytes > RANKS * 12 * PARAMETERS


def test_a_quantized_base_is_merged_at_16_bits() -> None:
    """On the GPU or on the host, in a process that does not train."""
    lora = {"r": 8, "target_modules": ["q_proj"]}
    found = phases({}, gpus=1, quantization="nf4", lora=lora)
    assert found[MERGING].gpu_bytes == pytest.approx(2 * PARAMETERS, rel=0.05)
    assert found[MERGING_ON_HOST].gpu_bytes == 0
    assert found[MERGING_ON_HOST].host_bytes == pytest.approx(2 * PARAMETERS, rel=0.1)
    assert not found[MERGING].asked


@pytest.mark.parametrize(
    ("engine", "training", "message"),
    [
        ({}, {"saving": "sharded"}, "is for FSDP"),
        ({"type": "deepspeed", "zero_stage": 2}, {"saving": "full_state_dict"}, "is modelled for"),
        (ZERO3, {"ema": "gpu"}, "is modelled for DDP and FSDP"),
        (ZERO3, {"resuming": "gpu"}, "loads its own checkpoints"),
    ],
)
def test_what_an_engine_does_not_have_is_refused(
    engine: dict[str, Any], training: dict[str, Any], message: str
) -> None:
    """With what it has instead."""
    with pytest.raises(InputError, match=message):
        phases(engine, **training)


def test_ranks_that_do_not_read_have_zeros_since_transformers_5() -> None:
    """As many bytes as the others read; before, only the first rank of a node has weights."""
    cpu = {**FSDP, "init_device": "cpu"}
    plain, zeros, first = (
        phases(cpu, load_dtype="bf16", **more)["loading"]
        for more in ({}, {"loading": "first_rank_and_zeros"}, {"loading": "first_rank"})
    )
    assert zeros.host_bytes - plain.host_bytes == (RANKS - 1) * 2 * PARAMETERS
    assert first.host_bytes == plain.host_bytes
    wide = phases(cpu, load_dtype="fp32")["loading"]
    assert wide.host_bytes - plain.host_bytes == RANKS * 4 * PARAMETERS


def test_packed_experts_are_unpacked_on_each_rank() -> None:
    """The file is small, and each rank has the experts in 16 bits, under ZeRO-3, too."""
    found = estimate(
        {
            "model": {"name": "gpt-oss-20b"},
            "training": {"seq_len": 512, "lora": {"r": 8}},
            "engine": ZERO3,
            "hardware": {"gpu": "h200", "num_gpus": RANKS},
        }
    )
    loaded = next(one for one in found.phases if one.name == "loading")
    assert loaded.file_bytes == pytest.approx(13.76e9, rel=0.01)  # its published files
    assert loaded.host_bytes == pytest.approx(RANKS * 2 * found.num_parameters, rel=0.05)


def test_workers_of_a_data_loader_keep_what_their_rank_changes() -> None:
    """Once for all of them, in steps, and twice where an evaluation has a loader, too."""
    evaluation = {"evaluation": {"batch_size": 1}}
    alone, some, more = (phases({}, **evaluation, data_workers=n) for n in (0, 2, 4))
    own = beside_steps(alone, STARTUP) - beside_steps(some, STARTUP)
    assert own > RANKS * 100 * 2**20
    batches = more[STEADY].host_bytes - some[STEADY].host_bytes
    assert batches == RANKS * 2 * 2 * 512 * 24
    assert beside_steps(some, EVALUATION) - beside_steps(alone, EVALUATION) == own
    assert some[SAVING].host_bytes == alone[SAVING].host_bytes


def test_a_checkpoint_that_is_too_large_has_a_remedy() -> None:
    """Shards in the place of the whole on each GPU."""
    run = {
        "model": {"name": "llama3.1-8b"},
        "training": {"seq_len": 512, "saving": "full_state_dict_on_gpus"},
        "engine": FSDP,
        "hardware": {"gpu": "a100-40gb", "num_gpus": 8},
    }
    found = [one.settings for one in remedies(full_estimate(run))]
    assert ("training.saving=sharded",) in found


@pytest.mark.parametrize("name", sorted(engines()))
def test_each_engine_has_a_life(name: str) -> None:
    """Also one whose way to save is not modelled."""
    found = phases({"type": name})
    assert STEADY in found
    assert (SAVING in found or SAVING_OPTIMIZER in found) == (name != "megatron_deepspeed")


@pytest.mark.parametrize(
    "engine",
    [
        {"type": "deepspeed", "zero_stage": 3},
        {"type": "deepspeed", "zero_stage": 1},
        {"type": "fsdp"},
        {"type": "megatron_lm"},
    ],
    ids=str,
)
def test_no_run_fits_that_takes_more_to_resume(engine: dict[str, Any]) -> None:
    """The phase, the ledger and the verdict have one figure, also where the stream has none."""
    run = {
        "model": {"name": "gpt2-xl"},
        "training": {"seq_len": 32, "batch_size": 1, "resuming": "as_tool"},
        "engine": engine,
        "hardware": {"gpu": "h200", "num_gpus": 1},
    }
    found = full_estimate(run).result
    (resuming,) = [one for one in found.phases if one.name == "resuming"]
    assert resuming.asked
    least = resuming.gpu_bytes + found.outside_torch_bytes
    hardware = {"gpu": "h200", "num_gpus": 1, "gpu_memory_bytes": least - 2**20}
    short = full_estimate({**run, "hardware": hardware}).result
    assert short.verdict == SHORT
    assert short.headroom_bytes < 0
