"""train.py really trains, in two processes on the CPU, with every kind of configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deepspeed")

from tests.corpus import sampled

from .conftest import Ran, Start, Train, shipped

STEPS = ("--steps", "6", "--log_every", "1", "--torch_adam", "--no_sample")
STILL = (*STEPS, "--dropout", "0")  # nothing random: comparable however the work is spread


def losses(ran: Ran) -> list[float]:
    """The losses of a run that went well."""
    assert set(ran.codes) == {0}, ran.text
    found: list[float] = list(ran.report["losses"].values())
    assert len(ran.report["ranks"]) == len(ran.codes)
    assert all(0 < one["memory_average"] <= one["memory_max"] for one in ran.report["ranks"])
    assert ran.report["samples_per_second"] > 0
    return found


@pytest.mark.proof
def test_the_loss_falls(train: Train) -> None:
    """From what guessing gives, also for what was held out; a sample is written at the end."""
    config = shipped("zero2_fp32") | {"train_micro_batch_size_per_gpu": 8}
    ran = train(config, "--steps", "30", "--torch_adam", "--validation")
    found = losses(ran)
    assert found[0] == pytest.approx(4.2, abs=0.4)
    assert found[-1] < found[0] - 0.4
    assert ran.report["validation_loss"] < found[0] - 0.4
    assert len(ran.report["sample"]) == 200
    assert ran.report["sample"] in ran.text
    assert [line[:10] for line in ran.text.splitlines() if line.startswith("step ")] == [
        "step 10/30",
        "step 20/30",
        "step 30/30",
    ]


@pytest.fixture(scope="session")
def plain(train: Train) -> list[float]:
    """Losses of a run in which every rank keeps everything."""
    return losses(train("ddp_fp32", *STILL))


@pytest.mark.parametrize("name", sampled(["zero3_fp32", "zero1_fp32", "zero2_fp32"], keep=1))
def test_zero_changes_no_number(train: Train, plain: list[float], name: str) -> None:
    """Cutting what is kept over the ranks is all it does."""
    assert losses(train(name, *STILL)) == pytest.approx(plain, rel=1e-5)


@pytest.mark.proof
@pytest.mark.parametrize("name", ["zero2_offload_bf16", "zero3_offload_fp32"])
def test_the_optimizer_steps_on_the_host(train: Train, plain: list[float], name: str) -> None:
    """With DeepSpeed's CPU Adam, where it has been compiled."""
    if not cpu_adam_is_built():
        pytest.skip(
            "DeepSpeed's CPU Adam is not compiled, which takes minutes: "
            "python -c 'from deepspeed.ops.op_builder import CPUAdamBuilder as b; "
            "b().load()'"
        )
    steps = [one for one in STILL if one != "--torch_adam"]
    assert losses(train(name, *steps)) == pytest.approx(plain, rel=0.02)


def cpu_adam_is_built() -> bool:
    """Whether a run finds it in the cache."""
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or "~/.cache/torch_extensions").expanduser()
    return any(root.glob("**/cpu_adam/cpu_adam.so"))


@pytest.mark.proof
def test_16_bits_learn_nearly_the_same(train: Train, plain: list[float]) -> None:
    """bf16 with and without ZeRO."""
    for name in ("ddp_bf16", "zero2_bf16"):
        assert losses(train(name, *STILL)) == pytest.approx(plain, rel=0.02)


@pytest.mark.proof
def test_two_stages_learn_what_one_process_learns(train: Train) -> None:
    """A pipeline is another order of the same work; accumulation is what fills it."""
    config = shipped("ddp_fp32") | {"gradient_accumulation_steps": 4}
    steps = (*STILL[:-3], *STILL[-2:], "--validation")  # with a sample
    alone, staged = train(config, *steps, ranks=1), train("pipeline_fp32", *steps, "--pipeline")
    assert losses(staged) == pytest.approx(losses(alone), rel=1e-5)
    loss = alone.report["validation_loss"]
    assert staged.report["validation_loss"] == pytest.approx(loss, rel=1e-5)
    assert staged.report["sample"] == alone.report["sample"]


@pytest.mark.proof
def test_layers_from_specs_do_not_depend_on_the_stages(train: Train) -> None:
    """Weights follow from the seed and the layer's place."""
    spec = (*STILL, "--pipeline_spec_layers")
    expected = losses(train("pipeline_fp32", *spec, ranks=1))
    assert losses(train("pipeline_fp32", *spec)) == pytest.approx(expected, rel=1e-5)
    assert losses(train("pipeline_zero1_bf16", *spec)) == pytest.approx(expected, rel=0.02)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        (
            "zero2_fp32",
            ["--activation_checkpointing", "--partition_activations", "--contiguous_checkpointing"],
        ),
        (
            "pipeline_fp32",
            [
                "--pipeline",
                "--activation_checkpointing",
                "--partition_activations",
                "--contiguous_checkpointing",
            ],
        ),
    ],
)
def test_running_blocks_again_changes_no_number(train: Train, name: str, flags: list[str]) -> None:
    """Not even what dropout drew."""
    pipeline = [flag for flag in flags if flag == "--pipeline"]
    expected = losses(train(name, *STEPS, *pipeline))
    assert losses(train(name, *STEPS, *flags)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.proof
def test_checkpoints_of_the_file_are_as_many_as_blocks(train: Train) -> None:
    """The file says twelve; the model has two."""
    ran = train("zero3_bf16_checkpoint", *STEPS)
    assert losses(ran) == pytest.approx(losses(train("zero3_bf16", *STEPS)), rel=1e-5)
    assert "number_checkpoints=12" in ran.text
    assert "is 2 in this run, one per block" in ran.text


@pytest.mark.proof
@pytest.mark.parametrize(
    ("name", "flags"),
    sampled([("zero3_fp32", []), ("zero2_bf16", []), ("pipeline_fp32", ["--pipeline"])], keep=1),
)
def test_a_resumed_run_repeats_an_unbroken_one(
    train: Train, tmp_path: Path, name: str, flags: list[str]
) -> None:
    """The same losses to the last bit, with the same data and dropout, after three of six."""
    kept = ("--save", str(tmp_path))
    unbroken = train(name, *STEPS, *flags, *kept, "--save_every", "3")
    (tmp_path / "latest").write_text("step3", encoding="utf-8")
    resumed = train(name, *STEPS, *flags, *kept, "--resume")
    losses(unbroken)
    assert resumed.codes == [0, 0], resumed.text
    assert resumed.report["steps"] == [3, 6]
    expected: dict[str, Any] = unbroken.report["losses"]
    assert resumed.report["losses"] == {key: expected[key] for key in ("4", "5", "6")}


def test_another_model_and_data_set(start: Start) -> None:
    """One function is all that train.py needs of them."""
    ran = start(
        "--deepspeed_config",
        "configs/zero2_fp32.json",
        "--task",
        "classifier",
        "--n_layer",
        "1",
        "--n_embd",
        "4",
        "--steps",
        "3",
        "--torch_adam",
    )
    losses(ran)
    assert ran.report["parameters"] < 20_000
    assert ran.report["sample"]
