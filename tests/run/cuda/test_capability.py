"""What a card cannot do is refused, in a table: engine, card, keys, and the sentence's end."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.run.cuda.capability import older
from gpu_mem_calculator.run.weights.recipes import RECIPES
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.serving import server_names, server_row
from gpu_mem_calculator.tools.read import read
from tests.conftest import SMALL_LLAMA

GTX, P100, V100, T4 = "gtx-1080-ti", "p100-16gb-pcie", "v100-32gb-sxm", "t4"
A100, L4, H100, B200 = "a100-80gb-sxm", "l4", "h100-80gb-sxm", "b200-180gb-sxm"
MIXTRAL = {**SMALL_LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
NO_VLLM = "use engine 'llamacpp' or 'transformers', or a newer card"
OLD_VLLM = "use an engine_version before 0.20.0, or a newer card"


def served(engine: str, card: str, **keys: Any) -> ResolvedRun:
    """A small server on one card; experts where a format packs experts alone."""
    model = MIXTRAL if keys.get("quantization") == "mxfp4" else SMALL_LLAMA
    run = {
        "model": {"config": model},
        "inference": {"engine": engine, **keys},
        "hardware": {"gpu": card},
    }
    return resolve(read(run).file, headers=False)


def trained(hardware: dict[str, Any], **keys: Any) -> ResolvedRun:
    """A small training run."""
    run = {
        "model": {"config": SMALL_LLAMA},
        "training": {"seq_len": 64, **keys},
        "hardware": hardware,
    }
    return resolve(read(run).file)


REFUSALS: list[tuple[str, str, dict[str, Any], str]] = [
    ("vllm", GTX, {}, NO_VLLM),
    ("vllm", P100, {"engine_version": "0.11.0"}, NO_VLLM),
    ("vllm", V100, {}, OLD_VLLM),
    ("vllm", V100, {"engine_version": "0.20.0"}, OLD_VLLM),
    ("vllm", T4, {"dtype": "bf16"}, "needs compute capability 8.0 or newer, and NVIDIA T4 has 7.5"),
    ("vllm", T4, {"quantization": "mxfp4"}, "use 'fp8' or 'int8'"),
    ("vllm", T4, {"quantization": "fp8", "engine_version": "0.13.0"}, "use 'int8' or 'int4'"),
    ("vllm", A100, {"quantization": "fp8", "engine_version": "0.4.2"}, "use 'int8' or 'int4'"),
    ("vllm", V100, {"quantization": "awq", "engine_version": "0.11.0", "dtype": "fp16"}, "card"),
    ("sglang", V100, {}, NO_VLLM),
    ("sglang", T4, {"quantization": "fp8"}, "needs compute capability 8.0 or newer"),
    ("sglang", H100, {"quantization": "nvfp4", "engine_version": "0.5.12"}, "use 'fp8' or 'int4'"),
    ("tgi", V100, {}, NO_VLLM),
    ("tgi", T4, {"quantization": "fp8"}, "leave it out, or use a newer card"),
    ("tensorrt_llm", T4, {}, "use an engine_version before 0.18.0, or a newer card"),
    ("tensorrt_llm", A100, {"quantization": "fp8"}, "needs compute capability 8.9 or newer"),
    ("tensorrt_llm", L4, {"quantization": "mxfp4"}, "use 'fp8'"),
    ("tensorrt_llm", H100, {"quantization": "nvfp4"}, "use 'fp8' or 'mxfp4'"),
]
ACCEPTED: list[tuple[str, str, dict[str, Any]]] = [
    ("vllm", V100, {"engine_version": "0.19.1"}),
    ("vllm", T4, {}),
    ("vllm", T4, {"quantization": "fp8"}),
    ("vllm", T4, {"dtype": "fp32"}),
    ("vllm", A100, {"dtype": "bf16", "quantization": "mxfp4"}),
    ("sglang", T4, {"dtype": "bf16"}),
    ("sglang", H100, {"quantization": "nvfp4"}),
    ("tgi", T4, {"dtype": "fp16"}),
    ("tgi", A100, {"quantization": "fp8"}),
    ("tensorrt_llm", T4, {"engine_version": "0.17.0", "dtype": "fp16"}),
    ("tensorrt_llm", L4, {"quantization": "fp8"}),
    ("tensorrt_llm", B200, {"quantization": "nvfp4"}),
    ("llamacpp", GTX, {}),
    ("transformers", P100, {"quantization": "nf4"}),
]


@pytest.mark.parametrize(("engine", "card", "keys", "words"), REFUSALS)
def test_a_card_that_cannot_do_it_says_so(
    engine: str, card: str, keys: dict[str, Any], words: str
) -> None:
    """One sentence: what is asked for, what it needs, what the card has, what to do."""
    with pytest.raises(InputError) as error:
        served(engine, card, **keys)
    sentence = error.value.problems[0]
    assert len(error.value.problems) == 1
    assert "needs compute capability" in sentence
    assert words in sentence


@pytest.mark.parametrize(("engine", "card", "keys"), ACCEPTED)
def test_a_card_that_can_is_accepted(engine: str, card: str, keys: dict[str, Any]) -> None:
    """The oldest card itself, and the first or last release."""
    assert served(engine, card, **keys).run.card


@pytest.mark.parametrize(
    ("engine", "keys", "dtype"),
    [("vllm", {}, "fp16"), ("sglang", {}, "fp16"), ("sglang", {"dtype": "bf16"}, "fp16")],
)
def test_servers_take_fp16_on_a_card_without_bf16(
    engine: str, keys: dict[str, Any], dtype: str
) -> None:
    """vLLM where no dtype is given, SGLang always; both are said."""
    resolved = served(engine, T4, **keys)
    assert resolved.run.options["dtype"] == dtype
    assert resolved.run.precision == f"{dtype}_pure"
    title = resolved.engine.title
    assert f"NVIDIA T4 has no bf16 units; {title} uses fp16" in resolved.warnings


def test_only_a_named_card_is_judged() -> None:
    """A size in GB is that of many cards; it takes the chip of one, and no rule of it."""
    run = {
        "model": {"config": SMALL_LLAMA},
        "inference": {"engine": "vllm", "dtype": "bf16"},
        "hardware": {"gpu_memory_gb": 11},
    }
    resolved = resolve(read(run).file, headers=False)
    assert older(resolved.run.compute_capability, "8.0")
    assert resolved.run.options["dtype"] == "bf16"


@pytest.mark.parametrize(
    ("card", "precision", "notes"),
    [
        (T4, "bf16_mixed", ["torch emulates bf16"]),
        (T4, "fp16_mixed", []),
        (V100, "bf16_mixed", ["torch emulates bf16", "use a build for CUDA 12.6"]),
        (V100, "fp32", ["use a build for CUDA 12.6"]),
        (A100, "bf16_mixed", []),
        ("mi300x", "bf16_mixed", []),
    ],
)
def test_torch_trains_with_a_warning(card: str, precision: str, notes: list[str]) -> None:
    """torch emulates bf16 on Turing and older, so the run is not refused."""
    warnings = [
        one for one in trained({"gpu": card}, precision=precision).warnings if "torch" in one
    ]
    assert len(warnings) == len(notes)
    assert all(words in one for words, one in zip(notes, warnings, strict=True))


def test_flash_attention_has_a_largest_head() -> None:
    """flash-attn has kernels for heads of at most 256."""
    wide = {**SMALL_LLAMA, "head_dim": 512}
    run = {
        "model": {"config": wide},
        "training": {"seq_len": 64, "attention": "flash_attention_2"},
        "hardware": {"gpu": H100},
    }
    with pytest.raises(InputError, match="heads of at most 256, and llama has 512; use 'sdpa'"):
        resolve(read(run).file)


def test_the_rows_name_formats_that_exist() -> None:
    """Rules are in the order of their releases."""
    for cards in (server_row(name).cards for name in server_names()):
        assert set(cards.formats) <= set(RECIPES)
        for steps in (cards.oldest, *cards.formats.values()):
            assert [since for since, _ in steps] == sorted(since for since, _ in steps)
