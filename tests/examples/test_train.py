"""train.py really trains, in two processes on the CPU, with every kind of configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deepspeed")

from .conftest import Ran, Train, shipped

STEPS = ("--steps", "8", "--log_every", "1", "--torch_adam", "--no_sample")
STILL = (*STEPS, "--dropout", "0")  # nothing random: comparable however the work is spread


def losses(ran: Ran) -> list[float]:
    """The losses of a run that went well."""
    assert set(ran.codes) == {0}, ran.text
    found = list(ran.report["losses"].values())
    assert found[-1] < found[0]
    assert len(ran.report["ranks"]) == len(ran.codes)
    assert all(0 < one["memory_average"] <= one["memory_max"] for one in ran.report["ranks"])
    assert ran.report["samples_per_second"] > 0
    return found


@pytest.fixture(scope="session")
def plain(train: Train) -> list[float]:
    """Losses of a run in which every rank keeps everything."""
    return losses(train("ddp_fp32", *STILL))


@pytest.mark.parametrize("name", ["zero1_fp32", "zero2_fp32", "zero3_fp32"])
def test_zero_changes_no_number(train: Train, plain: list[float], name: str) -> None:
    """Cutting what is kept over the ranks is all it does."""
    assert losses(train(name, *STILL)) == pytest.approx(plain, rel=1e-5)


def test_16_bits_learn_nearly_the_same(train: Train, plain: list[float]) -> None:
    """bf16 with and without ZeRO."""
    for name in ("ddp_bf16", "zero2_bf16", "zero3_bf16"):
        assert losses(train(name, *STILL)) == pytest.approx(plain, rel=0.02)


def test_two_stages_learn_what_one_process_learns(train: Train) -> None:
    """A pipeline is another order of the same work; accumulation is what fills it."""
    alone = shipped("ddp_fp32") | {"gradient_accumulation_steps": 4}
    expected = losses(train(alone, *STILL, ranks=1))
    assert losses(train("pipeline_fp32", *STILL, "--pipeline")) == pytest.approx(expected, rel=1e-5)


def test_layers_from_specs_do_not_depend_on_the_stages(train: Train) -> None:
    """Weights follow from the seed and the layer's place."""
    spec = (*STILL, "--pipeline_spec_layers")
    expected = losses(train("pipeline_fp32", *spec, ranks=1))
    assert losses(train("pipeline_fp32", *spec)) == pytest.approx(expected, rel=1e-5)
    assert losses(train("pipeline_zero1_bf16", *spec)) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("ddp_fp32", ["--activation_checkpointing"]),
        ("zero2_fp32", ["--activation_checkpointing", "--partition_activations",
                        "--contiguous_checkpointing"]),
        ("pipeline_fp32", ["--pipeline", "--activation_checkpointing", "--partition_activations",
                           "--contiguous_checkpointing"]),
    ],
)  # fmt: skip
def test_running_blocks_again_changes_no_number(train: Train, name: str, flags: list[str]) -> None:
    """Not even what dropout drew."""
    pipeline = [flag for flag in flags if flag == "--pipeline"]
    expected = losses(train(name, *STEPS, *pipeline))
    assert losses(train(name, *STEPS, *flags)) == pytest.approx(expected, rel=1e-5)


def test_checkpoints_of_the_file_are_as_many_as_blocks(train: Train) -> None:
    """The file says twelve; the model has two."""
    ran = train("zero3_bf16_checkpoint", *STEPS)
    assert losses(ran) == pytest.approx(losses(train("zero3_bf16", *STEPS)), rel=1e-5)
    assert "number_checkpoints=12" in ran.text
    assert "is 2 in this run, one per block" in ran.text


@pytest.mark.parametrize(
    ("name", "flags"),
    [("ddp_fp32", []), ("zero2_bf16", []), ("zero3_fp32", []), ("pipeline_fp32", ["--pipeline"])],
)
def test_a_resumed_run_repeats_an_unbroken_one(
    train: Train, tmp_path: Path, name: str, flags: list[str]
) -> None:
    """The same losses to the last bit, with the same data and dropout, after four of eight."""
    kept = ("--save", str(tmp_path))
    unbroken = train(name, *STEPS, *flags, *kept, "--save_every", "4")
    (tmp_path / "latest").write_text("step4", encoding="utf-8")
    resumed = train(name, *STEPS, *flags, *kept, "--resume")
    losses(unbroken)
    assert resumed.codes == [0, 0], resumed.text
    assert resumed.report["steps"] == [4, 8]
    expected: dict[str, Any] = unbroken.report["losses"]
    assert resumed.report["losses"] == {key: expected[key] for key in ("5", "6", "7", "8")}
