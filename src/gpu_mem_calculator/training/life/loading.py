"""Loading a checkpoint: what the host holds while the weights come to each rank.

A file of safetensors is mapped: its pages are in the kernel's cache, once for a node, and the
kernel takes them back where memory is short. A weight that stays on the host and keeps its stored
dtype is such pages; one that is cast is memory of its process.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...ledger.num import EMPTY, sized
from ...ledger.source import code, measured
from ...ledger.units import MIB
from ...run.phases import LOADING, LifePhase
from ...run.run import Precision, Run

SOURCE = code(
    "transformers 5.17.0 core_model_loading.py _materialize_copy; safetensors 0.7.0 safe_open: "
    "a view of the mapped file, cast by Tensor.to"
)
# What from_pretrained and CUDA's context add to a process before the first weight.
PROCESS_BYTES = 184 * MIB
PROCESS_SOURCE = measured("resident pages beside weights and file in 3 lives, 100 to 188 MiB")


def loading(run: Run, precision: Precision) -> LifePhase:
    """The phase in which from_pretrained reads the weights."""
    elements = sum((weight.numel for weight in run.arch.weights()), EMPTY)
    stored = int(sized(elements, run.stored_bits))
    on_host = not run.from_pretrained and run.options.get("init_device") == "cpu"
    cast = on_host and precision.weights != run.stored_bits
    return LifePhase(
        name=LOADING,
        gpu_bytes=_peak_on_gpu(run, precision) if run.from_pretrained else 0,
        rank_bytes=PROCESS_BYTES + (int(sized(elements, precision.weights)) if cast else 0),
        file_bytes=stored,
        source=str(SOURCE),
    )


def _peak_on_gpu(run: Run, precision: Precision) -> int:
    """The most bytes on the GPU, before anything is upcast."""
    from ..step.loading import pretrained_events  # most runs do not load there
    from ..step.reference import most_bytes

    plain = replace(run, upcast_unquantized=False, upcast_at_startup=False)
    return int(most_bytes(pretrained_events(plain, precision)))
