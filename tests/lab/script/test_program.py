"""Programs run by their own tools on fake tensors, against the estimate of the same run file."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.lab.backtest.predict import by_trace
from gpu_mem_calculator.lab.backtest.rows import MeasuredRun
from gpu_mem_calculator.lab.script.program import trace_program
from gpu_mem_calculator.lab.trace.no_triton import importable_triton
from gpu_mem_calculator.runfile.text.errors import InputError

CLOSE = 0.001  # of the peak; a measured run of the same kind has the trace's bytes
MODEL = {
    "model_type": "qwen2",
    "num_hidden_layers": 2,
    "hidden_size": 896,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
BATCH = {"per_device_train_batch_size": 4, "bf16": True}
PAIRS = {"seq_len": 512, "prompt": 128}
PROMPT = {"seq_len": 0, "prompt": 64}
GENERATED = {**BATCH, "per_device_train_batch_size": 8, "max_completion_length": 4}
TOOLS: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "trl.SFTTrainer": ("trl", {**BATCH, "max_length": 512}, {"seq_len": 512}),
    "trl.DPOTrainer": ("trl", {**BATCH, "max_length": 512}, PAIRS),
    "trl.RewardTrainer": ("trl", {**BATCH, "max_length": 512}, PAIRS),
    "trl.KTOTrainer": ("trl", {**BATCH, "max_length": 512}, PAIRS),
    "trl.GRPOTrainer": ("trl", {**GENERATED, "num_generations": 8}, PROMPT),
    "trl.RLOOTrainer": ("trl", {**GENERATED, "num_generations": 8}, PROMPT),
    "lightning": ("lightning", {"batch_size": 2, "precision": "bf16-mixed"}, {"seq_len": 512}),
}


def _run(tool: str, args: dict[str, Any], data: dict[str, int], **more: Any) -> dict[str, Any]:
    program = {"tool": tool, "args": args, "load": {"dtype": "float32"}, "data": data, **more}
    return {"model": {"config": MODEL}, "program": program, "hardware": {"gpu": "h200"}}


TRAINER = _run("transformers.Trainer", BATCH, {"seq_len": 512})


def _close(run: dict[str, Any]) -> None:
    traced, estimate = trace_program(run), full_estimate(run).replayed
    assert estimate is not None
    assert traced.allocated_bytes == pytest.approx(estimate.allocated_bytes, rel=CLOSE)
    assert traced.startup_bytes == pytest.approx(estimate.startup_bytes, rel=CLOSE)
    assert traced.peak_phase.startswith(("s1.", "s2."))  # the optimizer's states exist


@pytest.mark.proof
def test_trainer_has_the_estimate_s_peak() -> None:
    """transformers.Trainer itself ran, as a row of measured runs is predicted."""
    row = MeasuredRun(
        id="trainer", group="trainer", config=TRAINER, measured={"allocated_bytes": 1}
    )
    predicted, estimate = by_trace(row), full_estimate(TRAINER).replayed
    assert estimate is not None
    assert predicted.allocated == pytest.approx(estimate.allocated_bytes, rel=CLOSE)
    assert predicted.startup == pytest.approx(estimate.startup_bytes, rel=CLOSE)


@pytest.mark.proof
@pytest.mark.parametrize("tool", TOOLS)
def test_each_tool_has_the_estimate_s_peak(tool: str) -> None:
    """Each tool's own trainer runs to its third step."""
    package, args, data = TOOLS[tool]
    pytest.importorskip(package)
    _close(_run(tool, args, data))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "compiled": ({"args": {**BATCH, "torch_compile": True}}, "a compiled program is not traced"),
    "paged": ({"args": {**BATCH, "optim": "paged_adamw_8bit"}}, "paged optimizer"),
    "flash": (
        {"load": {"dtype": "bfloat16", "attn_implementation": "flash_attention_2"}},
        "attn_implementation='flash_attention_2' is not traced",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_traced_is_refused(name: str) -> None:
    """One sentence says what, and what to do instead."""
    changes, sentence = REFUSED[name]
    run = {**TRAINER, "program": {**TRAINER["program"], **changes}}
    with pytest.raises(InputError, match=sentence):
        trace_program(run)


def test_only_rank_0_is_traced() -> None:
    """A fake process group plays the first rank."""
    with pytest.raises(InputError, match="rank 1 of a program is not traced"):
        trace_program({**TRAINER, "hardware": {"gpu": "h200", "num_gpus": 2}}, rank=1)


def test_triton_is_importable_where_it_is_not_installed() -> None:
    """A library's kernels are defined, and their launch does nothing."""
    from importlib.util import find_spec

    if find_spec("triton") is not None:
        pytest.skip("Triton is installed")
    with importable_triton():
        import triton
        import triton.language as tl
        from triton.runtime.jit import JITFunction

        @triton.jit
        def kernel(x: Any, size: tl.constexpr) -> None:
            raise AssertionError("a kernel ran")

        assert kernel[(triton.cdiv(7, 2),)](1, size=triton.next_power_of_2(5)) is None
        assert isinstance(kernel, JITFunction)
        assert (triton.cdiv(7, 2), triton.next_power_of_2(5)) == (4, 8)
    assert find_spec("triton") is None
