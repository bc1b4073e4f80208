"""Other tools with the same settings: written, read back, and estimated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_mem_calculator.advice.training.other_tools import other_tools
from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.verdict_words import total_bytes
from gpu_mem_calculator.runfile.keys.recipes import recipe_settings
from gpu_mem_calculator.runfile.read import with_settings


def test_a_tool_needs_what_check_says_of_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`quick --qlora --export axolotl`, then `check`, is the figure of the line."""
    monkeypatch.chdir(tmp_path)
    settings = [f"{key}={str(value).lower()}" for key, value in recipe_settings("qlora").items()]
    run = {"model": {"name": "llama3.2-1b"}, "hardware": {"gpu": "4090"}}
    estimate = full_estimate(with_settings(run, settings))
    found = {one.title: one.total_bytes for one in other_tools(estimate)}
    assert list(found) == ["TRL", "LLaMA-Factory", "Axolotl"]
    assert found["TRL"] < found["LLaMA-Factory"] < total_bytes(estimate.result)
    words = ["quick", "llama3.2-1b", "--qlora", "--gpu", "4090"]
    assert main([*words, "--export", "axolotl", "--output", "axolotl.yaml"]) == 0
    capsys.readouterr()
    assert main(["check", "--gpu", "4090", "--format", "json", "axolotl.yaml"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    parts = ("needs_bytes", "margin_bytes", "outside_torch_bytes")
    assert sum(result[part] for part in parts) == found["Axolotl"]


@pytest.mark.parametrize("command", [("quick",), ("calculate", "--preset")])
def test_the_answer_says_whose_recipe_it_is(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """In the short answer, which stays on one screen, in the long one and as data."""
    words = [*command, "llama3.2-1b", "--qlora", "--gpu", "4090"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "as transformers.Trainer with PEFT's prepare_model_for_kbit_training; TRL 2." in out
    assert len(out.splitlines()) <= 24
    assert main([*words, "--long"]) == 0
    assert "docs/qlora.md" in capsys.readouterr().out
    assert main([*words, "--format", "json"]) == 0
    assert any("TRL 2." in one for one in json.loads(capsys.readouterr().out)["notes"])
    assert main(["quick", "llama3.2-1b", "--gpu", "4090"]) == 0
    assert "docs/qlora.md" not in capsys.readouterr().out


def test_experts_that_are_not_quantized_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """On the first screen: 125 GiB for a model that has 17 GiB in 4 bits."""
    assert main(["quick", "Qwen/Qwen3-30B-A3B", "--qlora", "--gpu", "4090"]) == 0
    out = capsys.readouterr().out
    assert "experts (29.0 B) stay unquantized" in out
    assert "PEFT casts them to fp32" in " ".join(out.split())
    assert "quantize_moe_experts and Unsloth quantize them" in " ".join(out.split())
    assert len(out.splitlines()) <= 24
    assert main(["quick", "Qwen/Qwen3-30B-A3B", "--lora", "--gpu", "h200"]) == 0
    assert "unquantized" not in capsys.readouterr().out
