"""llama.cpp: which layers are on which device, and what fits."""

from __future__ import annotations

from msgspec.structs import replace

from gpu_mem_calculator.ledger.units import GIB, MIB
from gpu_mem_calculator.serving.llamacpp.engine import fits, longest_context
from gpu_mem_calculator.serving.llamacpp.layout import device_bytes

from .test_llamacpp import layout

OUTSIDE = 600 * MIB  # of a process, outside its buffers


def test_the_last_layers_are_on_gpus() -> None:
    """-ngl counts the output first since b7468; before, it was the last to be offloaded."""
    new, old = (
        layout("llama3-8b", engine_version=b, n_gpu_layers=10).devices for b in ("b7468", "b7467")
    )
    assert new.layers == (1,) * 23 + (0,) * 9
    assert new.output == 0
    assert old.layers == (1,) * 22 + (0,) * 10
    assert old.output == 1
    assert layout("llama3-8b", engine_version="b7467", n_gpu_layers=33).devices.full


def test_shares_of_gpus() -> None:
    """Layers are split in equal parts, or as tensor_split says; the output is one more layer."""
    assert layout("llama3-8b", 2).devices.layers == (0,) * 17 + (1,) * 15
    uneven = layout("llama3-8b", 2, tensor_split=[3, 1]).devices
    assert uneven.layers == (0,) * 25 + (1,) * 7
    assert uneven.output == 1
    alone = layout("llama3-8b", 2, split_mode="none", main_gpu=1).devices
    assert set(alone.layers) == {1}
    assert not alone.pipelined
    assert layout("llama3-8b", 2).devices.pipelined
    assert not layout("llama3-8b", 2, n_gpu_layers=32).devices.pipelined


def test_experts_on_the_host() -> None:
    """--n-cpu-moe moves experts alone; their products still run on the GPU, from copies."""
    none, some = (
        device_bytes(layout("qwen3-30b-a3b", max_seq_len=8192, n_cpu_moe=n)) for n in (0, 12)
    )
    moved = some[-1].weights - none[-1].weights
    assert 0.2 < moved / none[0].weights < 0.27
    assert some[0].cache == none[0].cache
    assert some[0].compute > none[0].compute + 80 * MIB


def test_the_longest_context_is_at_the_edge() -> None:
    """Of Qwen3 30B on 24 GiB, 256 tokens more do not fit; a model that is too large has none."""
    one, free = layout("qwen3-30b-a3b", max_seq_len=131072), 24 * GIB
    context = longest_context(one, free, OUTSIDE)
    assert fits(replace(one, context=context), free, OUTSIDE)
    assert not fits(replace(one, context=context + 256), free, OUTSIDE)
    assert longest_context(layout("llama3-70b"), free, OUTSIDE) == 0
