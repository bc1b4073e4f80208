"""What to change: each remedy is the estimate run again with that change."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from ..core.calculator import STEP, Estimate, full_estimate
from ..core.errors import InputError
from ..core.models import MemoryResult
from ..core.runfile import with_settings
from ..core.verdict import FITS
from ..ledger.units import GIB
from .headline import card_bytes
from .lines import Line, gib, wrapped

MOST = 3  # remedies shown


class Remedy(Struct, frozen=True):
    """A change, what it saves on every GPU, and whether the run then fits."""

    settings: tuple[str, ...]
    saves_bytes: int
    fits: bool
    cost: str = ""


def remedies(estimate: Estimate) -> list[Remedy]:
    """Up to three changes that help, where the run does not fit or only just.

    Those that make it fit come first, the cheapest in speed before the others; without one of
    those, the ones that save most. The ledger alone looks through them, and what is shown is
    replayed.
    """
    if estimate.result.verdict == FITS:
        return []
    tried = [_tried(estimate, *candidate) for candidate in _candidates(estimate)]
    found = [remedy for remedy in tried if remedy is not None]
    likely = (remedy for remedy in found if remedy.fits)
    fitting = _replayed(estimate, likely, only_fitting=True)
    if fitting:
        return fitting
    most = sorted(found, key=lambda remedy: -remedy.saves_bytes)
    return _replayed(estimate, (*_together(estimate, most), *_adapter(estimate), *most))


def _replayed(
    estimate: Estimate, found: Iterable[Remedy], *, only_fitting: bool = False
) -> list[Remedy]:
    """The first of them, with the figures of a replay; one that then saves nothing is left out."""
    shown: list[Remedy] = []
    for remedy in found:
        if len(shown) == MOST:
            break
        again = _tried(estimate, remedy.settings, remedy.cost, replay=True)
        if again is not None and (again.fits or not only_fitting):
            shown.append(again)
    return shown


def _tried(
    estimate: Estimate, settings: tuple[str, ...], cost: str, *, replay: bool = False
) -> Remedy | None:
    """A change tried out; nothing where it is refused or saves next to nothing."""
    result = _again(estimate, settings, replay=replay)
    if result is None:
        return None
    needs = card_bytes(estimate) if replay else _by_ledger(estimate)
    saved = needs - round(result.total_memory_per_gpu_gb * GIB)
    return Remedy(settings, saved, result.fits_on_gpu, cost) if saved > needs // 100 else None


def _by_ledger(estimate: Estimate) -> int:
    """What the card must have by the ledger alone."""
    return int(estimate.ledger.peak(phases=STEP)) + estimate.result.outside_torch_bytes


def _together(estimate: Estimate, found: list[Remedy]) -> Iterator[Remedy]:
    """The fewest of the best changes that fit together, where no single one does."""
    settings: dict[str, str] = {}
    for number, remedy in enumerate(found, 1):
        for setting in remedy.settings:
            settings.setdefault(setting.partition("=")[0], setting)
        if number > 1:
            both = _tried(estimate, tuple(settings.values()), "")
            if both is not None and both.fits:
                yield both
                return


def _adapter(estimate: Estimate) -> Iterator[Remedy]:
    """The last resort: an adapter on quantized weights, where that fits."""
    if estimate.resolved.run.adapter is None and estimate.resolved.run.new_tokens is None:
        settings = ("training.lora.r=16", "training.quantization=nf4")
        for more in ((), ("training.activation_checkpointing=full",)):
            cost = "trains an adapter, not the model"
            remedy = _tried(estimate, (*settings, *more), cost)
            if remedy is not None and remedy.fits:
                yield remedy
                return


def _again(estimate: Estimate, settings: tuple[str, ...], *, replay: bool) -> MemoryResult | None:
    """The result after a change, or nothing where the engine refuses it."""
    data = with_settings(copy.deepcopy(estimate.result.run), settings)
    try:
        return full_estimate(data, replay=replay).result
    except InputError:
        return None


def _candidates(estimate: Estimate) -> Iterator[tuple[tuple[str, ...], str]]:
    """Changes worth trying, the cheapest in speed first."""
    run, name = estimate.resolved.run, estimate.resolved.engine.name
    if run.new_tokens is not None:
        yield from _served(estimate)
        return
    if run.implementation != "fused" and run.optimizer in ("adam", "adamw"):
        yield ("training.optimizer_implementation=fused",), ""
    yield from _sharding(name, run.options, run.mesh.dp)
    if name.startswith("megatron") and run.mesh.tp > 1 and not run.sequence_parallel:
        yield ("parallelism.sequence_parallel=true",), ""
    if run.batch > 1:
        half, twice = run.batch // 2, -(-run.batch * run.micro_batches // (run.batch // 2))
        yield (
            f"training.batch_size={half}", f"training.gradient_accumulation_steps={twice}",
        ), "same batch in more micro-batches"  # fmt: skip
    if run.recompute != "selective" and name.startswith("megatron"):
        yield ("training.activation_checkpointing=selective",), "little extra compute"
    if run.recompute != "full" or run.recompute_quarters < 4:
        yield ("training.activation_checkpointing=full",), "about a third more compute"
    if run.optimizer in ("adam", "adamw") and name in ("pytorch_ddp", "fsdp"):
        yield ("training.optimizer=adamw_8bit",), "8-bit states"
    yield from _model_parallel(estimate)
    if "offload_optimizer" in run.options and run.options["offload_optimizer"] == "none":
        yield ("engine.offload_optimizer=cpu",), "the CPU steps, slower"
        if run.options.get("zero_stage") == 3:
            both = ("engine.offload_optimizer=cpu", "engine.offload_param=cpu")
            yield both, "the CPU steps and holds the weights, slower"


def _served(estimate: Estimate) -> Iterator[tuple[tuple[str, ...], str]]:
    """Changes for an inference run."""
    run = estimate.resolved.run
    if run.attention == "eager":
        yield ("inference.attention=sdpa",), ""
    if run.precision == "fp32":
        yield ("inference.dtype=bf16",), "16-bit weights and cache"
    if run.batch > 1:
        yield (f"inference.batch_size={run.batch // 2}",), "fewer sequences at once"


def _sharding(name: str, options: Any, dp: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """Cutting more of the states over the data-parallel ranks."""
    if dp == 1:
        return
    if name == "pytorch_ddp":
        yield ("engine.type=fsdp",), "states cut over the GPUs, more communication"
    stage = options.get("zero_stage")
    if stage is not None:
        for higher in range(stage + 1, 4):
            cost = "more communication" if higher == 3 else ""
            yield (f"engine.zero_stage={higher}",), cost
    if options.get("sharding_strategy") in ("no_shard", "shard_grad_op", "hybrid_shard"):
        yield ("engine.sharding_strategy=full_shard",), "more communication"
    if options.get("distributed_optimizer") is False:
        yield ("engine.distributed_optimizer=true",), ""


def _model_parallel(estimate: Estimate) -> Iterator[tuple[tuple[str, ...], str]]:
    """Twice the tensor or pipeline parallelism, out of the data-parallel ranks."""
    run, axes = estimate.resolved.run, estimate.resolved.engine.axes
    if run.mesh.dp % 2:
        return
    half = f"parallelism.data_parallel_size={run.mesh.dp // 2}"
    if "tp" in axes and run.mesh.tp * 2 <= run.gpus_per_node:
        yield (f"parallelism.tensor_parallel_size={run.mesh.tp * 2}", half,
               "parallelism.sequence_parallel=true"), "more communication"  # fmt: skip
    if "pp" in axes:
        yield (f"parallelism.pipeline_parallel_size={run.mesh.pp * 2}", half), "a longer pipeline"


def advice_lines(estimate: Estimate, found: list[Remedy]) -> Iterator[Line]:
    """The remedies, each with its figure."""
    fitted = estimate.result.fits_on_gpu
    for index, remedy in enumerate(found):
        label = "next: " if index == 0 else "  or: "
        settings = " ".join(f"--set {setting}" for setting in remedy.settings)
        fits = "" if fitted else " and fits" if remedy.fits else " and still does not fit"
        tail = f"; {remedy.cost}" if remedy.cost else ""
        saves = f"saves {gib(remedy.saves_bytes)} GiB{fits}{tail}"
        if len(label) + len(settings) + 1 + len(saves) <= 80:
            yield [(label, "bold"), (settings, "cyan"), (f" {saves}", "")]
            continue
        for number, setting in enumerate(_folded(remedy.settings)):
            yield [(label if number == 0 else " " * 6, "bold"), (setting, "cyan")]
        yield from wrapped("      ", saves)


def _folded(settings: tuple[str, ...]) -> list[str]:
    """Settings in as few lines as they need."""
    rows: list[str] = []
    for setting in settings:
        text = f"--set {setting}"
        if rows and len(rows[-1]) + len(text) + 1 <= 74:
            rows[-1] += f" {text}"
        else:
            rows.append(text)
    return rows
