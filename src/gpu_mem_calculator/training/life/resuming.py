"""Resuming: a checkpoint is loaded into a model and its optimizer, before anything has run. A
program loads in its tool's way, unless the run says where torch.load puts what it reads.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...ledger.ledger import CPU, GPU, OPTIM, PARAM, RUNTIME, Entry, Instant, Ledger
from ...ledger.num import sized
from ...ledger.source import code
from ...run.engine_row import REPLICATE, SHARD_STATES, SHARD_UNITS, EngineRow
from ...run.phases import FORWARD, RESUMING, STARTUP, LifePhase
from ...run.run import FULL_DICT, FULL_DICT_ON_GPUS, ON_FIRST_GPU, ON_GPU, ON_HOST, Precision, Run
from ..step.weights import base_bytes, trained_bits, trained_total
from .loading import TRAINER_BYTES, begun_bytes, stored_width
from .saving import resting_bytes, saved_bytes, state_total

RESUMED = code(
    "transformers 5.17.0 trainer.py _load_optimizer_and_scheduler: to the host on one GPU, else to "
    "the rank's; the weights' file is mapped"
)
LOADED = code(
    "torch 2.13 serialization.py load: each tensor to its map_location, without one to the GPU it "
    "was saved from; optim/optimizer.py load_state_dict keeps the loaded tensors"
)
SHARDS = code(
    "accelerate 1.15.0 utils/fsdp_utils.py load_fsdp_model, load_fsdp_optimizer: copies of shards "
    "on each rank's host; loaded states are moved beside those that were made to be filled"
)
WHOLE = code(
    "accelerate 1.15.0 utils/fsdp_utils.py load_fsdp_model: torch.load of the whole model on each "
    "rank with FSDP 1, on rank 0 with FSDP 2; states on rank 0"
)
PARTITIONS = code(
    "deepspeed 0.19.8 runtime/engine.py _load_checkpoint, _get_all_zero_checkpoint_state_dicts: to "
    "the host, weights below stage 3 on each rank; load_state_dict makes states beside the first"
)
TWICE = code(
    "megatron-core 0.19.2 optimizer/distrib_optimizer.py load_state_dict, Transformer Engine "
    "2.18.0 optimizers/fused_adam.py load_state_dict: states are made again beside the loaded ones"
)


STATES = code("torch 2.13 optim/optimizer.py load_state_dict")
RESUMES = Instant(name="resumed", phase=STARTUP, title="the checkpoint is loaded", where=RESUMING)


def resuming(run: Run, row: EngineRow, precision: Precision, ledger: Ledger) -> LifePhase | None:
    """Loading a checkpoint; None where the engine's way is not modelled."""
    if row.ranks == SHARD_STATES:
        return _megatron(run, ledger)
    if row.megatron or int(run.mesh.pp) > 1:
        return None
    if run.resuming in (ON_HOST, ON_GPU, ON_FIRST_GPU):
        return _loaded(run, row, precision, ledger)
    if row.ranks == REPLICATE:
        return _trainer(run, precision, ledger)
    return _fsdp(run, ledger) if row.ranks == SHARD_UNITS else _deepspeed(run, ledger)


def with_resuming(run: Run, row: EngineRow, ledger: Ledger) -> Ledger:
    """A ledger whose start-up ends with the checkpoint that is loaded."""
    found = resuming(run, row, row.precision(run), ledger)
    if found is None:
        return ledger
    last = [i for i in ledger.instants if i.phase == STARTUP][-1]
    begun = {i.name for i in ledger.instants if i.phase == FORWARD and i.present}
    kept = tuple(
        replace(e, live={**e.live, RESUMES.name: e.live[last.name]})
        if e.live.get(last.name) and not begun.isdisjoint(e.live)
        else e
        for e in ledger.entries
    )
    alive = sum(int(e.at(RESUMES.name)) for e in kept if e.place == GPU)
    size = sized(max(found.gpu_bytes - alive, 0), 8)
    loaded = Entry(
        "states and what is loaded of the checkpoint", OPTIM, size, {RESUMES.name: 1}, STATES
    )
    index = ledger.instants.index(last) + 1
    instants = (*ledger.instants[:index], RESUMES, *ledger.instants[index:])
    return replace(ledger, instants=instants, entries=(*kept, loaded))


def _start(ledger: Ledger) -> int:
    """Bytes on the GPU before the first step, and the optimizer's states."""
    return resting_bytes(ledger) - resting_bytes(ledger, RUNTIME)


