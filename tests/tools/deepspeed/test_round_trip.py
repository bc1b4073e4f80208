"""What is written for DeepSpeed reads back to the same run, and DeepSpeed takes what is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpu_mem_calculator.estimates.calculator import estimate
from gpu_mem_calculator.estimates.result import MemoryResult
from gpu_mem_calculator.runfile.config import RunFile
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.deepspeed.read import run_file
from gpu_mem_calculator.tools.deepspeed.write import write
from gpu_mem_calculator.tools.read import read as read_run

# What a program decides, and DeepSpeed's file cannot say.
UNSAID = {
    "model": None,
    "training": {"seq_len", "activation_checkpointing", "attention", "lora"},
    "parallelism": None,
    "engine": {"type", "zero_init", "partition_method"},
    "hardware": None,
}
TINY = {
    "num_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "max_seq_len": 128,
}


def settings(run: dict[str, Any]) -> list[str]:
    """`--set` for everything that the file cannot say."""
    return [
        f"{section}.{key}={json.dumps(value)}"
        for section, keys in UNSAID.items()
        for key, value in run.get(section, {}).items()
        if keys is None or key in keys
    ]


def chosen(file: RunFile) -> dict[str, Any]:
    """A run's options, without pinned memory where nothing is offloaded."""
    options = dict(resolve(file).run.options)
    if {options.get(key, "none") for key in ("offload_optimizer", "offload_param")} == {"none"}:
        options.pop("pin_memory", None)
    return options


def there_and_back(run: dict[str, Any]) -> tuple[dict[str, Any], MemoryResult, MemoryResult]:
    """A run's file for DeepSpeed, its estimate, and that of the run that is read back."""
    file = read_run(run).file
    written = json.loads(json.dumps(write(file, resolve(file))))
    back = run_file(written, model=None, settings=settings(run)).data
    assert chosen(read_run(back).file) == chosen(file)
    return written, estimate(run, replay=False), estimate(back, replay=False)


def same(one: MemoryResult, other: MemoryResult) -> None:
    """Every figure but the words of the run itself."""
    for key in (
        "allocated_bytes",
        "startup_bytes",
        "outside_torch_bytes",
        "host_bytes_per_node",
        "disk_bytes_per_node",
        "peak_instant",
        "timeline",
        "stages",
    ):
        assert getattr(one, key) == getattr(other, key), key


COUNTS = st.sampled_from([1_000, 50_000, 123_456, 5_000_000, 500_000_000])
ENGINE = st.fixed_dictionaries(
    {"zero_stage": st.integers(0, 3)},
    optional={
        "offload_optimizer": st.sampled_from(["none", "cpu", "nvme"]),
        "offload_param": st.sampled_from(["none", "cpu", "nvme"]),
        "pin_memory": st.booleans(),
        "overlap_comm": st.booleans(),
        "contiguous_gradients": st.booleans(),
        "reduce_bucket_size": COUNTS,
        "allgather_bucket_size": COUNTS,
        "sub_group_size": COUNTS,
        "stage3_prefetch_bucket_size": COUNTS,
        "stage3_max_live_parameters": COUNTS,
        "stage3_max_reuse_distance": COUNTS,
        "stage3_param_persistence_threshold": COUNTS,
        "zero_init": st.booleans(),
        "partition_activations": st.booleans(),
        "cpu_checkpointing": st.booleans(),
    },
)
TRAINING = st.fixed_dictionaries(
    {"precision": st.sampled_from(["fp32", "bf16_mixed", "fp16_mixed"])},
    optional={
        "batch_size": st.integers(1, 4),
        "gradient_accumulation_steps": st.integers(1, 4),
        "optimizer": st.sampled_from(["adamw", "adam", "lion", "sgd", "sgd_momentum"]),
        "optimizer_implementation": st.sampled_from(["foreach", "fused"]),
        "gradient_clipping": st.sampled_from([0.0, 0.5, 1.0]),
        "activation_checkpointing": st.sampled_from(["none", "full"]),
    },
)


@given(engine=ENGINE, training=TRAINING, ranks=st.sampled_from([1, 2, 8]))
def test_what_is_written_reads_back_to_the_same_run(
    engine: dict[str, Any], training: dict[str, Any], ranks: int
) -> None:
    """Wherever the engine takes the run at all."""
    run = {
        "model": TINY,
        "training": training,
        "engine": {"type": "deepspeed", **engine},
        "parallelism": {"data_parallel_size": ranks},
        "hardware": {"num_gpus": ranks},
    }
    try:
        resolve(read_run(run).file)
    except InputError:
        assume(False)
    _, before, after = there_and_back(run)
    same(before, after)


