"""A program at its own release: the names and defaults that this release has."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import Estimate, full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.releases.apply import with_names_at_release

TRAINER, SFT = "transformers.Trainer", "trl.SFTTrainer"


def estimated(tool: str, version: str | None, **args: Any) -> Estimate:
    """The estimate of a program of a small model."""
    program = {"tool": tool, "args": args, "data": {"seq_len": 512}}
    program |= {"version": version} if version else {}
    return full_estimate(
        {"model": {"name": "qwen2.5-0.5b"}, "program": program, "hardware": {"gpu": "h200"}}
    )


def meant(tool: str, version: str | None, **args: Any) -> dict[str, Any]:
    """The `training` keys that a program means."""
    found: dict[str, Any] = estimated(tool, version, **args).result.run["training"]
    return found


def test_transformers_4_loads_weights_in_fp32() -> None:
    """transformers 5 loads them as they are stored, in 16 bits."""
    assert meant(TRAINER, "4.57.1", bf16=True)["precision"] == "bf16_mixed"
    assert meant(TRAINER, "5.17.0", bf16=True)["precision"] == "bf16_pure"


def test_the_default_optimizer_is_that_of_the_release_and_of_torch() -> None:
    """adamw_torch; since 4.54 adamw_torch_fused, where torch is 2.8 or newer."""
    assert "optimizer_implementation" not in meant(TRAINER, "4.40.0", bf16=True)
    assert "optimizer_implementation" not in meant(TRAINER, "4.54.0", bf16=True)  # torch 2.7
    assert meant(TRAINER, "4.57.1", bf16=True)["optimizer_implementation"] == "fused"


def test_sft_has_the_defaults_of_its_release() -> None:
    """Recompute since 0.22, bf16 since 0.19, a loss in tiles since 1.6, 1,024 tokens at most."""
    keys = ("activation_checkpointing", "precision", "loss")
    assert [meant(SFT, None).get(key) for key in keys] == ["full", "bf16_mixed", "chunked"]
    assert [meant(SFT, "1.5.1").get(key) for key in keys] == ["full", "bf16_mixed", None]
    assert [meant(SFT, "0.19.1").get(key) for key in keys] == [None, "bf16_mixed", None]
    assert [meant(SFT, "0.12.2").get(key) for key in keys] == [None, "fp32", None]
    assert meant(SFT, "0.12.2", max_seq_length=256)["seq_len"] == 256


def test_packed_rows_of_a_release_with_whole_logits() -> None:
    """Tokens without a label have logits, too."""
    assert "labelled_tokens" not in meant(SFT, "0.24.0", packing=True, max_length=256)
    assert meant(SFT, "1.16.0", packing=True, max_length=256)["labelled_tokens"]


def test_what_an_older_release_does_beside_the_loss_is_a_bound() -> None:
    """Copies of the logits for metrics can turn the verdict."""
    assert not estimated(SFT, None).result.limits
    (limit,) = estimated(SFT, "0.24.0").result.limits
    assert limit.adds_bytes == 4 * 8 * 512 * 151936
    (limit,) = estimated("trl.RewardTrainer", "0.24.0").result.limits
    assert "TRL 0.24.0" in str(limit)


def test_a_name_of_another_release_is_said() -> None:
    """One that the release does not have yet is a problem; one that has another name then, or now,
    a note: readers of scripts and commands give the new ones.
    """
    with pytest.raises(InputError, match=r"use_liger_kernel is not an .* came with 4\.45\.0"):
        estimated(TRAINER, "4.40.0", use_liger_kernel=True)
    found = estimated(TRAINER, "4.40.0", evaluation_strategy="no")
    assert any("called eval_strategy in newer" in one for one in found.result.warnings)
    found = estimated(TRAINER, "4.40.0", eval_strategy="no")
    assert f"eval_strategy is evaluation_strategy in {TRAINER} 4.40.0" in found.result.warnings
    assert meant(SFT, "0.12.2", max_length=256)["seq_len"] == 256
    with pytest.raises(InputError, match="did you mean"):
        estimated(TRAINER, "4.40.0", evaluation_strat="no")


def test_part_of_a_release_means_its_newest() -> None:
    """4.57 is 4.57.6."""
    found = estimated(TRAINER, "4.57").result.assumed
    assert any("transformers.Trainer 4.57.6's defaults" in one for one in found)


MEASURED = [
    json.loads(line)
    for line in (Path(__file__).parent / "older_releases.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: str(row["id"]))
def test_programs_of_older_releases_take_what_was_measured(row: dict[str, Any]) -> None:
    """Within 0.002 % on an H200; where metrics copy logits, at most what their bound adds more.

    All were predicted before they were run.
    """
    result = full_estimate(row["config"]).result
    measured = row["measured"]["allocated_bytes"]
    assert result.allocated_bytes >= 0.99998 * measured or result.limits
    assert result.allocated_bytes <= 1.00002 * measured
    adds = sum(limit.adds_bytes or 0 for limit in result.limits)
    assert result.allocated_bytes + adds >= 0.99998 * measured


def test_names_that_a_reader_writes_are_those_of_the_release() -> None:
    """A name that the user wrote stays, and is refused where the release does not have it."""
    run: dict[str, Any] = {"releases": {"transformers": "4.39.2"}}
    run["program"] = {"tool": TRAINER, "args": {"eval_strategy": "no"}}
    renamed = with_names_at_release(run, ())["program"]["args"]
    assert renamed == {"evaluation_strategy": "no"}
    assert with_names_at_release(run, {"eval_strategy"}) == run