def _process(run: Run) -> int:
    return begun_bytes(run) + TRAINER_BYTES


def _trainer(run: Run, precision: Precision, ledger: Ledger) -> LifePhase:
    alone = int(run.mesh.dp) == 1
    return LifePhase(
        name=RESUMING,
        own_process=True,
        gpu_bytes=_start(ledger),
        rank_bytes=_process(run) + (resting_bytes(ledger, OPTIM) if alone else 0),
        file_bytes=int(saved_bytes(run, precision)),
        apart=True,
        source=str(RESUMED),
    )


def _loaded(run: Run, row: EngineRow, precision: Precision, ledger: Ledger) -> LifePhase:
    """A loop of one's own: torch.load of weights and states, whose dict stays until all is loaded.
    On the GPU the optimizer takes the loaded states as they are, and the weights are there twice;
    a sharded optimizer's states are cut from the whole.
    """
    bits = stored_width(run) if row.ranks == SHARD_UNITS else trained_bits(run, precision)
    if run.adapter is not None:
        model = int(sized(trained_total(run), bits))
    elif row.ranks == SHARD_UNITS:
        model = int(sized(run.arch.num_parameters, bits))
    else:
        model = int(base_bytes(run, precision))
    whole = model + state_total(run, bits)
    readers = min(run.gpus_per_node, int(run.mesh.dp)) if run.resuming == ON_FIRST_GPU else 1
    on_gpu = 0 if run.resuming == ON_HOST else readers * whole
    shared = on_gpu and row.ranks == REPLICATE
    return LifePhase(
        name=RESUMING,
        own_process=True,
        gpu_bytes=_start(ledger) + on_gpu - (resting_bytes(ledger, OPTIM) if shared else 0),
        rank_bytes=_process(run) + (whole if run.resuming == ON_HOST else 0),
        disk_bytes=whole,
        source=str(LOADED),
    )


def _fsdp(run: Run, ledger: Ledger) -> LifePhase:
    """Accelerate's ways. With offload shards and states are on the host, and their copies, too."""
    weights, states = resting_bytes(ledger, PARAM), resting_bytes(ledger, OPTIM)
    host, gpu = 0, states
    if run.options.get("cpu_offload"):
        weights, states = (resting_bytes(ledger, one, place=CPU) for one in (PARAM, OPTIM))
        host, gpu = weights + 2 * states, 0
    loaded, first, source = max(weights, states), 0, SHARDS
    if run.saving in (FULL_DICT, FULL_DICT_ON_GPUS):
        bits = stored_width(run)
        model = int(sized(run.arch.num_parameters, bits))
        loaded = model if run.options.get("fsdp_version") == 1 else 0
        first, source = max(model, state_total(run, bits)) - loaded, WHOLE
    return LifePhase(
        name=RESUMING,
        own_process=True,
        gpu_bytes=_start(ledger) + gpu,
        rank_bytes=_process(run) + loaded + host,
        first_bytes=first,
        source=str(source),
    )


def _deepspeed(run: Run, ledger: Ledger) -> LifePhase:
    part = int(sized(trained_total(run), 32)) // int(run.mesh.dp)
    moments = state_total(run, 32) // int(run.mesh.dp)
    model = 0
    if run.options["zero_stage"] < 3:
        elements = trained_total(run) if run.adapter is not None else run.arch.num_parameters
        model = int(sized(elements, 32 if run.precision == "fp32" else 16))
    offloads = run.options.get("offload_optimizer", "none") != "none"
    loaded = part + moments * (2 if offloads else 1)
    return LifePhase(
        name=RESUMING,
        own_process=True,
        gpu_bytes=_start(ledger) + (0 if offloads else moments),
        rank_bytes=_process(run) + resting_bytes(ledger, place=CPU) + max(model, loaded),
        source=str(PARTITIONS),
    )


def _megatron(run: Run, ledger: Ledger) -> LifePhase:
    """The format torch_dist, which reads into the tensors of the optimizer, rank by rank."""
    states = sum(int(e.bytes) for e in ledger.entries if e.kind == OPTIM and "states" in e.name)
    return LifePhase(
        name=RESUMING,
        own_process=True,
        gpu_bytes=_start(ledger) + states,
        rank_bytes=TRAINER_BYTES,
        source=str(TWICE),
    )
