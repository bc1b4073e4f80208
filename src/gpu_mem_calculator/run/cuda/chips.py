"""What CUDA and its libraries take by compute capability; libraries.py says how it was measured."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.num import Bytes
from ...ledger.units import KIB, MIB


class Chip(Struct, frozen=True):
    """What CUDA and its libraries take on GPUs of one compute capability.

    - context_kib: of a context, for each multiprocessor
    - kernels_mib: of torch's kernels
    - workspace_mib: of cuBLAS's default workspace (its documentation, cublasSetWorkspace)
    """

    context_kib: int
    kernels_mib: int
    workspace_mib: int = 4


# Of those taken as an H200 nothing is known but the workspace.
H200 = Chip(3962, 94, 32)
AS_H200 = replace(H200, workspace_mib=4)
CHIPS: Mapping[str, Chip] = {
    **dict.fromkeys(("6.0", "6.1", "7.0"), Chip(3762, 70)),
    "7.5": Chip(2224, 30),
    "8.0": Chip(3872, 75),
    "8.6": Chip(3020, 40),
    "8.9": Chip(3020, 45),
    "9.0": H200,
    **dict.fromkeys(("10.0", "10.3"), H200),
    "12.0": Chip(3020, 45, 12),
    **dict.fromkeys(("7.2", "8.7", "11.0", "12.1"), AS_H200),
}


def cublas_bytes(compute_capability: str) -> Bytes:
    """Bytes of one cuBLAS workspace: 32 MiB from Hopper on, else 8,320 KiB."""
    return 32 * MIB if float(compute_capability) >= 9.0 else 8320 * KIB
