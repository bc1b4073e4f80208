"""Cards that are not NVIDIA's have their own words, and a warning that figures are NVIDIA's."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpu_mem_calculator import catalog
from gpu_mem_calculator.advice.serving.answers import answers
from gpu_mem_calculator.advice.training.answers import TrainingAnswers
from gpu_mem_calculator.estimates.calculator import Estimate, full_estimate
from gpu_mem_calculator.estimates.explain.explain import explain
from gpu_mem_calculator.estimates.serving.infer_command import infer_command
from gpu_mem_calculator.report.html import html_report
from gpu_mem_calculator.report.lines import plain
from gpu_mem_calculator.report.remedy_lines import Commands
from gpu_mem_calculator.report.serving.long import long_report
from gpu_mem_calculator.report.text import text_report
from gpu_mem_calculator.run.cuda.runtimes import CUDA, WORDS, in_words_of, runtime_of
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.serving import server_names, server_row
from gpu_mem_calculator.training.engines import engine_rows
from tests.conftest import SMALL_LLAMA

NVIDIAS = re.compile(r"\bCUDA|nvidia-smi|\bNCCL|cuBLAS|cuDNN")
CARDS = {"mi300x": "rocm-smi", "max-1550": "xpu-smi", "gaudi3": "hl-smi", "tpu-v5p": "tpu-info"}
WARNING = "NVIDIA's figures, taken for this card"


def trained(card: str, engine: str = "fsdp") -> Estimate:
    """A small training run on two cards."""
    run = {
        "model": {"config": SMALL_LLAMA},
        "training": {"seq_len": 64},
        "engine": {"type": engine},
        "hardware": {"gpu": card, "num_gpus": 2},
    }
    return full_estimate(run)


def served(card: str, engine: str, **keys: Any) -> Estimate:
    """A small server."""
    run = {
        "model": {"config": SMALL_LLAMA},
        "inference": {"engine": engine, **keys},
        "hardware": {"gpu": card},
    }
    return full_estimate(run)


@pytest.mark.parametrize("card", CARDS)
def test_training_has_the_words_of_the_card(card: str) -> None:
    """In the table, in the ledger and in the explanation; sources say what was measured."""
    estimate = trained(card)
    text = plain(list(text_report(estimate, TrainingAnswers(), Commands(["x"], ["x"]))))
    assert not NVIDIAS.findall(text)
    assert CARDS[card] in text
    names = [entry.name for entry in estimate.ledger.entries]
    names += [entry.name for entry in explain(estimate).entries]
    assert not NVIDIAS.findall(" ".join(names))
    page = re.sub(r'<td class="source">.*?</td>', "", html_report(estimate))
    assert CARDS[card] in page
    assert any(WARNING in one for one in estimate.result.warnings)


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tgi"])
def test_a_server_has_the_words_of_the_card(card: str, engine: str) -> None:
    """Items, notes and the report."""
    estimate = served(card, engine)
    text = plain(list(long_report(estimate, answers(estimate), infer_command(estimate.result.run))))
    text = text.partition("start it")[0]
    assert not NVIDIAS.findall(text)
    assert CARDS[card] in text
    assert not NVIDIAS.findall(" ".join(item.name for item in estimate.served[0].items))


def test_the_same_bytes_as_on_an_nvidia_card() -> None:
    """Words change, figures do not: those of an H200 are taken."""
    theirs, ours = trained("mi300x").result, trained("h200").result
    assert theirs.allocated_bytes == ours.allocated_bytes
    assert theirs.outside_torch_bytes == ours.outside_torch_bytes
    assert not any(WARNING in one for one in ours.warnings)


@pytest.mark.parametrize(
    ("engine", "card"),
    [("tensorrt_llm", "mi300x"), ("llamacpp", "tpu-v5p"), ("llamacpp", "gaudi3")],
)
def test_a_server_that_does_not_run_there_says_so(engine: str, card: str) -> None:
    """TensorRT-LLM is for NVIDIA cards; llama.cpp has HIP and SYCL."""
    with pytest.raises(InputError, match=r"does not run on .*; use 'vllm', or another card"):
        served(card, engine)


@pytest.mark.parametrize("engine", ["deepspeed", "megatron_lm"])
def test_an_engine_that_does_not_run_there_says_so(engine: str) -> None:
    """Neither has code for a TPU."""
    with pytest.raises(InputError, match=r"does not run on Google TPU v5p .*; use 'fsdp'"):
        trained("tpu-v5p", engine)


def test_every_card_has_a_runtime_with_words() -> None:
    """Every vendor of the catalogue is known, and words leave nothing of NVIDIA's."""
    for row in catalog.rows("gpus"):
        assert runtime_of(row["vendor"], row["architecture"]) in WORDS
    sample = "CUDA context, cuBLAS handles, cuBLASLt, cuDNN attention, NCCL, nvidia-smi, CUDA's"
    for runtime in set(WORDS) - {CUDA}:
        assert not NVIDIAS.findall(in_words_of(runtime, sample))
    rows = (*engine_rows().values(), *map(server_row, server_names()))
    assert all(set(row.runtimes) <= set(WORDS) for row in rows)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tgi", "tensorrt_llm"])
def test_a_mac_is_served_by_llamacpp(engine: str) -> None:
    """The other servers have no kernels for its GPU."""
    with pytest.raises(InputError, match=r"does not run on Apple M4 Max .*; use 'llamacpp'"):
        served("apple-m4-max-128gb", engine)
    assert not NVIDIAS.findall(" ".join(one for one in served_items("apple-m4-max-128gb")))


def served_items(card: str) -> list[str]:
    """The names of what llama.cpp allocates on a card."""
    return [item.name for item in served(card, "llamacpp").served[0].items]
