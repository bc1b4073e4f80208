"""Small layers of Megatron-DeepSpeed: the host launches them more slowly than the GPU runs them."""

from __future__ import annotations

from gpu_mem_calculator.estimates.machine import machine_of
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.timing.training.step import step_seconds
from gpu_mem_calculator.tools.read import read


def seconds(tp: int, layers: int, batch: int = 1, hidden: int = 1024) -> float:
    """A step of four micro-batches of a small GPT on A100s."""
    resolved = resolve(
        read(
            {
                "model": {
                    "num_layers": layers,
                    "hidden_size": hidden,
                    "num_attention_heads": 16,
                    "gated_mlp": False,
                    "normalization": "layernorm",
                    "position_embedding": "learned",
                    "bias": True,
                    "tie_word_embeddings": True,
                    "vocab_size": 50304,
                    "dropout": 0.1,
                },
                "training": {
                    "seq_len": 1024,
                    "batch_size": batch,
                    "gradient_accumulation_steps": 4,
                    "precision": "fp16_mixed",
                    "activation_checkpointing": "full",
                },
                "parallelism": {"tensor_parallel_size": tp},
                "engine": {"type": "megatron_deepspeed"},
                "hardware": {"gpu": "a100-80gb-sxm", "num_gpus": 8},
            }
        ).file
    )
    machine = machine_of(resolved.hardware)
    return float(step_seconds(resolved.run, "megatron_deepspeed", machine).estimate)


def of_layer(tp: int, batch: int = 1, hidden: int = 1024) -> float:
    """Milliseconds of one layer and micro-batch."""
    more, fewer = (seconds(tp, layers, batch, hidden) for layers in (24, 12))
    return 1000 * (more - fewer) / 12 / 4


def test_a_small_layer_takes_as_long_as_its_host() -> None:
    """vTrain: 3.0 ms with one sequence, 3.2 ms with two."""
    assert 2.7 < of_layer(1) < 3.5
    assert of_layer(1, batch=2) < 1.1 * of_layer(1)


def test_ranks_wait_for_the_slowest_host() -> None:
    """vTrain: 3.3 to 3.4 ms on two and four GPUs, 3.7 and more on eight, which compute less."""
    assert of_layer(1) < of_layer(2) < 1.25 * of_layer(1)
    assert 1.1 * of_layer(1) < of_layer(8, batch=4)


def test_a_large_layer_takes_as_long_as_its_kernels() -> None:
    """vTrain: 8.8 ms for four sequences of a layer of 2,048, 4.8 ms for two."""
    assert 1.6 < of_layer(1, 4, 2048) / of_layer(1, 2, 2048) < 2.1
