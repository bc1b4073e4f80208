"""The options of a run file, and the server that they describe.

llama.cpp b10586 common/arg.cpp and tools/server/server.cpp for the defaults.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ...run.run import Run
from ...run.weights import gguf
from ...run.weights.ggml_types import BLOCKS
from .layout import CACHE_TYPES, ServerLayout, has_flash
from .versions import FEW_OUTPUTS, FLASH_AUTO, NEWEST, PADDED_256, build_number
from .weights import ALL, ModelFile

# The keys that a run file may set, and their defaults; None: llama-server chooses.
OPTIONS: dict[str, Any] = {
    **dict.fromkeys(("max_seq_len", "batch_size", "max_num_seqs", "n_parallel")),
    **dict.fromkeys(("prompt_len", "new_tokens", "cache_type_k", "cache_type_v", "n_gpu_layers")),
    **dict.fromkeys(("flash_attn", "kv_unified", "tensor_split", "main_gpu", "n_cpu_moe")),
    "engine_version": f"b{NEWEST}",
    "dtype": "fp16",
    "quantization": "q4_k_m",
    "kv_cache_dtype": "auto",
    "n_batch": 2048,
    "n_ubatch": 512,
    "split_mode": "layer",
    "no_kv_offload": False,
    "swa_full": False,
}
SLOTS = 4  # of a server that sets none; they share one cache
# Names that every engine has for cache types, and llama.cpp's.
COMMON_TYPES = {"auto": "f16", "fp16": "f16", "bf16": "bf16", "int8": "q8_0", "int4": "q4_0"}
SLOT_KEYS = ("n_parallel", "max_num_seqs", "batch_size")  # names of the same option


def file_type(run: Run) -> str | None:
    """The GGUF file type of `quantization`; None where there is no such type."""
    name = str(run.options["quantization"])
    if name == "none":
        return {"bf16_pure": "BF16", "fp16_pure": "F16", "fp32": "F32"}[run.precision]
    return gguf.file_type(name)


def cache_types(run: Run) -> tuple[str, str]:
    """Types of cached keys and values, under llama.cpp's names."""
    common = COMMON_TYPES.get(str(run.options["kv_cache_dtype"]), "")
    keys, values = (run.options[key] or common for key in ("cache_type_k", "cache_type_v"))
    return str(keys).lower(), str(values).lower()


def server_layout(run: Run) -> ServerLayout:
    """The server of a run: its options, and llama-server's defaults for those that are not set."""
    options, arch, gpus = run.options, run.arch, int(run.mesh.pp)
    build = min(build_number(str(options["engine_version"])) or NEWEST, NEWEST)
    count = next((options[key] for key in SLOT_KEYS if options[key] is not None), None)
    slots = int(count if count is not None else SLOTS if build >= PADDED_256 else 1)
    unified = options["kv_unified"]
    if unified is None:
        unified = count is None and build >= PADDED_256
    keys, values = (kind.upper() for kind in cache_types(run))
    gpu_layers = options["n_gpu_layers"]
    stored = run.stored if run.stored_form == "gguf" else ()
    layout = ServerLayout(
        file=ModelFile(arch, file_type(run) or "Q4_K_M", build, stored),
        build=build,
        gpus=gpus,
        gpu_layers=ALL if gpu_layers is None else int(gpu_layers),
        host_experts=min(int(options["n_cpu_moe"] or 0), len(arch.layers)),
        shares=tuple(options["tensor_split"] or ()),
        single_gpu=int(options["main_gpu"] or 0) if options["split_mode"] == "none" else None,
        context=int(options["max_seq_len"] or arch.max_seq_len),
        slots=slots,
        unified=bool(unified),
        batch=int(options["n_batch"]),
        ubatch=int(options["n_ubatch"]),
        flash=bool(options["flash_attn"]),
        keys=keys,
        values=values,
        offload_kqv=not options["no_kv_offload"],
        swa_full=bool(options["swa_full"]),
        outputs=slots if build >= FEW_OUTPUTS else 0,
    )
    if options["flash_attn"] is None and build >= FLASH_AUTO:
        return replace(layout, flash=has_flash(layout))
    return layout


def known_types(names: tuple[str, str]) -> bool:
    """Whether llama.cpp can cache in both types."""
    return all(name in CACHE_TYPES and name.upper() in BLOCKS for name in names)
