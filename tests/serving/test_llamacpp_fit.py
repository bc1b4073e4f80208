"""llama.cpp: which layers are on which device, and what fits."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.verdict_words import verdict_line
from gpu_mem_calculator.ledger.units import GIB, MIB
from gpu_mem_calculator.serving.llamacpp.engine import fits, longest_context
from gpu_mem_calculator.serving.llamacpp.fit import FitRule, fitted, used_bytes
from gpu_mem_calculator.serving.llamacpp.layout import ServerLayout, device_bytes
from gpu_mem_calculator.serving.llamacpp.ollama import OllamaRule, placement

from .test_llamacpp import file, layout, problem

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


def fit(one: ServerLayout, gib: float, *, context: bool = False) -> ServerLayout:
    """A server as --fit leaves it on GPUs with so much free."""
    return fitted(one, FitRule(free=(int(gib * GIB),) * one.gpus, lowers_context=context))


def test_fit_changes_nothing_that_fits() -> None:
    """1 GiB of each GPU stays free."""
    one = layout("llama3-8b", max_seq_len=8192)
    assert fit(one, 24) is one
    used = sum(used_bytes(one)) / GIB
    assert fit(one, used + 1.001) is one
    assert fit(one, used + 0.999) is not one


def test_fit_lowers_the_context_first() -> None:
    """By interpolation, to a multiple of 256 tokens, where nobody gave it; 4,096 at least."""
    one = layout("llama3.1-8b")
    shorter = fit(one, 12, context=True)
    assert 4096 < shorter.context < one.context
    assert shorter.context % 256 == 0
    assert shorter.gpu_layers == one.gpu_layers
    least = fit(one, 5, context=True)
    assert least.context == 4096
    assert least.gpu_layers < 33


@pytest.mark.parametrize("gib", [4, 9, 17, 30])
@pytest.mark.parametrize("gpus", [1, 2, 3])
@pytest.mark.parametrize("model", ["llama3-70b", "qwen3-30b-a3b"])
def test_fit_takes_what_there_is(model: str, gpus: int, gib: float) -> None:
    """No GPU takes more than its target, and one more layer would."""
    one = layout(model, gpus, max_seq_len=8192)
    found = fit(one, gib)
    target = int(gib * GIB) - 1024 * MIB
    assert max(used_bytes(found)) <= max(target, max(used_bytes(replace(one, gpu_layers=0))))
    if found is not one and model == "llama3-70b" and gpus == 1:
        assert max(used_bytes(replace(found, gpu_layers=found.gpu_layers + 1))) > target


def test_fit_moves_experts_before_layers() -> None:
    """Every layer of a mixture stays on the card, the experts of its last layers do not."""
    one = fit(layout("qwen3-30b-a3b", max_seq_len=8192), 12)
    assert one.devices.full
    first = min(int(name.split(".")[1]) for name in one.moved)
    assert 20 < first < 40
    assert {name.split(".")[1] for name in one.moved} == set(map(str, range(first, 48)))
    assert all("_exps" in name for name in one.moved if not name.startswith(f"blk.{first}."))


def test_patterns_place_tensors() -> None:
    """-ot: the first pattern that a name has counts; others stay with their layer."""
    pattern = r"blk\\.[0-3]\\.ffn=CUDA1,ffn_down=CPU".replace("\\\\", "\\")
    one = layout("llama3-8b", 2, override_tensor=pattern)
    assert one.moved["blk.2.ffn_down.weight"] == 1
    assert one.moved["blk.4.ffn_down.weight"] == 2
    assert "blk.4.ffn_up.weight" not in one.moved
    assert re.search("no pattern", problem(override_tensor="(=CPU"))
    assert re.search("CUDA0 to CUDA0", problem(override_tensor="exps=CUDA3"))


def test_ollama_packs_the_fewest_gpus() -> None:
    """A model that one GPU holds is on one; a larger one is balanced over as many as it needs."""
    one = layout("llama3-8b", 3, max_seq_len=4096, ollama_version="0.13.0")

    def layers(gib: float, release: tuple[int, int, int]) -> tuple[int, ...]:
        free = (int(gib * GIB),) * 3
        return placement(one, OllamaRule(release=release, free=free)).layers

    for release in ((0, 11, 0), (0, 13, 0)):
        assert sorted(layers(24, release)) == [0, 0, 33]
        assert sum(layers(2.6, release)) <= 33
        assert layers(0.5, release) == (0, 0, 0)
    assert sorted(layers(5, (0, 13, 0)))[0] == 0


def test_a_card_that_is_too_small_is_no_failure() -> None:
    """It starts with fewer layers; a number of layers that was given is kept."""
    run = file("llama3.1-70b", gpu="rtx-4090", max_seq_len=8192)
    result = full_estimate(run).result
    assert result.verdict == "fits"
    assert result.spills
    assert not result.figures_fit
    assert "42 of 81 layers on the GPU" in verdict_line(result)
    run["inference"]["n_gpu_layers"] = 81
    assert full_estimate(run).result.verdict == "does_not_fit"
