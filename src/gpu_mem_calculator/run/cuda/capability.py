"""What a card can run of a server: the server itself, its weight format and its dtype.

Rules are for cards that the run file names: of a card that is known by its memory alone, nothing is
known.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..engine import Engine
    from ..releases import Version
    from ..run import Run
    from ..server_row import CardRules, CardSteps

NEWEST: Version = (10**6, 0, 0)  # of engines that have no engine_version
BF16 = "8.0"  # of native bf16: torch 2.13.0 torch/cuda/__init__.py is_bf16_supported
# torch's wheels on the package index need CUDA 13, whose compiler has nothing older.
TORCH_WHEEL = "7.5"
LARGEST_FLASH_HEAD = 256  # flash-attn's kernels, and torch's copy of them (flash_api.cpp, mha_fwd)


def older(capability: str, than: str) -> bool:
    """Whether a compute capability is older than another: 9.0 is older than 10.0."""
    return float(capability) < float(than)


def is_older(run: Run, than: str) -> bool:
    """Whether the run names an NVIDIA card that is older than a compute capability."""
    return bool(run.card) and run.runtime == "cuda" and older(run.compute_capability, than)


def oldest(steps: CardSteps, version: Version) -> str:
    """The oldest compute capability at a version; "" where no row applies."""
    found = [capability for since, capability in steps if since <= version]
    return found[-1] if found else ""


def server_problems(run: Run, engine: Engine, cards: CardRules) -> Iterator[str]:
    """A sentence where the server does not run on the card, or not in bf16."""
    from ..server_row import REFUSES

    needed = oldest(cards.oldest, _version(run))
    if needed and is_older(run, needed):
        fix = _other(run, cards.oldest)
        yield f"hardware.gpu: {_rule(run, _named(engine, run), needed)}; {fix}"
    elif cards.without_bf16 == REFUSES and run.precision == "bf16_pure" and is_older(run, BF16):
        key = f"inference.dtype='bf16' in {engine.title}"
        yield f"{_rule(run, key, BF16)}; use 'fp16'"


def format_problems(run: Run, engine: Engine, cards: CardRules, name: str) -> Iterator[str]:
    """A sentence where the server runs on the card, and has no kernel there for weights in the
    format `name`.
    """
    if any(server_problems(run, engine, cards)):
        return
    needed = oldest(cards.formats.get(name, ()), _version(run))
    if not needed or not is_older(run, needed):
        return
    fits = [
        other
        for other, steps in cards.formats.items()
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
        from ...ledger.frameworks import TORCH

        wheels = f"torch {TORCH.version}'s wheels on the package index are built with CUDA 13"
        yield f"{_has(run)}, and {wheels}, for {TORCH_WHEEL} and newer; use a build for CUDA 12.6"


def served_dtype(name: str, cards: CardRules, capability: str, *, given: bool) -> str:
    """The dtype that a server computes in on a card, where the run file's or default one is `name`.

    `given`: the run file has it.
    """
    from ..server_row import REFUSES, TAKES_FP16

    takes_fp16 = cards.without_bf16 in (TAKES_FP16, *([] if given else [REFUSES]))
    return "fp16" if name == "bf16" and takes_fp16 and older(capability, BF16) else name


def _has(run: Run) -> str:
    return f"{run.card} has compute capability {run.compute_capability}"


def _rule(run: Run, what: str, needed: str) -> str:
    """`what needs compute capability 8.0 or newer, and NVIDIA T4 has 7.5`."""
    card = f"{run.card} has {run.compute_capability}"
    return f"{what} needs compute capability {needed} or newer, and {card}"


def _other(run: Run, steps: CardSteps) -> str:
    """The nearest fix: an older release of the engine, or an engine that runs on the card."""
    for (_, needed), (until, _) in pairwise(steps):
        if not older(run.compute_capability, needed):
            from ..releases import version_text

            return f"use an engine_version before {version_text(until)}, or a newer card"
    return "use engine 'llamacpp' or 'transformers', or a newer card"


def _version(run: Run) -> Version:
    text = str(run.options.get("engine_version", ""))
    if not any(map(str.isdigit, text)):
        return NEWEST
    from ...ledger.frameworks import numbers

    return numbers(text)


def _named(engine: Engine, run: Run) -> str:
    version = run.options.get("engine_version")
    return f"{engine.title} {version}" if version else engine.title
