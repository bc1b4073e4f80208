"""Saving a model and its optimizer as transformers' Trainer does, resuming, and merging adapters:
what each takes beside what is alive between two steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.ledger import GPU, OPTIM, RUNTIME, SLACK, Ledger
from ...ledger.num import Bytes, Num, ceil_div, sized, smaller
from ...ledger.source import code
from ...models.arch.adapters import adapted_linears
from ...run.engine_row import REPLICATE, SHARD_UNITS, ZERO, EngineRow
from ...run.phases import MERGING, RESUMING, SAVING, SAVING_MERGED, SAVING_OPTIMIZER, LifePhase
from ...run.run import Precision, Run
from ..optimizers import OPTIMIZERS, state_bytes, tensor_states
from ..step.between_steps import outliving
from ..step.weights import base_bytes, largest_trained, trained_bits, trained_total
from .loading import TRAINER_BYTES, begun_bytes, stored_width

FILE_BYTES = 50 * 10**9
SAVED = code(
    "transformers 5.17.0 modeling_utils.py save_pretrained: files of at most 50 GB; "
    "safetensors 0.8.0 torch.py _flatten_as_ptr: a file's tensors on the host together"
)
CLONED = code(
    "accelerate 1.15.0 accelerator.py get_state_dict: clone_tensors_for_torch_save, on each rank"
)
CONSOLIDATED = code(
    "deepspeed 0.19.8 runtime/engine.py _zero3_consolidated_16bit_state_dict: a module's own "
    "parameters are gathered at a time, and rank 0 copies them to its host"
)
RESUMED = code(
    "transformers 5.17.0 trainer.py _load_optimizer_and_scheduler: to the host on one GPU, else to "
    "the rank's; the weights' file is mapped"
)
GATHERED = code(
    "torch 2.13 distributed/checkpoint/state_dict.py get_optimizer_state_dict, full_state_dict"
)
PARTITIONS = code(
    "deepspeed 0.19.8 runtime/engine.py _save_zero_checkpoint: torch.save of each rank's flat "
    "tensors, of which weights below stage 3 are one; a consolidated state dict is in a cycle with "
    "its closure until Python collects it"
)
TENSORS = code("torch 2.11 serialization.py _save: each storage to the host, and written")
MERGED = code(
    "peft 0.21.2 tuners/lora/layer.py merge, get_delta_weight: B @ A, and the same times the scale"
)


def resting_bytes(ledger: Ledger, *kinds: str) -> int:
    """Bytes on the GPU between two steps, of all kinds or of those named."""
    kept = (e for e in outliving(ledger, [SAVING]) if e.place == GPU and e.name != SLACK)
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
    gpu, first, ranks, source = resting_bytes(ledger), 0, 0, SAVED
    disk = int(saved_bytes(run, precision))
    whole = int(sized(run.arch.num_parameters, 16))
    if row.ranks == REPLICATE:
        first = int(file_bytes(run, precision))
    elif row.ranks != ZERO or run.adapter is not None:
        return None
    elif run.options["zero_stage"] < 3:
        ranks, source = whole, CLONED
    elif run.saving:
        first, source = whole, CONSOLIDATED
        gpu += int(sized(run.arch.largest_weight, 16))
    else:
        return None
    return LifePhase(
        name=SAVING,
        gpu_bytes=gpu,
        rank_bytes=ranks,
        first_bytes=first,
        disk_bytes=disk if row.ranks == REPLICATE else whole,
        source=str(source),
    )


def saving_optimizer(
    run: Run, row: EngineRow, precision: Precision, ledger: Ledger
) -> LifePhase | None:
    """Saving the optimizer's states, one tensor on the host after the other. FSDP gathers them all
    on rank 0 where it gathers the model; None where the engine saves shards. Of adapters, whose
    tensors are small, malloc keeps what was saved before.
    """
    rest = resting_bytes(ledger)
    if row.ranks == SHARD_UNITS and run.saving:
        bits = trained_bits(run, precision) if run.adapter is not None else stored_width(run)
        states = _states(run, bits)
        gpu = int(ledger.peak(phases=(SAVING,)))
        return LifePhase(
            name=SAVING_OPTIMIZER,
            gpu_bytes=gpu,
            first_bytes=states,
            disk_bytes=states,
            source=str(GATHERED),
        )
    if row.ranks == ZERO and int(run.mesh.pp) == 1:
        own = 0 if run.options.get("offload_optimizer", "none") != "none" else _partition(run)
        kept = run.saving or (run.options["zero_stage"] < 3 and run.adapter is None)
        whole = int(sized(run.arch.num_parameters, 16)) if kept else 0
        return LifePhase(
            name=SAVING_OPTIMIZER,
            gpu_bytes=rest,
            rank_bytes=int(own),
            first_bytes=max(whole - int(own), 0),
            disk_bytes=int(sized(trained_total(run), 32)) + _states(run, 32),
            source=str(PARTITIONS),
        )
    if row.ranks != REPLICATE:
        return None
    largest, bits = int(largest_trained(run)), trained_bits(run, precision)
    kept = int(saved_bytes(run, precision)) if run.adapter is not None else 0
    most = max([kept, *map(int, tensor_states(OPTIMIZERS[run.optimizer], largest, bits))])
    source = str(TENSORS)
    return LifePhase(
        name=SAVING_OPTIMIZER,
        gpu_bytes=rest,
        first_bytes=most,
        disk_bytes=_states(run, bits),
        source=source,
    )


def _states(run: Run, bits: int) -> int:
    """Bytes of the optimizer's states of the whole model."""
    return int(state_bytes(OPTIMIZERS[run.optimizer], int(trained_total(run)), bits))


def _partition(run: Run) -> Num:
    """Bytes of the largest tensor of a rank's states: a sub-group's fp32 elements."""
    each = sized(ceil_div(trained_total(run), run.mesh.dp), 32)
    if run.options["zero_stage"] < 3:
        return each
    return smaller(each, sized(run.options["sub_group_size"], 32))


def resuming(run: Run, precision: Precision, ledger: Ledger) -> LifePhase:
    """Loading a checkpoint into the model and its optimizer, before anything has run."""
    alone = int(run.mesh.dp) == 1
    start = begun_bytes(run) + TRAINER_BYTES
    return LifePhase(
        name=RESUMING,
        gpu_bytes=resting_bytes(ledger) - resting_bytes(ledger, RUNTIME),
        rank_bytes=start + (resting_bytes(ledger, OPTIM) if alone else 0),
        file_bytes=int(saved_bytes(run, precision)),
        apart=True,
        source=str(RESUMED),
    )


def merging(run: Run, precision: Precision, ledger: Ledger) -> Iterator[LifePhase]:
    """Adding adapters to their base, one projection after the other, and saving the result."""
    if run.adapter is None or run.quantization is not None:
        return
    layers, targets = (layer for layer, _, _ in run.arch.runs), run.adapter.targets
    largest = max(int(one.numel) for layer in layers for one in adapted_linears(layer, targets))
    delta, rest = int(sized(largest, run.adapter.bits)), resting_bytes(ledger)
    kept = int(saved_bytes(run, precision))
    gpu, source = rest + 2 * delta, str(MERGED)
    yield LifePhase(name=MERGING, gpu_bytes=gpu, first_bytes=kept, source=source)
    whole = int(smaller(base_bytes(run, precision), sized(FILE_BYTES, 8)))
    yield LifePhase(
        name=SAVING_MERGED,
        gpu_bytes=rest,
        first_bytes=whole + kept,
        disk_bytes=whole,
        source=str(SAVED),
    )
