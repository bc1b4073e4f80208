"""Answers of random questions: on one screen, and never against their own JSON."""

from __future__ import annotations

import json
import random
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

import pytest

from gpu_mem_calculator import catalog
from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.ledger.remember import forget
from gpu_mem_calculator.ledger.units import gib
from tests.cli.conftest import rows

SEED, QUESTIONS, SAMPLE = 19, 500, 14
SMALL = 2e9  # parameters
OPTIONS = (
    "",
    "--seq-len 1k",
    "--seq-len 32k",
    "--batch-size 8",
    "--lora",
    "--qlora",
    "--checkpointing full",
    "--optimizer adamw_8bit",
    "--optimizer sgd",
    "--precision fp32",
    "--grad-accum 4",
    "--gpus 2",
    "--gpus 8 --engine fsdp",
    "--gpus 8 --zero 1",
    "--gpus 8 --zero 2 --offload cpu",
    "--gpus 16 --zero 3",
    "--gpus 8 --engine megatron",
    "--gpus 64 --engine megatron",
)
SERVING_OPTIONS = (
    "",
    "--context 4k",
    "--context 32k --users 16",
    "--gpus 2",
    "--gpus 8",
    "--gpus 8 --users 100",
    "--quantization fp8",
    "--kv-cache-dtype fp8",
    "--engine sglang",
    "--engine tgi --gpus 4",
    "--engine tensorrt_llm --gpus 8",
    "--engine llamacpp",
    "--engine llamacpp --context 8k",
    "--engine transformers",
    "--engine transformers --users 8 --context 2k",
)
COMMANDS = {"quick": OPTIONS, "calculate --preset": OPTIONS, "infer": SERVING_OPTIONS}


def questions() -> list[str]:
    """The same commands every time."""
    draw = random.Random(SEED)
    models = list(catalog.names("index"))
    cards = catalog.names("gpus")
    found = []
    for _ in range(QUESTIONS):
        command = draw.choice(list(COMMANDS))
        words = f"{command} {draw.choice(models)} --gpu {draw.choice(cards)}"
        found.append(f"{words} {draw.choice(COMMANDS[command])}".rstrip())
    return found


def sample() -> list[str]:
    """The first questions about small models, which are answered quickly."""
    small = {r["name"] for r in catalog.rows("index") if r["num_parameters"] < SMALL}
    about_small = [words for words in questions() if small & set(words.split())]
    return about_small[:SAMPLE]


@pytest.fixture(autouse=True)
def _no_caches() -> Iterator[None]:
    """Each question begins without the ledgers and streams of those before it."""
    yield
    forget()


def answer(words: str, *more: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*shlex.split(words), *more])
    return code, out.getvalue(), err.getvalue()


def check(words: str) -> None:
    """One question: its text is short, and says what its JSON says; or it is refused as JSON is."""
    code, text, error = answer(words)
    data_code, data_text, _ = answer(words, "--format", "json")
    assert code == data_code
    if code:
        assert code == 2
        assert error.count("\n") <= 3
        return
    lines, data = text.splitlines(), json.loads(data_text)
    assert rows(text) <= 24
    assert max(map(len, lines[:-1])) <= 80
    assert lines[-1] == data["summary"]
    if words.startswith("infer"):
        _check_server(text, data)
    else:
        _check_figures(text, data)
        _check_remedies(text, data)


def _check_server(text: str, data: dict[str, Any]) -> None:
    """The verdict and its sign, the total, whole users, and remedies where it does not fit."""
    verdict = re.match(r"(fits|cannot tell|does not fit|will not start): ", text)
    assert verdict is not None
    assert verdict[1].replace(" ", "_") in (data["verdict"], "will_not_start")
    assert (verdict[1] == "fits") == data["fits_on_gpu"]
    room, host = data["headroom_bytes"] >= 0, data["host"]
    assert room == data["fits_on_gpu"] or (room and host["verdict"] != "fits")
    total = re.search(r"^  total +([\d,.]+)(  |$)", text, re.M)
    assert total is not None
    assert total[1] == f"{data['total_memory_per_gpu_gb']:,.2f}"
    users = {row["context"]: row["users"] for row in data["users"]}
    table = re.findall(r" ([\d,]+) {3,}([\d,]+)$", text, re.M)
    for context, count in ((int(a.replace(",", "")), int(b.replace(",", ""))) for a, b in table):
        assert users.get(context, count) == count
    if not data["fits_on_gpu"] and not (room and data["verdict"] == "cannot_tell"):
        assert data["remedies"]


def _check_figures(text: str, data: dict[str, Any]) -> None:
    """The verdict and its sign, the total, the longest sequence and where it dies."""
    verdict = data["verdict"]
    words = verdict.replace("_", " ")
    pool = (data.get("host") or {}).get("shared")  # which the first figure is then of
    assert text.startswith(f"{words}: " if pool else f"{words}: needs ")
    assert data["fits_on_gpu"] == (verdict == "fits")
    spare = re.search(r"([<\d.,]+) GiB\s(short|to\sspare)", text)
    if spare:
        assert (spare[2] == "short") == (data["headroom_bytes"] < 0)
    total = next(line for line in text.splitlines() if line.startswith("total "))
    assert f" {data['total_memory_per_gpu_gb']:,.2f}  GiB needed" in total
    parts = re.findall(r"^[a-zA-Z, ]{20,21}.* ([\d,]+\.\d\d)  ", text, re.M)
    figures = [float(figure.replace(",", "")) for figure in parts[:-1]]
    assert sum(figures) == pytest.approx(data["total_memory_per_gpu_gb"], abs=0.006 * len(figures))
    longest = data["longest_sequence"]
    seq = data["run"].get("training", {}).get("seq_len", 0)
    if longest is not None:
        assert f"about {longest:,} tokens" in text or seq == 0
    assert gib(data["gpu_memory_bytes"]) in text
    assert ("out of memory" in text or " dies in " in text) == (data["fails_at"] is not None)


def _check_remedies(text: str, data: dict[str, Any]) -> None:
    """A run that does not fit has some, each fits, and the text shows no other.

    A screen that is full of notes names --long in their place.
    """
    assert bool(data["remedies"]) == (data["headroom_bytes"] < 0)
    shown = re.search(r"^(may fit|fits) with ", text, re.M) is not None
    assert shown <= bool(data["remedies"])
    assert shown or not data["remedies"] or "note: see --long" in text
    for remedy in data["remedies"]:
        if not (data.get("host") or {}).get("shared"):  # what the system has of it is open
            assert remedy["verdict"] == ("cannot_tell" if data["limits"] else "fits")
        assert (
            remedy["needs_bytes"] <= data["gpu_memory_bytes"]
            or "GPU" in remedy["cost"]
            or ("card" in remedy["cost"])
        )
    titles = [", ".join(remedy["changes"]) for remedy in data["remedies"]]
    unwrapped = re.sub(r"\n {10}(?: {3})?(?=\S)", " ", text)
    for shown in re.findall(r"^(?:may fit|fits) with ([^:…(]+)", unwrapped, re.M):
        assert any(title.startswith(shown.strip()) for title in titles)


@pytest.mark.parametrize("words", sample())
def test_an_answer_is_on_one_screen_and_agrees_with_its_json(words: str) -> None:
    """A sample of the questions."""
    check(words)


@pytest.mark.proof
@pytest.mark.parametrize("words", questions())
def test_every_answer_is_on_one_screen_and_agrees_with_its_json(words: str) -> None:
    """All of them."""
    check(words)