@pytest.mark.parametrize(
    "run",
    [
        {
            "parallelism": {"pipeline_parallel_size": 2},
            "engine": {"zero_stage": 1},
            "training": {"batch_size": 2, "gradient_accumulation_steps": 4},
        },
        {
            "parallelism": {"pipeline_parallel_size": 4},
            "engine": {"partition_method": "uniform"},
            "training": {"dtype": "fp32", "gradient_accumulation_steps": 8},
        },
        {"training": {"lora": {"r": 8}}, "engine": {"zero_stage": 2}},
        {
            "engine": {
                "zero_stage": 3,
                "offload_optimizer": "cpu",
                "offload_param": "cpu",
                "pin_memory": False,
            }
        },
        {"engine": {"zero_stage": 3, "offload_optimizer": "nvme", "offload_param": "nvme"}},
        {
            "parallelism": {"tensor_parallel_size": 2},
            "engine": {"type": "megatron_deepspeed", "zero_stage": 1, "reduce_bucket_size": 1000},
        },
        {"engine": {"type": "megatron_deepspeed", "zero_stage": 2, "offload_optimizer": "cpu"}},
    ],
)
def test_runs_that_the_program_cuts(run: dict[str, Any]) -> None:
    """Pipelines, adapters and Megatron's layers are given by the program, not by the file."""
    engine = {"type": "deepspeed", **run["engine"]}
    whole = {"model": TINY, "hardware": {"num_gpus": 8}, **run, "engine": engine}
    written, before, after = there_and_back(whole)
    assert written["zero_optimization"]["stage"] == engine.get("zero_stage", 0)
    same(before, after)


def test_the_replayed_figures_are_the_same() -> None:
    """Reserved and needed memory, too."""
    run = {
        "model": {"name": "gpt2"},
        "hardware": {"num_gpus": 8},
        "training": {"batch_size": 2},
        "engine": {"type": "deepspeed", "zero_stage": 3, "offload_optimizer": "cpu"},
    }
    file = read_run(run).file
    back = run_file(write(file, resolve(file)), model="gpt2", settings=["hardware.num_gpus=8"])
    before, after = estimate(run), estimate(back.data)
    assert (before.reserved_bytes, before.needs_bytes) == (after.reserved_bytes, after.needs_bytes)


def test_settings_win_over_the_file_and_over_what_is_assumed() -> None:
    """And what is said is not listed as assumed."""
    data = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}
    plain = run_file(data, model="gpt2")
    assert plain.data["model"] == {"name": "gpt2"}
    assert len(plain.assumed) == 5
    given = [
        "training.seq_len=512",
        "training.batch_size=4",
        "hardware.num_gpus=4",
        "engine.zero_init=false",
        "training.optimizer=adam",
        "training.activation_checkpointing=full",
    ]
    chosen = run_file(data, model=None, settings=given)
    assert chosen.assumed == ()
    assert "model" not in chosen.data
    assert chosen.data["training"]["batch_size"] == 4
    assert chosen.data["engine"]["zero_init"] is False
    assert chosen.data["parallelism"] == {"data_parallel_size": 4}


@pytest.mark.parametrize(
    ("settings", "ranks", "gpus"),
    [
        (["hardware.num_nodes=2"], 16, 16),
        (["hardware.num_nodes=2", "hardware.gpus_per_node=4"], 8, 8),
        (["parallelism.data_parallel_size=4"], 4, 4),
        (["parallelism.data_parallel_size=4", "parallelism.pipeline_parallel_size=2"], 4, 8),
        (["hardware.num_gpus=8", "parallelism.pipeline_parallel_size=2"], 4, 8),
    ],
)
def test_ranks_come_from_settings(settings: list[str], ranks: int, gpus: int) -> None:
    """Whichever way they are said."""
    found = run_file({"train_batch_size": 64}, model="gpt2", settings=settings)
    assert found.data["parallelism"]["data_parallel_size"] == ranks
    assert found.data["hardware"]["num_gpus"] == gpus
    assert found.data["training"]["batch_size"] == 64 // ranks
    assert not any("hardware.num_gpus" in text for text in found.assumed)
    assert estimate(found.data, replay=False).allocated_bytes > 0
