"""The documented face: the documented sample, and what a result says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_mem_calculator import estimate
from gpu_mem_calculator.estimates.calculator import (
    STEP,
    Estimate,
    GPUMemoryCalculator,
    full_estimate,
)
from gpu_mem_calculator.estimates.node import STEADY
from gpu_mem_calculator.ledger.ledger import CPU
from gpu_mem_calculator.runfile.config import (
    EngineConfig,
    GPUConfig,
    LoraConfig,
    ModelConfig,
    ParallelismConfig,
    TrainingConfig,
)
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.conftest import small_run


def test_the_documented_sample_runs_unchanged() -> None:
    """Config objects in, a result with the documented fields out."""
    calculator = GPUMemoryCalculator(
        model_config=ModelConfig(
            name="llama2-7b",
            num_parameters=7_000_000_000,
            num_layers=32,
            hidden_size=4096,
            num_attention_heads=32,
            vocab_size=32000,
            max_seq_len=4096,
        ),
        training_config=TrainingConfig(
            batch_size=4, gradient_accumulation_steps=4, dtype="bf16", optimizer="adamw"
        ),
        parallelism_config=ParallelismConfig(data_parallel_size=8),
        engine_config=EngineConfig(type="deepspeed", zero_stage=3, offload_optimizer="cpu"),
        gpu_config=GPUConfig(num_gpus=8, gpu_memory_gb=80),
    )
    result = calculator.calculate()
    assert f"{result.total_memory_per_gpu_gb:.2f} {result.memory_utilization_percent:.1f}"
    assert isinstance(result.fits_on_gpu, bool)
    assert result.cpu_memory_gb > 0
    assert calculator.to_dict()["engine"]["zero_stage"] == 3


def test_a_calculator_from_a_file_is_the_same(tmp_path: Path) -> None:
    """A file's run in both ways."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps(small_run("deepspeed", engine={"zero_stage": 3})), "utf-8")
    assert GPUMemoryCalculator.from_config_file(path).calculate() == estimate(str(path))


def test_the_card_must_have_what_torch_needs_and_what_cuda_takes() -> None:
    """Total and verdict are of what torch needs, the margin, and what is outside torch."""
    result = estimate(small_run())
    assert result.needs_bytes is not None
    total = result.needs_bytes + (result.margin_bytes or 0) + result.outside_torch_bytes
    assert result.total_memory_per_gpu_gb == total / 2**30
    assert result.headroom_bytes == result.gpu_memory_bytes - total
    assert (result.verdict, result.fits_on_gpu) == ("fits", True)
    assert result.breakdown.total_memory_gb == pytest.approx(total / 2**30)
    assert result.peak_instant


@pytest.mark.parametrize("engine", ["pytorch_ddp", "fsdp", "deepspeed", "megatron_lm"])
def test_the_four_numbers_are_in_order(engine: str) -> None:
    """Allocated, needs, reserved, nvidia-smi: each is at least the one before."""
    result = estimate(small_run(engine))
    numbers = [
        result.allocated_bytes,
        result.needs_bytes,
        result.reserved_bytes,
        result.device_bytes,
    ]
    assert None not in numbers
    assert numbers == sorted(numbers, key=lambda number: number or 0)


@pytest.mark.parametrize("engine", ["pytorch_ddp", "fsdp", "deepspeed", "megatron_lm"])
def test_the_ledger_reaches_what_the_replay_found(engine: str) -> None:
    """To the byte, with one entry for what blocks have beyond their tensors."""
    made = full_estimate(small_run(engine))
    assert int(made.ledger.peak(phases=STEP)) == made.result.allocated_bytes
    assert (
        max(sum(row["bytes"].values()) for row in made.result.timeline if row["phase"] != "startup")
        == made.result.allocated_bytes
    )
    blocks = [e for e in made.ledger.entries if e.name == "blocks larger than their tensors"]
    assert len(blocks) == 1
    assert 0 <= int(blocks[0].bytes) < made.result.allocated_bytes // 50


def test_without_a_replay_the_ledger_answers_alone() -> None:
    """No number that only the allocator gives; the total is allocated and what CUDA takes."""
    result, whole = (estimate(small_run(), replay=replay) for replay in (False, True))
    assert (result.reserved_bytes, result.needs_bytes, result.device_bytes) == (None, None, None)
    total = result.allocated_bytes + result.outside_torch_bytes
    assert result.total_memory_per_gpu_gb == total / 2**30 < whole.total_memory_per_gpu_gb
    assert result.allocated_bytes == pytest.approx(whole.allocated_bytes, rel=0.01)


def _of_steps(found: Estimate) -> int:
    """Host memory of a node in each step."""
    return next(one.host_bytes for one in found.result.phases if one.name == STEADY)


