"""Command, Python, page and REST give one verdict and the same figures, also near the limit."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_mem_calculator import estimate
from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.estimates.calculator import verdict
from gpu_mem_calculator.estimates.result import MemoryResult
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.web.worker import reply_or_refusal
from gpu_mem_calculator.web.worker_messages import TaskRequest
from tests.corpus import sampled
from tests.golden.stored_runs import drawn_runs

RUNS, SEED = 40, 17
MODELS = ("gpt2", "smollm2-135m", "pythia-70m", "pythia-160m", "opt-125m", "gemma3-270m")
ENGINES: tuple[dict[str, Any], ...] = (
    {"type": "pytorch_ddp"},
    {"type": "fsdp"},
    {"type": "fsdp", "sharding_strategy": "shard_grad_op"},
    *({"type": "deepspeed", "zero_stage": stage} for stage in range(4)),
    {"type": "megatron_lm"},
)
# What a card has beyond what the run needs: a share of that, and margins.
CARDS = ((-0.01, 0), (0.003, 0), (0, 1), (0.05, 0), (1, 0))
FIGURES = [
    name
    for name in MemoryResult.__struct_fields__
    if name.endswith(("bytes", "gb", "percent")) or name in ("verdict", "fits_on_gpu", "warnings")
]


def drawn() -> list[dict[str, Any]]:
    """Runs of small models, drawn from a seed."""
    draw = random.Random(SEED)
    return [_inference(draw) if draw.random() < 0.2 else _training(draw) for _ in range(RUNS)]


def _training(draw: random.Random) -> dict[str, Any]:
    engine = dict(draw.choice(ENGINES))
    training: dict[str, Any] = {
        "batch_size": draw.choice([1, 2, 4]),
        "seq_len": draw.choice([64, 128, 256]),
        "gradient_accumulation_steps": draw.choice([1, 1, 2, 4]),
        "activation_checkpointing": draw.choice(["none", "none", "full"]),
    }
    models = ("gpt2", "smollm2-135m") if engine["type"] == "megatron_lm" else MODELS
    if engine["type"] != "megatron_lm" and draw.random() < 0.3:
        training["lora"] = {"r": 16}
    return {
        "model": {"name": draw.choice(models)},
        "engine": engine,
        "training": training,
        "hardware": {"num_gpus": draw.choice([1, 2, 8])},
    }


def _inference(draw: random.Random) -> dict[str, Any]:
    inference = {
        "engine": "transformers",
        "batch_size": draw.choice([1, 8]),
        "prompt_len": draw.choice([64, 200]),
        "new_tokens": draw.choice([0, 8]),
    }
    return {"model": {"name": draw.choice(MODELS)}, "inference": inference}


@cache
def _on_large_card(index: int) -> MemoryResult:
    return estimate(drawn()[index])


def _question(index: int, share: float, margins: int) -> dict[str, Any]:
    """A run on a card that has so much beyond what the run needs."""
    run, result = drawn()[index], _on_large_card(index)
    assert result.needs_bytes is not None
    assert result.margin_bytes is not None
    has = int(result.needs_bytes * (1 + share)) + margins * result.margin_bytes
    hardware = run.get("hardware", {}) | {"gpu_memory_bytes": has + result.outside_torch_bytes}
    return {**run, "hardware": hardware}


QUESTIONS = [(index, share, margins) for share, margins in CARDS for index in range(RUNS)]
QUICK = [(index, *card) for index, card in zip((0, 20, 5, 29, 39), CARDS, strict=True)]


@pytest.mark.parametrize(
    ("index", "share", "margins"),
    [pytest.param(*one, marks=() if one in QUICK else pytest.mark.proof) for one in QUESTIONS],
)
def test_every_surface_gives_the_same_answer(
    index: int, share: float, margins: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Verdict, headroom and every figure of the result."""
    _agree(_question(index, share, margins), tmp_path, capsys)


@pytest.mark.parametrize("run", sampled(drawn_runs(60), 4))
def test_every_surface_answers_stored_set_ups_alike(
    run: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The set-ups that the page without a server answers as the service does, or refuses."""
    try:
        _agree(run, tmp_path, capsys)
    except InputError as refused:
        reply = reply_or_refusal(TaskRequest("calculate", json.dumps(run).encode(), {}))
        assert json.loads(reply.body)["problems"] == refused.problems
        (tmp_path / "run.json").write_text(json.dumps(run))
        assert main(["calculate", "--config", str(tmp_path / "run.json")]) == 2
        said = capsys.readouterr().err
        assert all(problem in said for problem in refused.problems)


def _agree(run: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The figures of one run are the same in Python, the command, REST and the page."""
    python = msgspec.to_builtins(estimate(run))
    look = _rest("look", run)
    answers = [_rest("calculate", run), _rest("replay", run), look["result"]]
    answers.append(_command(run, folder, capsys))
    if run.get("engine", {}).get("type") == "deepspeed" and "lora" not in run["training"]:
        answers.append(_rest("export", run, format="deepspeed")["memory_result"])
    if "inference" in run:
        answers.append(_rest("infer", run))
    for found in answers:
        assert {key: found[key] for key in FIGURES} == {key: python[key] for key in FIGURES}
    assert verdict(run) == python["verdict"]
    assert python["verdict"].replace("_", " ") in look["parts"]["verdict"]
    fits = python["verdict"] == "fits"
    assert fits == python["fits_on_gpu"] == (not python["limits"] and python["headroom_bytes"] >= 0)


def _rest(task: str, run: dict[str, Any], **options: str) -> Any:
    options |= {"replay": "true"} if task == "look" else {}
    return json.loads(reply_or_refusal(TaskRequest(task, json.dumps(run).encode(), options)).body)


def _command(run: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    path = folder / "run.json"
    path.write_text(json.dumps(run))
    code = main(["calculate", "--config", str(path), "--format", "json", "--check"])
    found = json.loads(capsys.readouterr().out)
    assert code == {"fits": 0, "does_not_fit": 1, "cannot_tell": 3}[found["verdict"]]
    return found


def test_the_questions_have_every_answer() -> None:
    """Cards that are too small, those within the margin, and larger ones."""
    words = {verdict(_question(*question)) for question in QUESTIONS[:: RUNS // 2]}
    assert words == {"fits", "cannot_tell", "does_not_fit"}
