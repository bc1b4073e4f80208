"""The documented face: the seed's sample, and what a result says."""

from __future__ import annotations

import pytest

from gpu_mem_calculator import estimate
from gpu_mem_calculator.core.calculator import GPUMemoryCalculator
from gpu_mem_calculator.core.errors import InputError
from gpu_mem_calculator.core.models import (
    EngineConfig,
    GPUConfig,
    LoraConfig,
    ModelConfig,
    ParallelismConfig,
    TrainingConfig,
)
from tests.conftest import ROOT, small_run


def test_the_seeds_sample_runs_unchanged() -> None:
    """Config objects in, a result with the documented fields out."""
    calculator = GPUMemoryCalculator(
        model_config=ModelConfig(
            name="llama2-7b", num_parameters=7_000_000_000, num_layers=32, hidden_size=4096,
            num_attention_heads=32, vocab_size=32000, max_seq_len=4096,
        ),
        training_config=TrainingConfig(
            batch_size=4, gradient_accumulation_steps=4, dtype="bf16", optimizer="adamw"
        ),
        parallelism_config=ParallelismConfig(data_parallel_size=8),
        engine_config=EngineConfig(type="deepspeed", zero_stage=3, offload_optimizer="cpu"),
        gpu_config=GPUConfig(num_gpus=8, gpu_memory_gb=80),
    )  # fmt: skip
    result = calculator.calculate()
    assert f"{result.total_memory_per_gpu_gb:.2f} {result.memory_utilization_percent:.1f}"
    assert isinstance(result.fits_on_gpu, bool)
    assert result.cpu_memory_gb > 0
    assert calculator.to_dict()["engine"]["zero_stage"] == 3


def test_a_calculator_from_a_file_is_the_same() -> None:
    """The example file of the seed."""
    path = ROOT / "configs" / "llama2_7b_deepspeed.json"
    assert GPUMemoryCalculator.from_config_file(path).calculate() == estimate(str(path))


def test_the_card_must_have_what_torch_allocates_and_what_cuda_takes() -> None:
    """The total is allocated plus what lies outside torch; the rest is not modelled yet."""
    result = estimate(small_run())
    total = result.allocated_bytes + result.outside_torch_bytes
    assert result.total_memory_per_gpu_gb == pytest.approx(total / 2**30)
    assert result.reserved_bytes is None
    assert result.needs_bytes is None
    assert result.fits_on_gpu
    assert result.peak_instant
    assert max(sum(row["bytes"].values()) for row in result.timeline) >= result.allocated_bytes


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
