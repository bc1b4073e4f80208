"""The options of a run file, and the server that they describe.

llama.cpp b10586 common/arg.cpp and tools/server/server.cpp for the defaults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ...ledger.units import MIB
from ...run.cuda.runtimes import METAL
from ...run.releases import Version, parse_version
from ...run.run import Run
from ...run.weights import gguf
from ...run.weights.ggml_types import BLOCKS
from .fit import FitRule
from .graph_tensors import quantized
from .layout import CACHE_TYPES, ServerLayout, has_flash
from .ollama import OllamaRule
from .ollama_releases import (
    BY_SERVER,
    allows_flash,
    default_batch,
    default_context,
    default_slots,
    family_of,
    flash_is_automatic,
    llama_build,
    own_engine,
)
from .versions import FEW_OUTPUTS, FIT, FLASH_AUTO, NEWEST, PADDED_256, build_number
from .weights import ALL, HOST, ModelFile, Overrides, host_experts

# The keys that a run file may set, and their defaults; None: llama-server chooses.
OPTIONS: dict[str, Any] = {
    **dict.fromkeys(("max_seq_len", "batch_size", "max_num_seqs", "n_parallel")),
    **dict.fromkeys(("prompt_len", "new_tokens", "cache_type_k", "cache_type_v", "n_gpu_layers")),
    **dict.fromkeys(("flash_attn", "kv_unified", "tensor_split", "main_gpu", "n_cpu_moe")),
    **dict.fromkeys(("override_tensor", "fit", "fit_target", "fit_ctx", "ollama_version")),
    **dict.fromkeys(("n_batch", "n_ubatch")),
    "engine_version": f"b{NEWEST}",
    "dtype": "fp16",
    "quantization": "q4_k_m",
    "kv_cache_dtype": "auto",
    "split_mode": "layer",
    "no_kv_offload": False,
    "swa_full": False,
}
DEFAULT_TARGET, LEAST_CONTEXT = 1024, 4096  # --fit-target in MiB, --fit-ctx
SLOTS = 4  # of a server that sets none; they share one cache
BATCH, UBATCH = 2048, 512  # -b and -ub
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


def overrides(options: Mapping[str, Any], layers: int) -> Overrides:
    """Where -ot and --n-cpu-moe put tensors."""
    found = [
        (pattern, device_number(device))
        for pattern, _, device in (
            one.rpartition("=") for one in str(options["override_tensor"] or "").split(",") if one
        )
    ]
    return (*found, *host_experts(min(int(options["n_cpu_moe"] or 0), layers)))


def device_number(name: str) -> int:
    """The number of a device in a pattern: CUDA1 is GPU 1, CPU the host."""
    digits = re.search(r"\d+$", name)
    return int(digits[0]) if digits else HOST


def fit_rule(run: Run, outside: int) -> FitRule | None:
    """What --fit may lower; None where it is off or a build does not have it."""
    options = run.options
    build = build_of(options) or NEWEST
    if build < FIT or options["fit"] is False:
        return None
    given = ("n_gpu_layers", "tensor_split", "override_tensor", "n_cpu_moe")
    return FitRule(
        free=(run.free_bytes - outside,) * int(run.mesh.pp),
        margin=(DEFAULT_TARGET if options["fit_target"] is None else options["fit_target"]) * MIB,
        least_context=int(options["fit_ctx"] or LEAST_CONTEXT),
        lowers_context=options["max_seq_len"] is None,
        lowers_layers=all(options[key] is None for key in given),
    )


def build_of(options: Mapping[str, Any]) -> int | None:
    """The build of llama.cpp that runs: as given, or the one of a release of Ollama."""
    release = ollama_release(options)
    if release is not None:
        return llama_build(release)
    return build_number(str(options["engine_version"]))


def ollama_release(options: Mapping[str, Any]) -> Version | None:
    """The release of Ollama that starts the server; None without one."""
    given = options["ollama_version"]
    return None if given is None else parse_version(str(given))


def ollama_rule(run: Run) -> OllamaRule | None:
    """What a release of Ollama places layers by; None where llama-server fits by itself."""
    release, options = ollama_release(run.options), run.options
    if release is None or release >= BY_SERVER:
        return None
    asked = options["n_gpu_layers"]
    return OllamaRule(
        release=release,
        free=(run.free_bytes,) * int(run.mesh.pp),
        requested=-1 if asked is None else int(asked),
        metal=run.runtime == METAL,
        slots=default_slots(release) if _slots(options) is None else (),
    )


def _slots(options: Mapping[str, Any]) -> int | None:
    """The number of slots that is given."""
    return next((int(options[key]) for key in SLOT_KEYS if options[key] is not None), None)


def with_defaults(run: Run) -> dict[str, Any]:
    """The options of a run with those that its release of Ollama chooses by the model and the GPUs;
    of llama-server alone as they are.
    """
    options, release = dict(run.options), ollama_release(run.options)
    if release is None:
        return options
    options["engine_version"] = f"b{llama_build(release)}"
    if options["max_seq_len"] is None:
        gpus = run.card_bytes * int(run.mesh.pp)
        each = default_context(run.arch, release, gpus)
        options["max_seq_len"] = each * (_slots(options) or 1)
    if options["n_ubatch"] is None:
        short = options["flash_attn"] is False
        options["n_ubatch"] = default_batch(release, 0 if short else options["max_seq_len"])
    return options


def server_layout(run: Run) -> ServerLayout:
    """The server of a run: its options, and llama-server's defaults for those that are not set."""
    options, arch, gpus = run.options, run.arch, int(run.mesh.pp)
    release = ollama_release(options)
    build = min(build_of(options) or NEWEST, NEWEST)
    own = release is not None and own_engine(family_of(arch), release)
    count = _slots(options)
    if count is None and release is not None:
        count = 1  # `OllamaRule` has those that it tries
    slots = int(count if count is not None else SLOTS if build >= PADDED_256 else 1)
    unified = options["kv_unified"]
    if unified is None:
        unified = count is None and build >= PADDED_256
    keys, values = (kind.upper() for kind in cache_types(run))
    gpu_layers = options["n_gpu_layers"]
    ubatch = int(options["n_ubatch"] or UBATCH)
    stored = run.stored if run.stored_form == "gguf" else ()
    layout = ServerLayout(
        file=ModelFile(arch, file_type(run) or "Q4_K_M", build, stored),
        build=build,
        gpus=gpus,
        gpu_layers=ALL if gpu_layers is None else int(gpu_layers),
        overrides=overrides(options, len(arch.layers)),
        shares=tuple(options["tensor_split"] or ()),
        single_gpu=int(options["main_gpu"] or 0) if options["split_mode"] == "none" else None,
        context=int(options["max_seq_len"] or arch.max_seq_len),
        slots=slots,
        unified=bool(unified),
        # Ollama has one number for both
        batch=int((options["n_batch"] or BATCH) if release is None else ubatch),
        ubatch=ubatch,
        flash=bool(options["flash_attn"]),
        keys=keys,
        values=values,
        offload_kqv=not options["no_kv_offload"],
        swa_full=bool(options["swa_full"]),
        outputs=slots if build >= FEW_OUTPUTS or own else 0,
    )
    automatic = build >= FLASH_AUTO if release is None else flash_is_automatic(arch, release)
    if options["flash_attn"] is None and automatic:
        layout = replace(layout, flash=has_flash(layout))
    if release is not None and release < BY_SERVER:
        return _as_allowed(layout, release)
    return layout


def _as_allowed(layout: ServerLayout, release: Version) -> ServerLayout:
    """The server without what a release before 0.30 turns off (llm/server.go NewLlamaServer):
    flash attention that the model does not support, and a quantized cache without it.
    """
    if layout.flash and not allows_flash(layout.file.arch, release):
        layout = replace(layout, flash=False)
    if not layout.flash and (quantized(layout.keys) or quantized(layout.values)):
        return replace(layout, keys="F16", values="F16")
    return layout


def known_types(names: tuple[str, str]) -> bool:
    """Whether llama.cpp can cache in both types."""
    return all(name in CACHE_TYPES and name.upper() in BLOCKS for name in names)
