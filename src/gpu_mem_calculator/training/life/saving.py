"""Saving a model and its optimizer: what it takes beside what is alive between two steps. An engine
saves in its own way, unless the run names another.
"""

from __future__ import annotations

from ...ledger.ledger import GPU, OPTIM, PARAM, SLACK, Ledger
from ...ledger.num import Bytes, Num, ceil_div, sized, smaller
from ...ledger.source import Source, code
from ...run.engine_row import REPLICATE, SHARD_STATES, SHARD_UNITS, ZERO, EngineRow
from ...run.phases import SAVING, SAVING_OPTIMIZER, LifePhase
from ...run.run import ASYNC, FULL_DICT, FULL_DICT_ON_GPUS, SHARDED_ON_HOST, Precision, Run
from ..optimizers import OPTIMIZERS, state_bytes, tensor_states
from ..step.between_steps import outliving
from ..step.weights import base_bytes, largest_trained, trained_bits, trained_total
from .loading import stored_width

REST = "between two steps"
FILE_BYTES, AHEAD_BYTES = 50 * 10**9, 10**7
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
GATHERED = code(
    "torch 2.13 distributed/checkpoint/state_dict.py get_optimizer_state_dict, full_state_dict"
)
WRITTEN = code(
    "torch 2.13 distributed/checkpoint/filesystem.py _OverlappingCpuLoader: 10 MB are on the host "
    "ahead, and the tensor that goes beyond them; those before it are written"
)
OFFLOADED = code(
    "accelerate 1.15.0 utils/dataclasses.py set_state_dict_type, lightning 2.6.6 "
    "fabric/strategies/fsdp.py _get_sharded_state_dict_context: offload_to_cpu, all shards"
)
STAGED = code(
    "torch 2.13 distributed/checkpoint/staging.py: a copy of all shards on the host, from which "
    "they are written while training goes on"
)
PARTITIONS = code(
    "deepspeed 0.19.8 runtime/engine.py _save_zero_checkpoint: torch.save of each rank's flat "
    "tensors, of which weights below stage 3 are one; a consolidated state dict is in a cycle with "
    "its closure until Python collects it"
)
TENSORS = code("torch 2.11 serialization.py _save: each storage to the host, and written")
PRELOADED = code(
    "megatron-core 0.19.2 dist_checkpointing/strategies/filesystem_async.py preload_tensors: all "
    "that a rank writes is on its host; replicas share the writing (fully_parallel.py)"
)
ON_FIRST = code(
    "megatron-core 0.19.2 optimizer/distrib_optimizer.py get_parameter_state_dp_zero: fp32 weights "
    "and states of all data-parallel ranks on the host of the first"
)


def resting_bytes(ledger: Ledger, *kinds: str, place: str = GPU) -> int:
    """Bytes between two steps in a place, of all kinds or of those named."""
    kept = (e for e in outliving(ledger, [REST]) if e.place == place and e.name != SLACK)
    return sum(int(entry.at(REST)) for entry in kept if not kinds or entry.kind in kinds)


def saved_bytes(run: Run, precision: Precision) -> Bytes:
    """Bytes of what is saved: of the adapters, where there are any, else of the weights."""
    if run.adapter is not None:
        return sized(trained_total(run), trained_bits(run, precision))
    return base_bytes(run, precision)


def file_bytes(run: Run, precision: Precision) -> Bytes:
    """Bytes of the largest file."""
    return smaller(saved_bytes(run, precision), sized(FILE_BYTES, 8))


def saving(run: Run, row: EngineRow, precision: Precision, ledger: Ledger) -> LifePhase | None:
    """Saving the model; None where a checkpoint of the optimizer has it, or the ledger has it."""
    if row.ranks == SHARD_STATES:
        return _megatron(run, ledger)
    if row.megatron:
        return None
    gpu, first, ranks, source = resting_bytes(ledger), 0, 0, SAVED
    disk = int(saved_bytes(run, precision))
    whole = int(sized(run.arch.num_parameters, 16))
    if row.ranks == REPLICATE:
        first = int(file_bytes(run, precision))
    elif row.ranks == SHARD_UNITS:
        if run.saving in (FULL_DICT, FULL_DICT_ON_GPUS):
            return None
        bits = _unit_bits(run, precision)
        disk = int(sized(_elements(run), bits))
        shard = _on_gpus(run, ledger, PARAM) if run.adapter is None else disk // int(run.mesh.dp)
        states = _on_gpus(run, ledger, OPTIM) if run.saving == ASYNC else 0
        ranks, source = _shards(run, row, shard + states, bits)
        gpu += _unsharded(run)
    elif run.adapter is not None:
        return None
    elif run.options["zero_stage"] < 3:
        ranks, source, disk = whole, CLONED, whole
    elif run.saving:
        first, source, disk = whole, CONSOLIDATED, whole
        gpu += int(sized(run.arch.largest_weight, 16))
    else:
        return None
    return LifePhase(
        name=SAVING,
        gpu_bytes=gpu,
        rank_bytes=ranks,
        first_bytes=first,
        disk_bytes=disk,
        source=str(source),
    )


