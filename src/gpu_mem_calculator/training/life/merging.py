"""Merging adapters into their base, and saving the result."""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.ledger import Ledger
from ...ledger.num import sized, smaller
from ...ledger.source import code
from ...models.arch.adapters import adapted_linears
from ...run.phases import MERGING, MERGING_ON_HOST, SAVING_MERGED, LifePhase
from ...run.run import Precision, Run
from ..step.weights import base_bytes
from .loading import begun_bytes, stored_bytes
from .saving import FILE_BYTES, SAVED, resting_bytes, saved_bytes

MERGED = code(
    "peft 0.21.2 tuners/lora/layer.py merge, get_delta_weight: B @ A, and the same times the scale"
)
WIDE = code(
    "axolotl 067b021 cli/merge_lora.py do_cli, LLaMA-Factory ff6d4d1 train/tuner.py export_model, "
    "ms-swift 3602360 pipelines/export/merge_lora.py: the base is loaded again without quantization"
)


def merging(run: Run, precision: Precision, ledger: Ledger) -> Iterator[LifePhase]:
    """Adding adapters to their base, one projection after the other, and saving the result. A
    quantized base is loaded again at 16 bits, on the GPU or on the host, by a process of its own.
    """
    if run.adapter is None:
        return
    layers, targets = (layer for layer, _, _ in run.arch.runs), run.adapter.targets
    largest = max(int(one.numel) for layer in layers for one in adapted_linears(layer, targets))
    delta, kept = int(sized(largest, run.adapter.bits)), int(saved_bytes(run, precision))
    if run.quantization is not None:
        yield from _at_16_bits(run, 2 * delta, kept)
        return
    rest, source = resting_bytes(ledger), str(MERGED)
    yield LifePhase(name=MERGING, gpu_bytes=rest + 2 * delta, first_bytes=kept, source=source)
    whole = int(smaller(base_bytes(run, precision), sized(FILE_BYTES, 8)))
    yield LifePhase(
        name=SAVING_MERGED,
        gpu_bytes=rest,
        first_bytes=whole + kept,
        disk_bytes=whole,
        source=str(SAVED),
    )


def _at_16_bits(run: Run, work: int, kept: int) -> Iterator[LifePhase]:
    """The base without quantization and its adapters, on one GPU or on the host; then of each
    projection what its product needs.
    """
    whole = int(sized(run.arch.num_parameters, 16))
    own, source = begun_bytes(run), str(WIDE)
    yield LifePhase(
        name=MERGING,
        own_process=True,
        gpu_bytes=whole + kept + work,
        first_bytes=own + min(whole, FILE_BYTES),
        file_bytes=stored_bytes(run),
        disk_bytes=whole,
        apart=True,
        source=source,
    )
    yield LifePhase(
        name=MERGING_ON_HOST,
        own_process=True,
        gpu_bytes=0,
        first_bytes=own + whole + kept + work,
        file_bytes=stored_bytes(run),
        disk_bytes=whole,
        apart=True,
        source=source,
    )
