"""The keys of the loss and of Liger's kernels: what they mean, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.rules import _like_llama
from tests.conftest import SMALL_LLAMA, small_run

BASE = ("rope", "rms_norm", "swiglu", "fused_linear_cross_entropy")


def run(engine: str = "pytorch_ddp", family: str = "llama", **sections: Any) -> Run:
    """A small run on one GPU, or on as many as the engine has by default."""
    data = small_run(engine, **sections)
    data["model"] = {"config": {**SMALL_LLAMA, "model_type": family}}
    return resolve(read(data).file).run


@pytest.mark.parametrize(
    ("training", "loss", "liger"),
    [
        ({}, "full", ()),
        ({"loss": "full_upcast"}, "full", ()),
        ({"liger": False}, "full", ()),
        ({"liger": True}, "liger_fused", BASE),
        ({"loss": "liger_fused"}, "liger_fused", BASE[-1:]),
        ({"loss": "liger_fused", "liger": True}, "liger_fused", BASE),
        ({"loss": "liger_fused", "liger": ["rope"]}, "liger_fused", ("rope", BASE[-1])),
        ({"liger": ["cross_entropy"]}, "liger", ("cross_entropy",)),
        ({"liger": ["rms_norm"], "loss": "cut"}, "cut", ("rms_norm",)),
    ],
)
def test_what_the_keys_mean(training: dict[str, Any], loss: str, liger: tuple[str, ...]) -> None:
    """Liger's loss is one of its kernels."""
    found = run(training=training)
    assert (found.loss, found.liger) == (loss, liger)


def test_a_family_has_its_own_kernels() -> None:
    """Granite's logits are scaled, so Liger computes them whole; Gemma has another gate."""
    assert run(family="granite", training={"liger": True}).loss == "liger"
    assert "geglu" in run(family="gemma2", training={"liger": True}).liger


def test_the_chunk_has_a_default() -> None:
    """TRL's; other losses have none."""
    assert run(training={"loss": "chunked"}).loss_chunk == 32_768
    assert run(training={"loss": "chunked", "loss_chunk_size": 100}).loss_chunk == 100
    assert run(training={"loss": "cut"}).loss_chunk == 0


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"training": {"liger": ["rop"]}}, "'rop' is not a kernel; did you mean 'rope'"),
    ({"training": {"liger": ["geglu"]}}, "no working geglu for llama; choose from rope"),
    ({"training": {"liger": True}, "family": "gpt2"}, "no kernels for gpt2 models"),
    ({"training": {"loss": "liger_fused"}, "family": "gpt2"}, "no kernels for gpt2 models"),
    ({"training": {"loss": "liger_fused"}, "family": "granite"}, "no working fused_linear"),
    ({"training": {"loss": "cut"}, "family": "granite"}, "does not scale logits as granite does"),
    ({"training": {"loss": "cut", "liger": True}}, "contradicts training.liger"),
    ({"training": {"liger": ["cross_entropy", BASE[-1]]}}, "both compute the loss"),
    ({"training": {"loss_chunk_size": 5}}, "needs loss 'chunked'"),
    ({"training": {"labelled_tokens": 5}}, "needs loss 'chunked', which skips"),
    ({"training": {"labelled_tokens": 10**6, "loss": "chunked"}}, "is more than a sequence has"),
    ({"training": {"label_smoothing": 0.1, "loss": "cut"}}, "use loss 'full'"),
    ({"training": {"loss": "te_fused"}}, "is Megatron's"),
    ({"training": {"loss": "reward", "batch_size": 3}}, "use an even number"),
    ({"training": {"loss": "reward"}, "family": "granite"}, "no sequence classifier"),
    ({"training": {"loss": "cut", "precision": "fp32"}}, "has no fp32 kernel"),
    (
        {"training": {"loss": "full_no_upcast", "precision": "fp32"}},
        "is 'full' in precision 'fp32'; use 'full'",
    ),
    ({"engine": "deepspeed", "training": {"loss": "cut"}, "options": 3}, "or engine.zero_stage 2"),
    (
        {"engine": "megatron_lm", "training": {"liger": True}},
        "does not run transformers' code; leave it out, or use engine",
    ),
    ({"engine": "megatron_lm", "training": {"loss": "cut"}}, "training.loss='cut'"),
    (
        {
            "engine": "deepspeed",
            "training": {"liger": ["rope"], "gradient_accumulation_steps": 4},
            "parallelism": {"pipeline_parallel_size": 2},
        },
        "not modelled with pipeline parallelism",
    ),
]


@pytest.mark.parametrize(("sections", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_refused(sections: dict[str, Any], words: str) -> None:
    """One sentence for each."""
    given = dict(sections)
    stage = given.pop("options", None)
    if stage is not None:
        data = small_run("deepspeed", engine={"zero_stage": stage}, training=given["training"])
        with pytest.raises(InputError, match=words):
            resolve(read(data).file)
        return
    with pytest.raises(InputError, match=words):
        run(**given)


@pytest.mark.parametrize(
    ("family", "like"), [("llama", True), ("qwen2", True), ("stablelm", False)]
)
def test_layers_like_llamas(family: str, like: bool) -> None:
    """StableLM's differ by their norms alone."""
    assert _like_llama(run(family=family)) == like
