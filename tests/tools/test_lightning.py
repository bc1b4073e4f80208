"""Lightning's Trainer as a program: its arguments, and the keys that they mean."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import estimate, full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.translation.arguments import FREE, MEMORY, argument_table

MODULE = {"batch_size", "gradient_checkpointing", "fused"}
WRAPPED = {"name": "fsdp", "auto_wrap_policy": ["LlamaDecoderLayer"]}
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}


def program(gpus: int = 1, dtype: str = "float32", **args: Any) -> dict[str, Any]:
    """A run file with a module around a tiny model."""
    return {
        "model": {"config": CONFIG},
        "program": {
            "tool": "lightning",
            "args": args,
            "load": {"dtype": dtype},
            "data": {"seq_len": 64},
        },
        "hardware": {"gpu": "h200", "num_gpus": gpus},
    }


def test_the_table_lists_the_arguments_of_the_trainer() -> None:
    """All of them, with their defaults, and the module's own."""
    lightning = pytest.importorskip("lightning")
    signature = inspect.signature(lightning.Trainer.__init__).parameters
    own = {name: one.default for name, one in signature.items() if name != "self"}
    rows = argument_table("lightning/arguments")
    assert rows.keys() - MODULE == own.keys()
    assert {name: row.default for name, row in rows.items() if name not in MODULE} == own


def test_every_argument_that_is_not_honoured_says_why() -> None:
    """Also without Lightning installed."""
    rows = argument_table("lightning/arguments")
    assert all(row.why for row in rows.values() if row.effect != MEMORY)
    assert {rows[name].effect for name in ("max_steps", "logger")} == {FREE}


@pytest.mark.parametrize(
    ("dtype", "args", "expected"),
    [
        ("float32", {}, {"precision": "fp32", "zero_grad": "before_backward", "use_cache": True}),
        ("bfloat16", {"precision": "32-true"}, {"precision": "bf16_pure"}),
        ("float32", {"precision": 16}, {"precision": "fp16_mixed", "autocast_cache": False}),
        ("float32", {"precision": "bf16-true"}, {"precision": "bf16_pure", "autocast": False}),
        ("bfloat16", {"precision": "bf16-mixed"}, {"precision": "bf16_pure", "autocast": True}),
        ("float32", {"gradient_checkpointing": True}, {"recompute": "full", "use_cache": False}),
        ("float32", {"fused": True, "gradient_clip_val": 1.0}, {"implementation": "fused"}),
        ("float32", {"gradient_clip_val": None}, {"clipping": False}),
        (
            "float32",
            {"gradient_clip_val": 0.5, "gradient_clip_algorithm": "value"},
            {"clipping": 0},
        ),
        ("float32", {"accumulate_grad_batches": 4, "devices": "1"}, {"micro_batches": 4}),
    ],
)
def test_arguments_as_fields_of_a_run(
    dtype: str, args: dict[str, Any], expected: dict[str, Any]
) -> None:
    """The run that the arguments mean."""
    run = full_estimate(program(dtype=dtype, **args), replay=False).resolved.run
    assert {name: getattr(run, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("strategy", "engine", "options"),
    [
        ("ddp_find_unused_parameters_true", "pytorch_ddp", {}),
        (WRAPPED, "fsdp", {"fsdp_version": 1, "use_orig_params": True, "reduce_dtype": "bf16"}),
        ("deepspeed_stage_3", "deepspeed", {"zero_stage": 3, "reduce_bucket_size": 200_000_000}),
    ],
)
def test_strategies_as_engines(strategy: Any, engine: str, options: dict[str, Any]) -> None:
    """With Lightning's defaults, not the engine's."""
    file = program(gpus=2, strategy=strategy, precision="bf16-mixed")
    file["program"]["load"]["use_cache"] = False
    resolved = full_estimate(file, replay=False).resolved
    assert resolved.engine.name == engine
    assert {name: resolved.run.options[name] for name in options} == options


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"precision": "transformer-engine"}, "precision='transformer-engine' is not modelled"),
        ({"precision": "16-mixed", "fused": True, "gradient_clip_val": 1.0}, "for a fused"),
        ({"strategy": "fsdp"}, "the whole model is one unit"),
        ({"strategy": "deepspeed_stage_3_offload"}, "is not modelled; it can be auto"),
        ({"strategy": "tpu"}, "strategy='tpu' is not modelled"),
        ({"devices": 4}, "set hardware.num_gpus=4"),
        ({"deterministic": True}, "deterministic kernels"),
        ({"accumulate_grad_batch": 2}, "did you mean 'accumulate_grad_batches'"),
    ],
)
def test_what_is_not_modelled_is_refused(args: dict[str, Any], problem: str) -> None:
    """With a sentence that says what to do."""
    with pytest.raises(InputError, match=problem):
        estimate(program(**args))
