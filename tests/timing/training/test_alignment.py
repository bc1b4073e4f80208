"""Heads whose matrices begin at addresses that tensor cores cannot load."""

from __future__ import annotations

from gpu_mem_calculator.estimates.machine import machine_of
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.timing.training.step import step_seconds
from gpu_mem_calculator.tools.read import read


def seconds(heads: int) -> float:
    """A step of a GPT of 13,824 with unfused attention on one node of A100s."""
    resolved = resolve(
        read(
            {
                "model": {
                    "num_layers": 2,
                    "hidden_size": 13824,
                    "num_attention_heads": heads,
                    "gated_mlp": False,
                    "vocab_size": 32000,
                },
                "training": {"seq_len": 2048, "batch_size": 4},
                "parallelism": {"tensor_parallel_size": 8},
                "engine": {"type": "megatron_deepspeed"},
                "hardware": {"gpu": "a100-80gb-sxm", "num_gpus": 8},
            }
        ).file
    )
    machine = machine_of(resolved.hardware)
    return float(step_seconds(resolved.run, "megatron_deepspeed", machine).estimate)


def test_heads_of_108_are_slower_than_heads_of_144() -> None:
    """BigScience measured a third more for 128 heads than for 64 or 96, whose size is aligned."""
    assert 1.15 < seconds(128) / seconds(96) < 1.6
    assert seconds(64) < 1.05 * seconds(96)
