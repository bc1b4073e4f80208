"""What a server takes of its host, and of a GPU while it loads. Sizes are bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from ..ledger.source import measured
from ..ledger.units import GIB, MIB
from .run import Run

WHOLE = "it is whole on the GPU before it is quantized"
PROCESS_BYTES = 780 * MIB
PROCESS_SOURCE = measured("resident pages of a process with torch and a CUDA context, 72 trainings")


class ServerHost(Struct, frozen=True, kw_only=True):
    """What a server takes of a node beside its entries in host RAM.

    - `file_bytes`: pages of the files that it reads, once for a node; the kernel takes them back
    - `rank_bytes`: of each rank's process; `first_bytes`: of the other processes of a node
    - `shared_bytes`: of /dev/shm, part of `first_bytes`
    - `filled_bytes`: of caches of a node that requests fill
    - `whole_bytes`: of a GPU, weights in 16 bits before they are quantized; 0: none are
    - `asleep_bytes`: of each rank, the copy of what it frees on its GPU; None: it does not sleep
    """

    file_bytes: int
    rank_bytes: int = PROCESS_BYTES
    first_bytes: int = 0
    shared_bytes: int = 0
    filled_bytes: int = 0
    whole_bytes: int = 0
    asleep_bytes: int | None = None


def checkpoint_bytes(run: Run, ranks: Iterable[int] = ()) -> int:
    """The tensors of a checkpoint's files: as they are stored, or the parameters in the dtype of
    its config; of a quantized one what its ranks load.
    """
    if run.stored:
        return sum(size for _, size, _ in run.stored)
    if run.quantized:
        return sum(ranks)
    return run.arch.num_parameters * int(run.stored_bits) // 8


def quantizes(run: Run) -> bool:
    """Whether the server makes fp8 weights, unless the checkpoint has them."""
    return run.options.get("quantization") == "fp8" and not run.quantized


def is_16_bit(run: Run) -> bool:
    """Whether the checkpoint's own tensors say that it has 16 bits."""
    stored = sum(size for _, size, _ in run.stored or ())
    return stored > 1.5 * run.arch.num_parameters


def loading_problem(run: Run, host: ServerHost, outside: int) -> str:
    """Why a checkpoint in 16 bits, which is whole before it is quantized, cannot be loaded."""
    if not is_16_bit(run) or host.whole_bytes + outside <= run.free_bytes:
        return ""
    has = f"{run.free_bytes / GIB:.1f} GiB available"
    short = f"loading needs {(host.whole_bytes + outside) / GIB:.1f} GiB, {has}"
    return f"{short}: {WHOLE}. Use a checkpoint in fp8, or more GPUs."


def loading_notes(run: Run, host: ServerHost, outside: int) -> Iterator[str]:
    """What a checkpoint in 16 bits would take, where nobody says that it has fp8."""
    needs = host.whole_bytes + outside
    if host.whole_bytes and needs > run.free_bytes and not is_16_bit(run):
        yield f"with a checkpoint in 16 bits loading needs {needs / GIB:.1f} GiB: {WHOLE}"
