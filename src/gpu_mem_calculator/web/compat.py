"""The reference calculator's endpoints: its names and shapes, with our numbers in them.

Each is a task, a function of the client's JSON and the options of its address; `REFERENCE` is the
table of them.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from ..estimates.calculator import Estimate, full_estimate, needed_bytes
from ..estimates.explain.explain import ExplainedEntry, explain
from ..estimates.fit_verdict import UNSURE
from ..estimates.result import MemoryResult
from ..ledger.dtypes import BITS
from ..ledger.frameworks import BY_NAME
from ..ledger.ledger import GPU, RUNTIME
from ..ledger.units import GIB
from ..report.data import to_json, to_yaml
from ..report.lines import gib
from ..report.parts import CERTAIN, MARGIN, REST, rest_words
from ..runfile.config import RunFile, TrainingConfig
from ..runfile.read import as_dict, key_types, parts
from ..runfile.resolve.resolve import resolve
from ..runfile.resolve.resolved_run import ResolvedRun
from ..runfile.text.errors import InputError, nearest
from ..tools.deepspeed import write as deepspeed
from ..tools.read import read
from ..tools.writing.writers import write_run
from ..training.engines import engines as every_engine
from ..training.optimizers import OPTIMIZERS
from .compat_bodies import from_reference
from .compat_inference import inference
from .compat_models import fetch_model

Options = Mapping[str, str]
MOST_BATCH = 512
GUESSES = 3  # replays that guess from the last one; later ones bisect
# Engine options that its explanation repeats.
REPEATED = ("zero_stage", "offload_optimizer", "offload_param", "sharding_strategy")


class UnsupportedFieldError(Exception):
    """The reference calculator has this endpoint or format, and this calculator does not."""


def engines() -> dict[str, str]:
    """Titles of the training engines by name."""
    return {name: engine.title for name, engine in every_engine().items()}


def optimizers() -> dict[str, str]:
    """Titles of the optimizers by name."""
    return {name: row.title for name, row in OPTIMIZERS.items()}


def dtypes() -> dict[str, str]:
    """Titles of the number formats of training; int8 and int4 belong to training.quantization."""
    kinds = parts(key_types(TrainingConfig)["precision"])
    names = dict.fromkeys(
        word.partition("_")[0] for kind in kinds for word in typing.get_args(kind)
    )
    return {name: f"{name.upper()}, {BITS[name]} bits" for name in names}


def explain_formula(body: Any, _options: Options) -> dict[str, Any]:
    """Every entry alive at the peak with its formula; with what the allocator needs beyond them and
    the margin they add up to the total.
    """
    estimate = full_estimate(from_reference(body))
    explanation, result = explain(estimate), estimate.result
    engine, run = estimate.resolved.engine, estimate.resolved.run
    entries = [entry for entry in explanation.entries if entry.place == GPU and entry.bytes_at_peak]
    mesh = {
        f"{name}_parallel_size": int(getattr(run.mesh, axis))
        for axis, name in (("tp", "tensor"), ("pp", "pipeline"))
    }
    return {
        "engine_type": engine.name,
        "engine_name": engine.title,
        "formula_description": (
            f"{engine.title} takes most at this moment: {explanation.peak}. What is alive then "
            "adds up to the total, with what is outside torch, what torch's allocator needs beyond "
            "that, and the margin."
        ),
        "formula_components": [*map(_component, entries), *_beyond(estimate)],
        "letters": explanation.letters,
        "breakdown": {
            name: round(getattr(result.breakdown, name), 2)
            for name in result.breakdown.__struct_fields__
        },
        "references": list(_references(entry.source for entry in entries)),
        "total_memory_gb": round(result.total_memory_per_gpu_gb, 2),
        **{key: run.options[key] for key in REPEATED if key in run.options},
        "parallelism": mesh,
    }


def _component(entry: ExplainedEntry) -> dict[str, Any]:
    copies = f"{entry.copies_at_peak} × ({{}})" if entry.copies_at_peak > 1 else "{}"
    formula = copies.format(entry.formula)
    if entry.numbers != entry.formula:
        formula += f" = {copies.format(entry.numbers)}"
    return {
        "name": entry.name,
        "formula": formula,
        "result": f"{gib(entry.bytes_at_peak, 2)} GiB",
        "description": entry.source,
        "bytes": entry.bytes_at_peak,
        "kind": entry.kind,
    }


def _beyond(estimate: Estimate) -> Iterator[dict[str, Any]]:
    """What torch's allocator needs beyond the tensors of the peak, and the margin; a server has
    neither.
    """
    result, margin = estimate.result, estimate.result.margin_bytes or 0
    if result.serving is not None or result.needs_bytes is None:
        return
    more = result.needs_bytes - result.allocated_bytes
    for name, size, formula, why in (
        (REST, more, "needs_bytes - allocated_bytes", rest_words(result)),
        (MARGIN, margin, "margin_bytes", CERTAIN),
    ):
        if size > 0:
            yield {
                "name": name,
                "formula": formula,
                "result": f"{gib(size, 2)} GiB",
                "description": why,
                "bytes": size,
                "kind": RUNTIME,
            }


def _references(sources: Iterable[str]) -> Iterator[dict[str, str]]:
    """One for each framework that is cited, with the lines that are."""
    lines: dict[str, list[str]] = {}
    for source in dict.fromkeys(sources):
        kind, _, text = source.partition(": ")
        words = text.split(maxsplit=2)
        if kind == "code" and len(words) > 1 and words[0].lower() in BY_NAME:
            lines.setdefault(" ".join(words[:2]), []).append(" ".join(words[2:]))
    for title, cited in lines.items():
        url = BY_NAME[title.split()[0].lower()].url
        yield {"title": title, "url": url, "description": "; ".join(filter(None, cited))}


def export(body: Any, options: Options) -> dict[str, Any]:
    """The run as a file of another program, or as a run file."""
    name = options.get("format", "").lower()
    if name in UNSUPPORTED:
        raise UnsupportedFieldError(f"export to {name} is not supported; {', '.join(EXPORTS)} are")
    if name not in EXPORTS:
        known = (*EXPORTS, *UNSUPPORTED)
        raise InputError(
            f"export format {name!r} is not known{nearest(name, known)}; use {', '.join(EXPORTS)}"
        )
    file = read(from_reference(body))
    return {"format": name, **EXPORTS[name](file, resolve(file))}


def _json(file: RunFile, _resolved: ResolvedRun) -> dict[str, Any]:
    return {"content": to_json(as_dict(file)), "filename": "config.json"}


def _yaml(file: RunFile, _resolved: ResolvedRun) -> dict[str, Any]:
    return {"content": to_yaml(as_dict(file)), "filename": "config.yaml"}


def _deepspeed(file: RunFile, resolved: ResolvedRun) -> dict[str, Any]:
    config = deepspeed.write(file, resolved)
    return {
        "content": to_json(config),
        "filename": deepspeed.FILENAME,
        "config": config,
        "memory_result": full_estimate(file).result,
    }


def _other_tool(name: str) -> Callable[[RunFile, ResolvedRun], dict[str, Any]]:
    """The run as a file of another tool, with comments on what it cannot say."""

    def export_run(file: RunFile, resolved: ResolvedRun) -> dict[str, Any]:
        written = write_run(name, file, resolved)
        return {"content": written.text, "filename": written.filename}

    return export_run


def optimize_batch_size(body: Any, _options: Options) -> dict[str, Any]:
    """The largest micro-batch that fits: the ledger gives the first guess, replays confirm it."""
    file = read(from_reference(body))
    if file.inference is not None:
        raise InputError(
            "optimize/batch-size is for training; inference/calculate says how many sequences fit"
        )
    best, result = _largest(file, resolve(file))
    if result is not None:
        return {"max_batch_size": best, "memory_result": result, "problems": []}
    result = _result_with_batch(file, 1)
    has, needs = result.gpu_memory_bytes, result.total_memory_per_gpu_gb
    short = f"not even a micro-batch of 1 fits: it needs {needs:,.2f} GiB of {has / GIB:,.2f}"
    if result.verdict == UNSURE:
        short = (
            f"a micro-batch of 1 is tight: it is certain with {needs:,.2f} GiB of {has / GIB:,.2f}"
        )
    return {"max_batch_size": 0, "memory_result": result, "problems": [short]}


def _result_with_batch(file: RunFile, batch: int) -> MemoryResult:
    return full_estimate(replace(file, training=replace(file.training, batch_size=batch))).result


def _largest(file: RunFile, resolved: ResolvedRun) -> tuple[int, MemoryResult | None]:
    """The largest micro-batch whose replay fits, and its result; (0, None) where none does."""
    limit = resolved.hardware.memory_bytes

    def by_ledger(low: int, high: int, beside: int) -> int:
        """The largest batch from low to high that fits by the ledger, with `beside` bytes added."""
        while low < high:
            middle = (low + high + 1) // 2
            run = replace(resolved.run, batch=middle)
            fits = needed_bytes(resolved, run) + beside <= limit
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    guess = by_ledger(0, MOST_BATCH, 0)
    fits, fails = 0, guess + 1
    best: MemoryResult | None = None
    tries = 0
    while fails - fits > 1:
        result = _result_with_batch(file, guess)
        tries += 1
        if result.fits_on_gpu:
            fits, best = guess, result
        else:
            fails = guess
        beside = (result.needs_bytes or 0) + (result.margin_bytes or 0) - result.allocated_bytes
        near = by_ledger(fits, fails - 1, beside) if tries < GUESSES else (fits + fails) // 2
        guess = min(max(near, fits + 1), fails - 1)
    return fits, best


def multinode(_body: Any, _options: Options) -> Any:
    """Refuses: traffic between nodes is not supported."""
    raise UnsupportedFieldError("traffic between nodes is not supported; calculate says the memory")


EXPORTS: dict[str, Callable[[RunFile, ResolvedRun], dict[str, Any]]] = {
    "json": _json,
    "yaml": _yaml,
    "deepspeed": _deepspeed,
    "accelerate": _other_tool("accelerate"),
    "axolotl": _other_tool("axolotl"),
}
UNSUPPORTED = ("lightning",)
REFERENCE: dict[str, Callable[[Any, Options], Any]] = {
    "explain-formula": explain_formula,
    "export": export,
    "optimize/batch-size": optimize_batch_size,
    "inference/calculate": inference,
    "multinode/calculate": multinode,
    "hf/fetch": fetch_model,
}
