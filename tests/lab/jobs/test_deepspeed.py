"""DeepSpeed's JSON: every option of a run file under DeepSpeed's own name."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.lab.jobs.deepspeed import ZERO_KEYS, config_json, refusals
from gpu_mem_calculator.lab.jobs.job import Job, World, run
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines.deepspeed.options import OPTIONS
from tests.conftest import small_run

# Options that are not keys of "zero_optimization", or not under their own names.
ELSEWHERE = {
    "zero_stage",
    "offload_optimizer",
    "offload_param",
    "pin_memory",
    "zero_init",
    "amp",
    "partition_activations",
    "cpu_checkpointing",
    "partition_method",
}


def job(gpus: int = 8, **sections: dict[str, Any]) -> Job:
    """A DeepSpeed job whose world listens to nothing."""
    file = read(small_run("deepspeed", gpus, **sections)).file
    return Job(file=file, resolved=resolve(file), world=World(device="cuda", mark=lambda _: None))


def engine(**options: Any) -> dict[str, Any]:
    """The JSON of a run with these engine options."""
    return config_json(job(engine={"type": "deepspeed", **options}), "/fast")


def test_every_option_reaches_deepspeed() -> None:
    """No option of the estimate is left out of the JSON or forgotten here."""
    assert set(ZERO_KEYS) | ELSEWHERE == set(OPTIONS)


def test_batch_sizes_multiply() -> None:
    """DeepSpeed checks that the whole batch is micro-batch x steps x ranks."""
    made = config_json(job(training={"batch_size": 2, "gradient_accumulation_steps": 3}))
    sizes = [
        made[k]
        for k in (
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
            "train_batch_size",
        )
    ]
    assert sizes == [2, 3, 48]


@pytest.mark.parametrize("key", [k for k in ZERO_KEYS if not isinstance(OPTIONS[k], bool | None)])
def test_sizes_pass_through(key: str) -> None:
    """A bucket, prefetch, persistence or sub-group size is given as it is."""
    assert engine(zero_stage=3, **{key: 1234})["zero_optimization"][key] == 1234


def test_overlap_is_left_to_deepspeed_unless_said() -> None:
    """DeepSpeed's default depends on the stage, so a run that says nothing sends nothing."""
    assert "overlap_comm" not in engine(zero_stage=2)["zero_optimization"]
    assert engine(zero_stage=2, overlap_comm=True)["zero_optimization"]["overlap_comm"] is True


def test_offload_to_the_host() -> None:
    """Both offloads name their device and whether memory is pinned."""
    zero = engine(zero_stage=3, offload_optimizer="cpu", offload_param="cpu", pin_memory=False)[
        "zero_optimization"
    ]
    wanted = {"device": "cpu", "pin_memory": False}
    assert (zero["offload_optimizer"], zero["offload_param"]) == (wanted, wanted)


def test_offload_to_nvme_has_a_folder() -> None:
    """NVMe offload needs a path."""
    zero = engine(zero_stage=3, offload_optimizer="nvme")["zero_optimization"]
    assert zero["offload_optimizer"] == {"device": "nvme", "pin_memory": True, "nvme_path": "/fast"}
    assert "offload_param" not in zero


@pytest.mark.parametrize(
    ("precision", "wanted"), [("bf16_mixed", {"bf16"}), ("fp16_mixed", {"fp16"}), ("fp32", set())]
)
def test_precision(precision: str, wanted: set[str]) -> None:
    """Sixteen bits are switched on by name, fp32 by nothing."""
    made = config_json(job(training={"precision": precision}))
    assert {"bf16", "fp16"} & set(made) == wanted


@pytest.mark.parametrize(("given", "wanted"), [(None, 1.0), (0.0, 0.0), (0.5, 0.5)])
def test_clipping(given: float | None, wanted: float) -> None:
    """Zero is said, since DeepSpeed clips to 1 when nothing is."""
    made = config_json(job(training={"gradient_clipping": given} if given is not None else {}))
    assert made["gradient_clipping"] == wanted


@pytest.mark.parametrize(
    ("training", "kind", "extra"),
    [
        ({}, "AdamW", {}),
        ({"optimizer": "adam"}, "Adam", {"adam_w_mode": False}),
        ({"optimizer_implementation": "foreach"}, "AdamW", {"torch_adam": True}),
        ({"optimizer": "sgd_momentum"}, "SGD", {"momentum": 0.9}),
        ({"optimizer": "sgd", "optimizer_implementation": "fused"}, "SGD", {"fused": True}),
        ({"optimizer": "lion"}, "Lion", {}),
    ],
)
def test_optimizers(training: dict[str, Any], kind: str, extra: dict[str, Any]) -> None:
    """Adam is DeepSpeed's fused one unless torch's foreach is asked for."""
    made = config_json(job(engine={"type": "deepspeed", "zero_stage": 1}, training=training))
    assert made["optimizer"] == {"type": kind, "params": {"lr": 1e-5, **extra}}


def test_checkpoint_options_have_a_section_of_their_own() -> None:
    """What acts on checkpoints is under activation_checkpointing, and only where it is set."""
    one = job(
        engine={"type": "deepspeed", "cpu_checkpointing": True},
        training={"activation_checkpointing": "full"},
    )
    assert config_json(one)["activation_checkpointing"] == {"cpu_checkpointing": True}
    assert "activation_checkpointing" not in engine()


def test_a_pipeline_is_refused() -> None:
    """DeepSpeed's pipeline is estimated, not run."""
    one = job(parallelism={"pipeline_parallel_size": 2})
    assert any("pipeline_parallel_size=2" in text for text in refusals(one))


def test_a_shard_that_no_swap_buffer_holds_is_refused() -> None:
    """Parameters on NVMe pass through buffers of 1e8 elements."""
    config = small_run()["model"]["config"] | {"hidden_size": 2048, "vocab_size": 200_000}
    one = job(
        gpus=2,
        engine={"type": "deepspeed", "zero_stage": 3, "offload_param": "nvme"},
        model={"config": config},
    )
    assert any("204800000 elements" in text for text in refusals(one))
    assert not refusals(job(engine={"type": "deepspeed", "zero_stage": 3, "offload_param": "nvme"}))


def test_what_is_refused_stops_the_run() -> None:
    """The sentences come before anything is imported or built."""
    with pytest.raises(InputError, match="pipeline_parallel_size"):
        run(job(parallelism={"pipeline_parallel_size": 2}))
