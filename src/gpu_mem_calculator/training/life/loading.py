"""Loading a checkpoint: what the host holds while the weights come to each rank, and what a rank's
process holds besides.

A file of safetensors is mapped: its pages are in the kernel's cache, once for a node, and the
kernel takes them back where memory is short. A weight that stays on the host and keeps its stored
dtype is such pages, which are read when it is moved; one that is cast is memory of its process.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from ...ledger.num import sized
from ...ledger.source import code, measured
from ...ledger.units import MIB
from ...run.engine_row import REPLICATE, SHARD_UNITS, ZERO, EngineRow
from ...run.phases import LOADING, STARTUP, LifePhase
from ...run.run import ZEROS, Precision, Run
from ..losses import LOSSES
from ..step.weights import trained_bits, trained_total

UNPACKED = code(
    "transformers 5.17.0 integrations/mxfp4.py Mxfp4Dequantize; modeling_utils.py "
    "needs_zero3_init: not for a quantized checkpoint"
)
SOURCE = code(
    "transformers 5.17.0 core_model_loading.py _materialize_copy; safetensors 0.8.0 safe_open: "
    "a view of the mapped file, cast by Tensor.to"
)
# What from_pretrained and CUDA's context add to a process, then bitsandbytes' library or what casts
# leave, and what a trainer adds before its first step.
PROCESS_BYTES, QUANTIZED_BYTES, TRAINER_BYTES = 108 * MIB, 60 * MIB, 32 * MIB
# What packages add to a process that trains: PEFT, TRL, and model.generate.
MAKING_BYTES = 45 * MIB  # what PEFT leaves on the host where it makes adapters on a GPU
ADAPTERS_BYTES, TRL_BYTES, GENERATION_BYTES = 70 * MIB, 240 * MIB, 215 * MIB
MXFP4_BITS = 425  # hundredths of a bit: 32 values of 4 bits share a scale of 8
PACKED = re.compile(r"\.experts\..*(gate_up_proj|down_proj)$")
# What workers of a data loader have of their own by Pss, of 1, 2 or 4 together at most; torch's
# prefetch_factor (torch 2.13 utils/data/dataloader.py), and three int64 of a token.
WORKERS_BYTES, PREFETCHED, BATCH_BYTES = 111 * MIB, 2, 3 * 8
PROCESS_SOURCE = measured("resident pages beside weights and files in 25 lives, by phase")


def loading(run: Run, row: EngineRow, precision: Precision) -> LifePhase:
    """The phase in which from_pretrained reads the weights."""
    stored, cast = stored_bytes(run), cast_bytes(run, row, precision)
    mapped = stored if cast or not on_host(run, row) else 0
    each, first = cast, 0
    if run.loading and on_host(run, row):
        zeros = _elements(run) * _load_bits(run, row, precision) // 8 if run.loading == ZEROS else 0
        each, first, mapped = zeros, cast - zeros, stored
    return LifePhase(
        name=LOADING,
        gpu_bytes=_peak_on_gpu(run, precision) if run.from_pretrained else 0,
        rank_bytes=begun_bytes(run) + each,
        first_bytes=first,
        file_bytes=mapped,
        disk_bytes=stored,
        source=str(UNPACKED if run.packed_experts else SOURCE),
    )


def starting(run: Run, row: EngineRow, precision: Precision) -> LifePhase:
    """What each process holds of the model until it is on the GPU, beside what an engine makes."""
    cast = cast_bytes(run, row, precision)
    each = 0 if row.ranks == SHARD_UNITS else cast  # FSDP's ledger has it
    own = MAKING_BYTES if run.adapter is not None else 0
    if own and on_host(run, row):
        own = int(sized(trained_total(run), trained_bits(run, precision)))
    return LifePhase(
        name=STARTUP,
        gpu_bytes=0,
        rank_bytes=begun_bytes(run) + TRAINER_BYTES + own + each,
        file_bytes=stored_bytes(run) if on_host(run, row) and not cast else 0,
        apart=row.ranks == ZERO,  # the model is moved before it is cast and sharded
        source=str(SOURCE),
    )


def stored_bytes(run: Run) -> int:
    """Bytes of the checkpoint's weights."""
    packed = _packed(run)
    return (_elements(run) - packed) * run.stored_bits // 8 + packed * MXFP4_BITS // 800


