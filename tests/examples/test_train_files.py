"""The configurations that ship, the estimate of memory, and the order of the data."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from gpu_mem_calculator.tools.deepspeed import read as deepspeed_reader

from .conftest import ENVIRONMENT, GPTLITE, Start, shipped

pytest.importorskip("deepspeed")

from batches import Order

NAMES = (
    "ddp_bf16",
    "ddp_fp32",
    "pipeline_fp32",
    "pipeline_zero1_bf16",
    "zero1_fp16",
    "zero1_fp32",
    "zero2_bf16",
    "zero2_fp32",
    "zero2_offload_bf16",
    "zero3_bf16",
    "zero3_bf16_checkpoint",
    "zero3_fp32",
    "zero3_offload_fp32",
)


def test_the_names_say_what_is_in_the_files() -> None:
    """Stage, precision and offload; all the rest is the same."""
    assert sorted(one.stem for one in (GPTLITE / "configs").glob("*.json")) == sorted(NAMES)
    for name in NAMES:
        data = shipped(name)
        zero = data["zero_optimization"]
        assert zero["stage"] == int(name.partition("zero")[2][:1] or 0)
        for width in ("fp16", "bf16"):
            assert data.get(width, {"enabled": False})["enabled"] == (width in name)
        assert ("offload_optimizer" in zero) == ("offload" in name)
        assert ("offload_param" in zero) == ("offload" in name and zero["stage"] == 3)
        assert ("activation_checkpointing" in data) == ("checkpoint" in name)
        assert data["optimizer"] == shipped("ddp_fp32")["optimizer"]
        assert data["scheduler"]["type"] == "WarmupLR"


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("name", NAMES)
def test_our_reader_takes_them(name: str, ranks: int) -> None:
    """For any number of GPUs: none has a train_batch_size."""
    found = deepspeed_reader.read(GPTLITE / "configs" / f"{name}.json", num_gpus=ranks)
    assert found["parallelism"]["data_parallel_size"] == ranks
    assert found["engine"]["zero_stage"] == shipped(name)["zero_optimization"]["stage"]


@pytest.mark.proof
def test_deepspeed_takes_them() -> None:
    """With its own class."""
    program = (
        "import sys; from deepspeed.runtime.config import DeepSpeedConfig\n"
        "for path in sys.argv[1:]: print(DeepSpeedConfig(path).zero_optimization_stage)"
    )
    paths = [str(GPTLITE / "configs" / f"{name}.json") for name in NAMES]
    ran = subprocess.run(
        [sys.executable, "-c", program, *paths],
        env=ENVIRONMENT,
        text=True,
        capture_output=True,
        timeout=100,
        check=True,
    )
    stages = [str(shipped(name)["zero_optimization"]["stage"]) for name in NAMES]
    assert ran.stdout.split()[-len(NAMES) :] == stages


@pytest.mark.parametrize(
    ("flags", "figures"),
    [
        (
            [],
            [
                "86,701,056 parameters; native size 0.323 GiB",
                "144 buffers, 2.250 GiB",
                "ZeRO-2, GiB per GPU: 0.161 with the optimizer offloaded, 0.343 without",
                "(0.484 without is what DeepSpeed before 0.14.3 says",
                "0.009 with optimizer and parameters offloaded, 0.190 without",
                "SW: Model with 86M total params, 2M largest layer params.",
            ],
        ),
        (
            ["--pipeline", "--pipeline_spec_layers"],
            [
                "14,171,136 parameters; native size 0.053 GiB",
                "24 buffers, 0.375 GiB",
                "ZeRO-2, GiB per GPU: 0.026 with the optimizer offloaded, 0.056 without",
                "(0.079 without is what DeepSpeed before 0.14.3 says",
                "0.009 with optimizer and parameters offloaded, 0.038 without",
                "A pipeline does not go with ZeRO 2 and 3",
            ],
        ),
        (
            ["--num_gpus", "4", "--num_nodes", "2", "--n_layer", "2"],
            [
                "GPTlite on 2 x 4 GPUs",
                "HW: Setup with 2 nodes, 4 GPUs per node.",
                "24 buffers, 0.375 GiB",
            ],
        ),
    ],
)
def test_the_estimate_of_memory(start: Start, flags: list[str], figures: list[str]) -> None:
    """The figures of the worked example, and those that DeepSpeed's estimator leaves out."""
    ran = start("--run_memory_estimation_only", *flags, ranks=1)
    assert ran.codes == [0], ran.text
    for figure in figures:
        assert figure in ran.text


def test_every_item_is_seen_once_an_epoch() -> None:
    """By one rank, each in another order every epoch."""
    ranks, batch, items = 2, 3, 30
    orders = [iter(Order(items, 5, batch, 1, rank, ranks)) for rank in range(ranks)]
    epochs = []
    for _ in range(2):
        seen = [one for _ in range(5) for order in orders for one in next(order)]
        assert sorted(seen) == list(range(items))
        epochs.append(seen)
    assert epochs[0] != epochs[1]


def test_the_order_goes_on_where_it_was() -> None:
    """Also in the middle of an epoch, and with accumulation."""
    whole = list(itertools.islice(Order(7, 1, 2, 3, 1, 2), 12))
    assert list(itertools.islice(Order(7, 1, 2, 3, 1, 2, first=2), 6)) == whole[6:]
