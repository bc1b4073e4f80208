"""A name that means several cards: which is shown, and the verdict on the others."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator import estimate
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.result import MemoryResult
from gpu_mem_calculator.estimates.verdict_words import verdict_line
from gpu_mem_calculator.runfile.config import GPUConfig
from gpu_mem_calculator.runfile.resolve.card_name import fast_section, named_card

TRAINED: dict[str, Any] = {
    "model": {"name": "llama3.2-3b"},
    "training": {
        "lora": {"r": 16},
        "quantization": "nf4",
        "seq_len": 4096,
        "activation_checkpointing": "full",
    },
}


def on(gpu: str, run: dict[str, Any] | None = None, **more: Any) -> MemoryResult:
    """The estimate of a run on a card."""
    return estimate({**(run or TRAINED), "hardware": {"gpu": gpu, **more}})


def served(name: str, length: int = 8192) -> dict[str, Any]:
    """A server of a model."""
    return {"model": {"name": name}, "inference": {"engine": "vllm", "max_seq_len": length}}


def test_the_other_card_is_answered_in_the_first_line() -> None:
    """8 GB: no; 12 GB: yes."""
    result = on("3060")
    assert result.verdict == "does_not_fit"
    assert [(one.gpu, one.verdict) for one in result.other_cards] == [("rtx-3060-12gb", "fits")]
    assert "assumed: RTX 3060 8GB (RTX 3060 12GB: fits)" in verdict_line(result)


@pytest.mark.parametrize("gpu", ["rtx-3060-8gb", "4090", "a100", "h100"])
def test_a_verdict_that_no_card_turns_names_none(gpu: str) -> None:
    """One card, or several on which the answer is the same."""
    result = on(gpu)
    assert not result.other_cards
    assert "(" not in verdict_line(result).partition("assumed: ")[2]


def test_a_size_beside_the_name_leaves_no_choice() -> None:
    """`gpu_memory_gb` tells the cards apart."""
    assert not on("3060", gpu_memory_gb=8).other_cards


def test_a_server_takes_the_card_on_sxm() -> None:
    """Its answer has seconds; the larger card turns the verdict."""
    result = on("a100", served("qwen3-32b"))
    assert [one.gpu for one in result.other_cards] == ["a100-80gb-pcie"]
    assert "assumed: A100 40GB SXM4 (A100 80GB PCIe: fits)" in verdict_line(result)
    found = full_estimate({**served("qwen3-8b"), "hardware": {"gpu": "h100"}})
    assert found.resolved.hardware.title == "NVIDIA H100 80GB SXM5"
    assert "'h100' taken as h100-80gb-sxm, as in servers" in found.result.assumed[-1]


def test_training_takes_the_least_memory() -> None:
    """Its answer is bytes alone."""
    found = full_estimate({**TRAINED, "hardware": {"gpu": "h100"}})
    assert found.resolved.hardware.title == "NVIDIA H100 80GB PCIe"


def test_the_smaller_of_two_can_fail_where_the_shown_one_fits() -> None:
    """The card on SXM is shown; one without SXM that has less memory is answered, too."""
    result = on("t4|a100-80gb-sxm", served("qwen3-14b"))
    assert result.verdict == "fits"
    assert [(one.gpu, one.verdict) for one in result.other_cards] == [("t4", "does_not_fit")]


def test_cards_of_which_one_is_used() -> None:
    """Names joined by | mean the cards of all of them; each has to be known."""
    row = named_card(GPUConfig(gpu="a100|l4"))
    assert row is not None
    assert row[0]["name"] == "l4"
    with pytest.raises(ValueError, match=r"hardware\.gpu='a100\|x9000' is not a known card"):
        named_card(GPUConfig(gpu="a100|x9000"))


def test_a_plan_is_made_for_one_card() -> None:
    """That on SXM; a name that means one card stays as it was typed."""
    assert fast_section({"gpu": "h100", "num_gpus": 8}) == {"gpu": "h100-80gb-sxm", "num_gpus": 8}
    assert fast_section({"gpu": "4090"}) == {"gpu": "4090"}
    assert fast_section({"gpu_memory_gb": 80}) == {"gpu_memory_gb": 80}