def _elements(run: Run) -> int:
    return sum(int(weight.numel) for weight in run.arch.weights())


def _packed(run: Run) -> int:
    """Elements of experts that are packed in the checkpoint."""
    if not run.packed_experts:
        return 0
    return sum(int(w.numel) for w in run.arch.weights() if PACKED.search(w.name))


BITS = {"fp32": 32, "bf16": 16, "fp16": 16}


def on_host(run: Run, row: EngineRow) -> bool:
    """Whether each rank loads the whole model on its host before an engine has it: where nothing
    says it, transformers does, and DeepSpeed's zero.Init and FSDP 2's meta device do not.
    """
    if run.from_pretrained:
        return False
    if row.ranks == REPLICATE:
        return run.options.get("init_device") == "cpu"
    if "zero_stage" in run.options:
        return run.options["zero_stage"] < 3 or not run.options.get("zero_init", True)
    first = run.options.get("fsdp_version") == 1
    return (run.options.get("init_device") or ("cpu" if first else "meta")) == "cpu"


def cast_bytes(run: Run, row: EngineRow, precision: Precision) -> int:
    """Bytes of a rank's own copy of the model on the host; 0 where it is pages of files. DeepSpeed
    casts on the GPU what was loaded, by default as it is stored. Packed experts are unpacked by
    each rank, under ZeRO-3, too.
    """
    made = _load_bits(run, row, precision)
    if run.packed_experts and (row.ranks == ZERO or on_host(run, row)):
        return _elements(run) * max(made, 16) // 8
    if not on_host(run, row) or made == run.stored_bits:
        return 0
    return _elements(run) * made // 8


def _load_bits(run: Run, row: EngineRow, precision: Precision) -> int:
    """Bits of a weight as from_pretrained loads it."""
    given = BITS.get(run.load_dtype or run.options.get("init_dtype") or "", 0)
    usual = run.stored_bits if row.ranks == ZERO else precision.weights
    return given or (stored_width(run) if row.ranks == SHARD_UNITS else usual)


def stored_width(run: Run) -> int:
    """Bits of FSDP's shards, which are cast when they are gathered."""
    return 16 if run.precision.endswith("_pure") else 32


def begun_bytes(run: Run) -> int:
    """Bytes of a process before its first step, beside weights."""
    casts = run.from_pretrained and run.quantization is None and _narrow(run)
    return PROCESS_BYTES + (QUANTIZED_BYTES if run.quantization or casts else 0)


def _narrow(run: Run) -> bool:
    """Whether weights are cast to fp32 on their way to the GPU; what the casts leave is kept."""
    return run.stored_bits == 16 and not run.precision.endswith("_pure")


def package_bytes(run: Run) -> int:
    """Bytes of packages beside transformers and the engine, in a process that trains."""
    of_trl = LOSSES[run.loss].per_token
    return TRL_BYTES if of_trl else ADAPTERS_BYTES if run.adapter else 0


def worker_bytes(run: Run) -> int:
    """Bytes of the workers of a rank's data loader: pages of its process as they were when it was
    forked, once for all workers, and two batches of ids, labels and mask of each in shared memory.
    """
    if not run.data_workers:
        return 0
    batch = int(run.batch) * int(run.seq) * BATCH_BYTES
    return WORKERS_BYTES + PREFETCHED * run.data_workers * batch


def _peak_on_gpu(run: Run, precision: Precision) -> int:
    """The most bytes on the GPU, before anything is upcast."""
    from ..step.loading import pretrained_events  # most runs do not load there
    from ..step.reference import most_bytes

    plain = replace(run, upcast_unquantized=False, upcast_at_startup=False)
    return int(most_bytes(pretrained_events(plain, precision)))
