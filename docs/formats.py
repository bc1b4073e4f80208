"""Writes formats.md: every weight format, with bytes per parameter.

python docs/formats.py
"""

from __future__ import annotations

from pathlib import Path

from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.models.arch.arch import Arch
from gpu_mem_calculator.run.weights import find_format
from gpu_mem_calculator.run.weights.ggml_types import BLOCKS, UNQUANTIZED, bits_per_weight
from gpu_mem_calculator.run.weights.gguf import tensors
from gpu_mem_calculator.run.weights.gguf_types import FILE_TYPES, NEEDS_IMATRIX
from gpu_mem_calculator.run.weights.quantization_config import READERS
from gpu_mem_calculator.run.weights.recipes import RECIPES
from gpu_mem_calculator.run.weights.shards import ServerShard, ShardedParameter, held
from gpu_mem_calculator.runfile.config import ModelConfig
from gpu_mem_calculator.runfile.find_model.model_source import find_model

TARGET = Path(__file__).with_name("formats.md")
MATRIX = ShardedParameter("layer.weight", (4096, 4096), "linear", 0)
EXPERT = ShardedParameter("layer.experts.down_proj", (1, 4096, 4096), "expert", 0, "experts")


def arch(name: str) -> Arch:
    """A preset's."""
    return find_model(ModelConfig(name=name)).arch


def stored(model: Arch, name: str) -> int:
    """A whole model in a format."""
    how, whole = find_format(name, None, model.family), ServerShard(places=range(len(model.layers)))
    return sum(size for one in held(model, whole) for _, size in how.stored(one, 16))


def format_table() -> list[str]:
    """Bytes of a parameter in a matrix of 4096 x 4096, and whole models."""
    dense, sparse = arch("llama3.1-8b"), arch("qwen3-30b-a3b")
    lines = [
        "| `quantization` | | bytes per packed parameter | Llama-3.1-8B | Qwen3-30B-A3B |",
        "|---|---|---:|---:|---:|",
    ]
    for name, recipe in RECIPES.items():
        one = EXPERT if recipe.experts else MATRIX
        each = sum(size for _, size in recipe.stored(one, 16)) / one.numel
        lines.append(
            f"| `{name}` | {recipe.title} | {each:.4f} | "
            f"{stored(dense, name) / GIB:.2f} GiB | {stored(sparse, name) / GIB:.2f} GiB |"
        )
    return lines


def file_table() -> list[str]:
    """Every file type: its plain tensors, and whole models."""
    dense, sparse = arch("llama3.1-8b"), arch("qwen3-30b-a3b")
    lines = [
        "| file type | most tensors | Llama-3.1-8B | | Qwen3-30B-A3B |",
        "|---|---|---:|---:|---:|",
    ]
    for name, plain in FILE_TYPES.items():
        size = sum(one.bytes for one in tensors(dense, name))
        large = sum(one.bytes for one in tensors(sparse, name))
        mark = "*" if name in NEEDS_IMATRIX else ""
        lines.append(
            f"| `{name}`{mark} | {plain} | {size / GIB:.2f} GiB | "
            f"{8 * size / dense.num_parameters:.2f} bits | {large / GIB:.2f} GiB |"
        )
    return lines


def block_table() -> list[str]:
    """ggml's quantized types."""
    lines = ["| type | elements | bytes | bits per element |", "|---|---:|---:|---:|"]
    for name, (block, size) in BLOCKS.items():
        if name not in UNQUANTIZED:
            lines.append(f"| {name} | {block} | {size} | {bits_per_weight(name):.4g} |")
    return lines


def page() -> str:
    """The whole page."""
    parts = [
        "# Weight formats",
        "",
        "`inference.quantization` names a format. If the model has a `quantization_config`, the",
        "details are read from it, and another format is refused. These configs are read: "
        + ", ".join(f"`{name}`" for name in sorted(READERS))
        + ".",
        "The matrices of layers are quantized. Embeddings, the output head, norms, routers,",
        "biases and what the config excludes (`modules_to_not_convert`, `ignored_layers`,",
        "`ignore`, `exclude_modules`, `llm_int8_skip_modules`) stay in `dtype`. `docs/formats.py`",
        "writes this page.",
        "",
        "## As stored",
        "",
        "The table has the bytes per parameter of a matrix of 4096 x 4096, and the size of two",
        "models whose other weights are in bf16. Scales and zero points are included.",
        "",
        *format_table(),
        "",
        "gpt-oss-20b in MXFP4 is 13,761,264,768 bytes here and in its published index; AWQ and",
        "GPTQ checkpoints agree with the sizes on their pages",
        "(`tests/run/weights/test_formats.py`).",
        "",
        "## After vLLM has loaded them",
        "",
        "Some formats then have other sizes:",
        "",
        "- Symmetric GPTQ has no zero points. It has an order of inputs only with `desc_act`.",
        "- bitsandbytes' scales are unpacked to fp32.",
        "- NVFP4's scales are padded to whole tiles on Blackwell.",
        "- gpt-oss's experts are padded for some kernels. For others their scales are kept twice.",
        "",
        "Rotary tables, 16-bit copies of latent attention's projections and the rounding of",
        "torch's allocator are added. The sum is within 0.2 % of the weights in 16 start-up logs,",
        "on average within 0.04 % (`tests/ground_truth/vllm_weights.jsonl`).",
        "",
        "## GGUF",
        "",
        "llama.cpp's own rules (b10586) decide which tensor gets which type. So the size of a",
        "file follows exactly from the architecture. llama.cpp's README lists 24 types for",
        "Llama-3.1-8B; all agree to four decimals of bits per weight. Types with * need an",
        "importance matrix. With an importance matrix, IQ4_XS, IQ4_NL, Q4_0 and Q5_0 files differ",
        "slightly. If you give a file, its own header is used.",
        "",
        *file_table(),
        "",
        "### ggml's types",
        "",
        *block_table(),
        "",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
