"""Saving a model and its optimizer as transformers' Trainer does, resuming, and merging adapters:
what each takes beside what is alive between two steps.
"""

from __future__ import annotations

from ...ledger.ledger import GPU, OPTIM, Ledger
from ...ledger.num import Bytes, sized, smaller
from ...ledger.source import code
from ...models.arch.adapters import adapted_linears
from ...run.engine_row import REPLICATE, ZERO, EngineRow
from ...run.phases import MERGING, RESUMING, SAVING, LifePhase
from ...run.run import Precision, Run
from ..step.between_steps import outliving
from ..step.weights import base_bytes, trained_bits, trained_total

FILE_BYTES = 50 * 10**9
SAVED = code(
    "transformers 5.17.0 modeling_utils.py save_pretrained: files of at most 50 GB; "
    "safetensors 0.8.0 torch.py _flatten_as_ptr: a file's tensors on the host together"
)
CLONED = code(
    "accelerate 1.15.0 accelerator.py get_state_dict: clone_tensors_for_torch_save, on each rank"
)
RESUMED = code(
    "transformers 5.17.0 trainer.py _load_optimizer_and_scheduler: to the host on one GPU, else to "
    "the rank's; the weights' file is mapped"
)
MERGED = code(
    "peft 0.21.2 tuners/lora/layer.py merge, get_delta_weight: B @ A, and the same times the scale"
)


def resting_bytes(ledger: Ledger, *kinds: str) -> int:
    """Bytes on the GPU between two steps, of all kinds or of those named."""
    kept = (e for e in outliving(ledger, [SAVING]) if e.place == GPU)
    return sum(int(entry.at(SAVING)) for entry in kept if not kinds or entry.kind in kinds)


def saved_bytes(run: Run, precision: Precision) -> Bytes:
    """Bytes of what is saved: of the adapters, where there are any, else of the weights."""
    if run.adapter is not None:
        return sized(trained_total(run), trained_bits(run, precision))
    return base_bytes(run, precision)


def file_bytes(run: Run, precision: Precision) -> Bytes:
    """Bytes of the largest file."""
    return smaller(saved_bytes(run, precision), sized(FILE_BYTES, 8))


def saving(run: Run, row: EngineRow, precision: Precision, ledger: Ledger) -> LifePhase | None:
    """Saving the model; None where the engine saves shards, or its ledger has a save."""
    if row.ranks == REPLICATE:
        first, ranks, source = int(file_bytes(run, precision)), 0, SAVED
    elif row.ranks == ZERO and run.options["zero_stage"] < 3 and run.adapter is None:
        first, ranks, source = 0, int(sized(run.arch.num_parameters, 16)), CLONED
    else:
        return None
    return LifePhase(
        name=SAVING,
        gpu_bytes=resting_bytes(ledger),
        rank_bytes=ranks,
        first_bytes=first,
        source=str(source),
    )


def resuming(run: Run, precision: Precision, ledger: Ledger) -> LifePhase:
    """Loading a checkpoint into the model and its optimizer."""
    alone = int(run.mesh.dp) == 1
    return LifePhase(
        name=RESUMING,
        gpu_bytes=resting_bytes(ledger),
        rank_bytes=resting_bytes(ledger, OPTIM) if alone else 0,
        file_bytes=int(saved_bytes(run, precision)),
        source=str(RESUMED),
    )


def merging(run: Run, ledger: Ledger) -> LifePhase | None:
    """Adding adapters to their base, one projection after the other."""
    if run.adapter is None or run.quantization is not None:
        return None
    layers, targets = (layer for layer, _, _ in run.arch.runs), run.adapter.targets
    largest = max(int(one.numel) for layer in layers for one in adapted_linears(layer, targets))
    delta = int(sized(largest, run.adapter.bits))
    peak = resting_bytes(ledger) + 2 * delta
    return LifePhase(name=MERGING, gpu_bytes=peak, source=str(MERGED))
