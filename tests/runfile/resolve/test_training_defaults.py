"""A key that is left out has one default, whichever way the question is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator import estimate
from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.runfile.config import (
    EngineConfig,
    GPUConfig,
    LoraConfig,
    ModelConfig,
    TrainingConfig,
)
from gpu_mem_calculator.web.worker import calculate

FIGURES = ("allocated_bytes", "reserved_bytes", "needs_bytes", "device_bytes", "startup_bytes")
STATE = Path(__file__).parents[3] / "src/gpu_mem_calculator/web/static/js/state.js"
# model, card, and the training section: nothing says sequence, batch or precision
QUESTIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "long model": ("llama3.2-1b", "h100-80gb-sxm", {}),
    "short model": ("gpt2", "4090", {}),
    "no bf16 units": ("gpt2", "t4", {}),
    "adapters": ("llama3.2-1b", "4090", {"lora": {"r": 16}}),
    "adapters without bf16 units": ("llama3.2-1b", "v100-32gb", {"lora": {"r": 16}}),
    "a quantized base": ("llama3.2-1b", "4090", {"lora": {"r": 16}, "quantization": "nf4"}),
}


def _figures(result: Any) -> dict[str, int]:
    get = result.get if isinstance(result, dict) else lambda key: getattr(result, key)
    return {key: get(key) for key in FIGURES}


def _command(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, int]:
    assert main([*words, "--format", "json"]) == 0
    return _figures(json.loads(capsys.readouterr().out))


def _settings(training: dict[str, Any]) -> list[str]:
    flat = {k: v for k, v in training.items() if k != "lora"}
    flat |= {"lora.r": training["lora"]["r"]} if "lora" in training else {}
    return [word for k, v in flat.items() for word in ("--set", f"training.{k}={v}")]


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_door_gives_the_same_bytes(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`quick`, `calculate`, a dict, objects, and the service, to the last byte."""
    model, card, training = QUESTIONS[name]
    file = {"model": {"name": model}, "training": training, "hardware": {"gpu": card}}
    path = tmp_path / "run.json"
    path.write_text(json.dumps(file))
    options = ["--gpu", card, *_settings(training)]
    section = {**training, "lora": LoraConfig(r=16)} if "lora" in training else training
    objects = (ModelConfig(name=model), TrainingConfig(**section), GPUConfig(gpu=card))
    answers = {
        "quick": _command(capsys, "quick", model, *options),
        "calculate --preset": _command(capsys, "calculate", "--preset", model, *options),
        "calculate FILE": _command(capsys, "calculate", str(path)),
        "a dict": _figures(estimate(file)),
        "objects": _figures(estimate(*objects)),
        "the service": _figures(calculate(file, {})),
    }
    assert len({tuple(one.items()) for one in answers.values()}) == 1, answers


@pytest.mark.parametrize("recipe", ["--lora", "--qlora"])
def test_a_recipe_is_the_same_for_both_commands(
    recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`calculate --preset` and `quick` mean the same by --lora and --qlora."""
    quick = _command(capsys, "quick", "llama3.2-1b", recipe, "--gpu", "4090")
    words = ("calculate", "--preset", "llama3.2-1b", recipe, "--gpu", "4090")
    assert _command(capsys, *words) == quick


def test_the_page_starts_with_the_same_defaults() -> None:
    """Its first form sends neither a sequence nor a batch: those of a run without them are named as
    assumed.
    """
    assert 'start: { engine: { type: "fsdp" } },' in STATE.read_text()
    file: dict[str, Any] = {"model": {"name": "llama3-8b"}, "engine": {"type": "fsdp"}}
    file["hardware"] = {"gpu": "h100-80gb-sxm", "num_gpus": 8}
    sections = (ModelConfig(name="llama3-8b"), EngineConfig(type="fsdp"))
    sections += (GPUConfig(gpu="h100-80gb-sxm", num_gpus=8),)
    assert _figures(estimate(file)) == _figures(estimate(*sections))
    assert any("training.seq_len" in one for one in estimate(file).assumed)


@pytest.mark.parametrize(
    ("section", "seq", "why"),
    [
        ({"name": "llama3.1-8b"}, 4096, "not the model's 131,072"),
        ({"name": "llama3.1-8b", "max_seq_len": 8192}, 8192, "the file's max_seq_len"),
        ({"name": "llama3.1-8b", "max_seq_len": 512}, 512, "the file's max_seq_len"),
        ({"name": "gpt2"}, 1024, "the model's longest"),
    ],
)
def test_the_sequence_is_named_as_assumed(section: dict[str, Any], seq: int, why: str) -> None:
    """What the file writes, else 4,096 tokens or the model's own."""
    result = estimate({"model": section})
    assert f"sequence of {seq:,} tokens (training.seq_len), {why}" in result.assumed
    given = estimate({"model": section, "training": {"seq_len": seq}})
    assert given.allocated_bytes == result.allocated_bytes
    assert not [one for one in given.assumed if "training.seq_len" in one]


def test_a_card_without_bf16_units_takes_fp16() -> None:
    """It is said; a precision that is given stays."""
    file = {"model": {"name": "gpt2"}, "hardware": {"gpu": "t4"}}
    assert "training.precision=fp16_mixed, as NVIDIA T4 has no bf16 units" in estimate(file).assumed
    given = estimate({**file, "training": {"dtype": "bf16"}})
    assert not [one for one in given.assumed if "bf16 units" in one]


def test_adapters_under_fsdp_1_can_only_take_less() -> None:
    """The estimate is known to be too high: what fits still fits, what is short cannot be told."""
    training = {"lora": {"r": 8}, "precision": "bf16_mixed"}
    engine = {"type": "fsdp", "fsdp_version": 1, "use_orig_params": True}
    file = {"model": {"name": "llama3.2-1b"}, "training": training, "engine": engine}
    roomy = estimate({**file, "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 2}})
    (limit,) = (one for one in roomy.limits if one.key == "adapters under FSDP 1")
    assert (limit.adds_bytes, limit.saves_bytes is not None) == (0, True)
    assert roomy.verdict == "fits"
    newer = estimate({**file, "engine": {"type": "fsdp"}, "hardware": {"num_gpus": 2}})
    assert not [one for one in newer.limits if "FSDP" in one.key]
