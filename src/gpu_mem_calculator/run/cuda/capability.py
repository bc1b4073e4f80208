"""What a card can run: the oldest compute capability of each engine, weight format and dtype.

A rule is a row: from a release on, the oldest compute capability. Rules are for cards that the run
file names: of a card that is known by its memory alone, nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from ...ledger.frameworks import TORCH, numbers
from ..engine import Engine
from ..releases import Version, version_text
from ..run import Run

ANY: Version = (0, 0, 0)
NEWEST: Version = (10**6, 0, 0)  # of engines that have no engine_version
Steps = tuple[tuple[Version, str], ...]  # a first release, and the oldest capability from it on
BF16 = "8.0"  # of native bf16: torch 2.13.0 torch/cuda/__init__.py is_bf16_supported
# torch's wheels on the package index need CUDA 13, whose compiler has nothing older.
TORCH_WHEEL = "7.5"
LARGEST_FLASH_HEAD = 256  # flash-attn's kernels, and torch's copy of them (flash_api.cpp, mha_fwd)

# The oldest card of each engine.
# vLLM: CMakeLists.txt CUDA_SUPPORTED_ARCHS at 0.4.0 to 0.32.0, for the CUDA of its wheels.
# SGLang: 0.5.18 model_runner_components/load_model_utils.py; 0.4.3 model_runner.py has the same.
# TGI: 3.3.7 layers/attention/cuda.py. TensorRT-LLM: its support matrix; Ampere and newer at 0.18.
# llama.cpp: b10586 ggml/src/ggml-cuda/CMakeLists.txt, with CUDA 12.
ENGINES: Mapping[str, Steps] = {
    "vllm": ((ANY, "7.0"), ((0, 20, 0), "7.5")),
    "sglang": ((ANY, "7.5"),),
    "tgi": ((ANY, "7.5"),),
    "tensorrt_llm": ((ANY, "7.0"), ((0, 18, 0), "8.0")),
    "llamacpp": ((ANY, "5.0"),),
}
# The oldest card of each weight format, where that is newer than the engine's.
# vLLM and SGLang: get_min_capability in layers/quantization, and its releases. A format that has
# several kernels has the oldest card of any. TGI: 3.3.7 layers/fp8.py get_fp8_linear (Marlin).
# TensorRT-LLM: docs/source/features/quantization.md; MXFP4 on Hopper with Triton's kernels.
# transformers, and frozen bases in training: bitsandbytes 0.50.2's table of hardware.
FORMATS: Mapping[str, Mapping[str, Steps]] = {
    "vllm": {
        "fp8": (((0, 4, 1), "9.0"), ((0, 4, 2), "8.9"), ((0, 5, 1), "8.0"), ((0, 14, 0), "7.5")),
        "int8": ((ANY, "7.5"),),
        "int4": ((ANY, "8.0"), ((0, 12, 0), "7.5")),
        "awq": ((ANY, "7.5"),),
        "mxfp4": ((ANY, "8.0"),),
        "nvfp4": ((ANY, "10.0"), ((0, 9, 0), "8.0"), ((0, 14, 0), "7.5")),
    },
    "sglang": {
        "fp8": ((ANY, "8.0"),),
        "int4": ((ANY, "8.0"),),
        "mxfp4": ((ANY, "8.0"),),
        "nvfp4": ((ANY, "10.0"), ((0, 5, 13), "8.0")),
    },
    "tgi": {"fp8": ((ANY, "8.0"),)},
    "tensorrt_llm": {"fp8": ((ANY, "8.9"),), "mxfp4": ((ANY, "9.0"),), "nvfp4": ((ANY, "10.0"),)},
    "transformers": dict.fromkeys(("nf4", "int8"), ((ANY, "6.0"),)),
}
# Servers that refuse bf16 on older cards, and take fp16 where no dtype is given (vLLM 0.32.0
# platforms/cuda.py check_if_supports_dtype, config/model.py _resolve_auto_dtype); servers that take
# fp16 instead (SGLang 0.5.18 load_model_utils.py maybe_downgrade_dtype_for_legacy_gpu).
NO_BF16, FP16_INSTEAD = frozenset({"vllm"}), frozenset({"sglang"})


def older(capability: str, than: str) -> bool:
    """Whether a compute capability is older than another: 9.0 is older than 10.0."""
    return float(capability) < float(than)


def is_older(run: Run, than: str) -> bool:
    """Whether the run names an NVIDIA card that is older than a compute capability."""
    return bool(run.card) and run.runtime == "cuda" and older(run.compute_capability, than)


def oldest(steps: Steps, version: Version) -> str:
    """The oldest compute capability at a version; "" where no row applies."""
    found = [capability for since, capability in steps if since <= version]
    return found[-1] if found else ""


def engine_problems(run: Run, engine: Engine) -> Iterator[str]:
    """A sentence where the engine does not run on the card, or not in bf16."""
    steps = ENGINES.get(engine.name, ())
    needed = oldest(steps, _version(run))
    if needed and is_older(run, needed):
        yield f"hardware.gpu: {_rule(run, _named(engine, run), needed)}; {_other(run, steps)}"
    elif engine.name in NO_BF16 and run.precision == "bf16_pure" and is_older(run, BF16):
        key = f"inference.dtype='bf16' in {engine.title}"
        yield f"{_rule(run, key, BF16)}; use 'fp16'"


def format_problems(run: Run, engine: Engine, name: str) -> Iterator[str]:
    """A sentence where the engine runs on the card, and has no kernel there for weights in the
    format `name`.
    """
    if any(engine_problems(run, engine)):
        return
    table = FORMATS.get(engine.name, {})
    needed = oldest(table.get(name, ()), _version(run))
    if not needed or not is_older(run, needed):
        return
    fits = [
        other
        for other, steps in table.items()
        if not older(run.compute_capability, oldest(steps, _version(run)) or "0")
    ]
    fix = f"use {' or '.join(map(repr, fits[:2]))}" if fits else "leave it out, or use a newer card"
    key = f"inference.quantization={name!r} in {_named(engine, run)}"
    yield f"{_rule(run, key, needed)}; {fix}"


def torch_notes(run: Run, engine: Engine) -> Iterator[str]:
    """Sentences where torch emulates bf16, and where its wheels have no kernels for the card."""
    if engine.serve is not None:
        return
    if run.precision.startswith("bf16") and is_older(run, BF16):
        yield f"{_has(run)}, without bf16 units: torch emulates bf16, slowly; fp16 is native"
    if is_older(run, TORCH_WHEEL):
        wheels = f"torch {TORCH.version}'s wheels on the package index are built with CUDA 13"
        yield f"{_has(run)}, and {wheels}, for {TORCH_WHEEL} and newer; use a build for CUDA 12.6"


def served_dtype(name: str, server: str, capability: str, *, given: bool) -> str:
    """The dtype that a server computes in on a card, where the run file's or default one is `name`.

    `given`: the run file has it.
    """
    takes_fp16 = server in FP16_INSTEAD or (server in NO_BF16 and not given)
    return "fp16" if name == "bf16" and takes_fp16 and older(capability, BF16) else name


def _has(run: Run) -> str:
    return f"{run.card} has compute capability {run.compute_capability}"


def _rule(run: Run, what: str, needed: str) -> str:
    """`what needs compute capability 8.0 or newer, and NVIDIA T4 has 7.5`."""
    card = f"{run.card} has {run.compute_capability}"
    return f"{what} needs compute capability {needed} or newer, and {card}"


def _other(run: Run, steps: Steps) -> str:
    """The nearest fix: an older release of the engine, or an engine that runs on the card."""
    for (_, needed), (until, _) in pairwise(steps):
        if not older(run.compute_capability, needed):
            return f"use an engine_version before {version_text(until)}, or a newer card"
    return "use engine 'llamacpp' or 'transformers', or a newer card"


def _version(run: Run) -> Version:
    text = str(run.options.get("engine_version", ""))
    return numbers(text) if any(map(str.isdigit, text)) else NEWEST


def _named(engine: Engine, run: Run) -> str:
    version = run.options.get("engine_version")
    return f"{engine.title} {version}" if version else engine.title
