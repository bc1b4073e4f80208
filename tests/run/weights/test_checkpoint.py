"""A rank's weights from a checkpoint's headers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_mem_calculator import catalog, estimate
from gpu_mem_calculator.run.weights.checkpoint import group
from gpu_mem_calculator.runfile.config import ModelConfig
from gpu_mem_calculator.runfile.find_model.model_source import find_model
from tests.catalog.hub.test_checkpoint import safetensors_bytes


def write_checkpoint(folder: Path, preset: str, *, dtype: str = "BF16", more: int = 0) -> None:
    """Write a preset's checkpoint, with `more` bytes of scales in the first layer."""
    row = catalog.find("index", preset)
    assert row is not None
    (folder / "config.json").write_text(json.dumps(catalog.row_config(row)))
    arch = find_model(ModelConfig(name=preset)).arch
    width = 4 if dtype == "F32" else 2
    tensors = {
        w.name: (dtype, [int(size) for _, size in w.dims], width * int(w.numel))
        for w in (*arch.weights(), *arch.tower)
    }
    if more:
        tensors["model.layers.0.mlp.up_proj.weight_scale"] = ("F32", [more // 4], more)
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))


def weights(name: str, tp: int = 1) -> int:
    """Bytes that vLLM loads on one rank."""
    run = {
        "model": {"name": name},
        "hardware": {"gpu": "h100-80gb-sxm"},
        "inference": {"engine": "vllm", "tensor_parallel_size": tp},
    }
    serving = estimate(run).serving
    assert serving is not None
    return serving.weights_bytes


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize(
    "preset", ["qwen3-0.6b", "llama3.2-1b", "olmoe-1b-7b", "gemma3-4b-it", "qwen2.5-vl-7b"]
)
def test_a_whole_checkpoint_is_what_the_architecture_says(
    tmp_path: Path, preset: str, tp: int
) -> None:
    """Headers and architecture agree, sharded or not."""
    write_checkpoint(tmp_path, preset)
    assert weights(str(tmp_path), tp) == pytest.approx(weights(preset, tp), rel=1e-4)


def test_weights_stored_in_fp32_are_loaded_in_16_bits(tmp_path: Path) -> None:
    """The server's dtype counts, not the file's."""
    write_checkpoint(tmp_path, "qwen3-0.6b", dtype="F32")
    assert weights(str(tmp_path)) == pytest.approx(weights("qwen3-0.6b"), rel=1e-4)


def test_what_the_architecture_does_not_know_of_is_counted(tmp_path: Path) -> None:
    """Scales in the file are counted."""
    write_checkpoint(tmp_path, "qwen3-0.6b", more=2**24)
    assert weights(str(tmp_path)) - weights("qwen3-0.6b") == 2**24


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("model.embed_tokens.weight", (-1, "embedding")),
        ("lm_head.weight", (-1, "head")),
        ("model.norm.weight", (-1, "rest")),
        ("model.layers.3.mlp.up_proj.weight", (3, "dense")),
        ("model.layers.3.mlp.experts.7.up_proj.weight", (3, "experts")),
        ("blk.2.ffn_up_exps.weight", (2, "experts")),
        ("model.layers.61.eh_proj.weight", None),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", None),
        ("visual.blocks.3.mlp.up_proj.weight", (-1, "vision tower")),
        ("multi_modal_projector.linear_1.weight", (-1, "vision tower")),
    ],
)
def test_where_a_stored_tensor_belongs(name: str, where: tuple[int, str] | None) -> None:
    """Tensors are grouped by layer and kind; layers after the last are not served."""
    assert group(name, 61) == where