def saving_optimizer(
    run: Run, row: EngineRow, precision: Precision, ledger: Ledger
) -> LifePhase | None:
    """Saving the optimizer's states, one tensor on the host after the other. FSDP gathers them all
    where it gathers the model; None where they are saved with it. Of adapters, whose tensors are
    small, malloc keeps what was saved before.
    """
    if row.megatron:
        return None
    rest, bits = resting_bytes(ledger), _unit_bits(run, precision)
    ranks, first, source = 0, 0, TENSORS
    disk = state_total(run, bits)
    if row.ranks == SHARD_UNITS:
        if run.saving == ASYNC:
            return None
        if run.saving in (FULL_DICT, FULL_DICT_ON_GPUS):
            on_gpus = run.saving == FULL_DICT_ON_GPUS
            gpu, source = int(ledger.peak(phases=(SAVING,))), GATHERED
            rest, first = (rest + disk, 0) if on_gpus else (gpu, disk)
        else:
            ranks, source = _shards(run, row, _on_gpus(run, ledger, OPTIM), bits)
    elif row.ranks == ZERO and int(run.mesh.pp) == 1:
        ranks = 0 if run.options.get("offload_optimizer", "none") != "none" else int(_own(run))
        kept = run.saving or (run.options["zero_stage"] < 3 and run.adapter is None)
        whole = int(sized(run.arch.num_parameters, 16)) if kept else 0
        first, source = max(whole - ranks, 0), PARTITIONS
        disk = int(sized(trained_total(run), 32)) + state_total(run, 32)
    elif row.ranks != REPLICATE:
        return None
    else:
        kept_bytes = int(saved_bytes(run, precision)) if run.adapter is not None else 0
        first = max(kept_bytes, _largest_state(run, bits))
    return LifePhase(
        name=SAVING_OPTIMIZER,
        gpu_bytes=rest,
        rank_bytes=ranks,
        first_bytes=first,
        disk_bytes=disk,
        source=str(source),
    )


def _shards(run: Run, row: EngineRow, own: int, bits: int) -> tuple[int, Source]:
    """What a rank of FSDP has on its host while it saves `own` bytes of shards."""
    if run.saving == ASYNC:
        return own, STAGED
    if run.saving == SHARDED_ON_HOST:
        return own, OFFLOADED
    largest = int(sized(ceil_div(run.arch.largest_weight, run.mesh.dp), bits))
    return min(own, 2 * largest + AHEAD_BYTES), WRITTEN


def _unsharded(run: Run) -> int:
    """Bytes of a unit that FSDP 1 gathers before it cuts its parameters into shards (torch 2.13
    distributed/fsdp/_state_dict_utils.py _sharded_pre_state_dict_hook); version 2 has them.
    """
    if run.options.get("fsdp_version") != 1:
        return 0
    layers = [layer.num_parameters for layer, _, _ in run.arch.runs]
    rest = run.arch.num_parameters - sum(layer.num_parameters for layer in run.arch.layers)
    return int(sized(max([*layers, rest]), stored_width(run)))


def _on_gpus(run: Run, ledger: Ledger, kind: str) -> int:
    """Bytes of a kind on a rank's GPU; those of an offloading rank are on the host already."""
    return resting_bytes(ledger, kind) if not run.options.get("cpu_offload") else 0


def _unit_bits(run: Run, precision: Precision) -> int:
    """Bits of what is trained, as it is stored."""
    sharded = "sharding_strategy" in run.options and run.adapter is None
    return stored_width(run) if sharded else trained_bits(run, precision)


def _elements(run: Run) -> Num:
    return trained_total(run) if run.adapter is not None else run.arch.num_parameters


def state_total(run: Run, bits: int) -> int:
    """Bytes of the optimizer's states of the whole model."""
    return int(state_bytes(OPTIMIZERS[run.optimizer], int(trained_total(run)), bits))


def _largest_state(run: Run, bits: int) -> int:
    largest = int(largest_trained(run))
    return max([0, *map(int, tensor_states(OPTIMIZERS[run.optimizer], largest, bits))])


def _own(run: Run) -> Num:
    """Bytes of the largest tensor of a rank's states: a sub-group's fp32 elements."""
    each = sized(ceil_div(trained_total(run), run.mesh.dp), 32)
    if run.options["zero_stage"] < 3:
        return each
    return smaller(each, sized(run.options["sub_group_size"], 32))


def _megatron(run: Run, ledger: Ledger) -> LifePhase:
    """A checkpoint of Megatron, model and optimizer: each rank's part in the format torch_dist,
    which is the default. In the older one data-parallel ranks write nothing but the first, which
    gathers what the distributed optimizer has sharded.
    """
    ranks = max(int(run.mesh.dp), 1)
    split = bool(run.options["distributed_optimizer"])
    weights, states = resting_bytes(ledger, PARAM), resting_bytes(ledger, OPTIM)
    whole = weights + states * (ranks if split else 1)
    part = weights // ranks + (states if split else states // ranks)
    first, source = 0, PRELOADED
    if run.saving == FULL_DICT:
        inner = int(run.mesh.tp * run.mesh.cp)
        leaders = sum(1 for rank in range(run.gpus_per_node) if rank // inner % ranks == 0)
        part, source = 0, ON_FIRST if split else TENSORS
        first = states * ranks * leaders if split else 0
    return LifePhase(
        name=SAVING,
        gpu_bytes=resting_bytes(ledger),
        rank_bytes=part,
        first_bytes=first,
        disk_bytes=whole * int(run.mesh.tp * run.mesh.pp),
        source=str(source),
    )