def test_every_process_has_its_libraries_on_the_host() -> None:
    """Host memory is what is offloaded, and the libraries of each rank of a node."""
    plain = full_estimate(small_run("deepspeed", engine={"zero_stage": 2}))
    _, libraries, source = plain.resolved.host_libraries
    assert _of_steps(plain) == 8 * libraries
    highest = max(one.host_bytes for one in plain.result.phases if one.asked)
    assert plain.result.host_bytes_per_node == highest
    assert plain.result.cpu_memory_gb == highest / 2**30
    assert source.startswith("measured")
    offload = {"zero_stage": 2, "offload_optimizer": "cpu"}
    away = full_estimate(small_run("deepspeed", engine=offload))
    _, libraries, _ = away.resolved.host_libraries
    held = int(away.ledger.peak(CPU))
    assert _of_steps(away) == 8 * (held + libraries) > 8 * libraries


def test_one_gpu_has_no_nccl() -> None:
    """Communicators appear with the second rank."""
    one, two = (estimate(small_run(gpus=n)).outside_torch_bytes for n in (1, 2))
    assert two > one


def test_adapters_are_what_is_trained() -> None:
    """LoRA's count: r × (in + out) for each projection it sits on."""
    lora = {"r": 8, "target_modules": ["q_proj", "v_proj"]}
    result = estimate(small_run(training={"lora": lora}))
    assert result.trainable_parameters == 4 * 8 * ((256 + 256) + (256 + 128))
    dora = estimate(small_run(training={"lora": {**lora, "dora": True}}))
    assert dora.trainable_parameters == result.trainable_parameters + 4 * (256 + 128)


def test_all_linear_reaches_every_projection() -> None:
    """PEFT's `all-linear`."""
    every = estimate(small_run(training={"lora": {"r": 8, "target_modules": "all-linear"}}))
    some = estimate(small_run(training={"lora": {"r": 8}}))
    assert every.trainable_parameters > some.trainable_parameters


@pytest.mark.parametrize(
    ("quantization", "extra"), [("nf4", {}), ("nf4", {"double_quant": False}), ("int8", {})]
)
def test_a_quantized_base_is_smaller(quantization: str, extra: dict[str, bool]) -> None:
    """4 and 8 bits take less than 16; the head and the embedding stay wide."""
    plain = {"precision": "bf16_pure", "lora": {"r": 8}}
    small = estimate(small_run(training={**plain, "quantization": quantization, **extra}))
    assert (
        small.breakdown.model_params_gb
        < estimate(small_run(training=plain)).breakdown.model_params_gb
    )


def test_config_objects_may_be_given_in_any_order() -> None:
    """The short form takes what the long form takes."""
    objects = (
        EngineConfig(type="fsdp"),
        GPUConfig(num_gpus=8, gpu_memory_gb=80),
        ModelConfig(name="gpt2"),
        TrainingConfig(batch_size=2),
    )
    plain = {
        "model": {"name": "gpt2"},
        "training": {"batch_size": 2},
        "engine": {"type": "fsdp"},
        "hardware": {"num_gpus": 8, "gpu_memory_gb": 80},
    }
    assert estimate(*objects) == estimate(plain)


def test_objects_that_are_no_sections_are_refused() -> None:
    """One sentence for each."""
    with pytest.raises(InputError, match="LoraConfig is not a section of a run file"):
        estimate(LoraConfig())
    with pytest.raises(InputError, match="estimate takes one run"):
        estimate({"model": {"name": "gpt2"}}, ModelConfig(name="gpt2"))


def test_amp_is_refused_as_deepspeed_does() -> None:
    """DeepSpeed no longer has it."""
    with pytest.raises(InputError, match=r"engine\.amp is gone"):
        estimate(small_run("deepspeed", engine={"amp": True}))


def test_pages_that_do_not_fit_are_on_the_host() -> None:
    """A paged optimizer on a card that torch nearly fills: nvidia-smi shows the card, and the rest
    of the pages is host memory.
    """
    config = {"model_type": "llama", "num_hidden_layers": 6, "hidden_size": 5120}
    config |= {"num_attention_heads": 40, "num_key_value_heads": 40}
    config |= {"intermediate_size": 13824, "vocab_size": 32000}
    data = {
        "model": {"config": config},
        "training": {"optimizer": "paged_adamw_8bit", "batch_size": 1, "seq_len": 64},
        "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 1},
    }
    roomy = estimate(data)
    assert roomy.needs_bytes is not None
    assert roomy.device_bytes is not None
    enough = roomy.needs_bytes + 2**30 + roomy.outside_torch_bytes
    assert enough < roomy.device_bytes
    data["hardware"] = {"gpu": "h100-80gb-sxm", "num_gpus": 1, "available_memory_bytes": enough}
    tight = estimate(data)
    assert tight.fits_on_gpu
    assert tight.device_bytes == tight.gpu_memory_bytes
    assert tight.host_bytes_per_node > roomy.host_bytes_per_node
