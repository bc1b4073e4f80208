"""What CUDA and its libraries take, and which part of it vLLM counts.

vLLM looks at the card once before it loads the model and once behind the trial run. What lies
before the first look is not counted against the pool (`before`), what comes later is (`counted`).
The first look moved: until 0.10 it came before NCCL was started, from 0.11 on behind. V0's 0.6.4
and V1 until 0.9.0 counted all that is used on the card, CUDA's context and other processes
included; they and 0.27 count the worker's tables, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...cuda.libraries import CONTEXT_SOURCE, HANDLE_SOURCE, context_bytes, handle_bytes
from ...cuda.nccl import GROUPS_SOURCE, LIBRARY_BYTES, LIBRARY_SOURCE, NVLINK, group_bytes, groups
from ...ledger.source import code, measured
from ...ledger.units import GIB, MIB
from ...run.run import Run
from ...run.served import NamedBytes
from .activations import compiled
from .cache_layers import first_block
from .sampler import SourcedBytes
from .versions import Version, v1, version

ALL, SINCE_START, SINCE_NCCL = "all", "since start", "since nccl"
# torch's kernels and handles in a process that is alone: GiB by compute capability.
ALONE = {"7.0": 0.09, "7.5": 0.01, "8.0": 0.10, "8.6": 0.05, "8.9": 0.05, "9.0": 0.13, "10.0": 0.13,
         "12.0": 0.13}  # fmt: skip
ALONE_SOURCE = measured("logs of vLLM 0.6.5 to 0.17.0 on one card, GiB: H100 0.13 to 0.14 (9), "
                        "A100 0.09 and 0.12, V100 0.09 (2), A10 and L4 0.05, T4 0.01")  # fmt: skip
MORE, MORE_FROM = 0.12, (0, 18, 0)
MORE_SOURCE = measured("logs of vLLM 0.18.0 and 0.19.0 on one H100: 0.24 to 0.27 GiB (40 of 42; "
                       "two Granite models 0.46), 0.12 more than before")  # fmt: skip
PLAIN_NCCL = int(0.2 * GIB)
PLAIN_SOURCE = measured("logs of vLLM 0.7.1 to 0.8.5 on cards without NVLink: 0.15 to 0.25 GiB "
                        "more than alone (L40S, RTX 2080 Ti, RTX 3090)")  # fmt: skip
OWN_GATHER_UNTIL = (0, 25, 0)
GATHER_SOURCE = code("vllm 0.11.0 vllm/distributed/device_communicators/"
                     "base_device_communicator.py all_gather: torch's own group, a communicator "
                     "beside vLLM's")  # fmt: skip
FUSED_FROM, FUSED_WITH_PIPELINE = (0, 17, 0), (0, 27, 0)
FUSED_RANKS = (2, 4, 8)
PAGE = 512 * MIB  # the granularity that CUDA recommends for multicast memory
FUSED_SOURCE = code("vllm 0.19.0 vllm/config/vllm.py enable_allreduce_rms_fusion; flashinfer "
                    "0.6.6 comm/trtllm_ar.py: three buffers, comm/mnnvl.py rounds each up to 512 "
                    "MiB; logs of TP 2 and 4 on H100 agree within 0.1 GiB")  # fmt: skip
TABLES_FROM = (0, 27, 0)
TABLES_SOURCE = code("vllm 0.11.0 vllm/v1/worker/block_table.py: 4 bytes for each block of each "
                     "sequence")  # fmt: skip


def look(run: Run) -> str:
    """What is counted."""
    now = version(run)
    if v1(run):
        return ALL if now < (0, 9, 1) else SINCE_START if now < (0, 11, 0) else SINCE_NCCL
    return ALL if (0, 6, 4) <= now < (0, 6, 5) else SINCE_START


def ranks(run: Run) -> int:
    """Processes of a server."""
    return int(run.mesh.tp * run.mesh.pp * run.mesh.dp)


def counted(run: Run) -> Iterator[SourcedBytes]:
    """What comes behind the first look."""
    when = look(run)
    if when == ALL:
        yield "CUDA context", context_bytes(run), CONTEXT_SOURCE
        if run.free_bytes < run.card_bytes:
            yield "other processes", run.card_bytes - run.free_bytes, CONTEXT_SOURCE
    if when != SINCE_NCCL or ranks(run) == 1:
        yield from _alone(run)
    else:
        yield "cuBLAS handle", handle_bytes(run), HANDLE_SOURCE
    if when != SINCE_NCCL:
        yield from _nccl(run)
    if run.mesh.tp > 1 and version(run) < OWN_GATHER_UNTIL and run.compute_capability in NVLINK:
        group = groups(run)["tp"]
        size = group_bytes(group, run.compute_capability, sums=False)
        yield "communicator for logits", size, GATHER_SOURCE
    if fused(run):
        yield "workspaces of fused sums", 3 * PAGE, FUSED_SOURCE
    if when == ALL or (v1(run) and version(run) >= TABLES_FROM):
        blocks = -(-int(run.options["max_seq_len"]) // first_block(run))
        yield "tables of blocks", int(run.options["max_num_seqs"]) * blocks * 4, TABLES_SOURCE


def before(run: Run) -> tuple[NamedBytes, ...]:
    """What lies before it."""
    found: list[SourcedBytes] = []
    if look(run) != ALL:
        found.append(("CUDA context", context_bytes(run), CONTEXT_SOURCE))
    if look(run) == SINCE_NCCL and ranks(run) > 1:
        found += [*_alone(run), *_nccl(run)]
    return tuple((name, size, str(source)) for name, size, source in found)


def _alone(run: Run) -> Iterator[SourcedBytes]:
    size = ALONE.get(run.compute_capability, ALONE["9.0"])
    yield "torch's kernels and handles", int(size * GIB), ALONE_SOURCE
    if v1(run) and version(run) >= MORE_FROM:
        yield "kernels of newer versions", int(MORE * GIB), MORE_SOURCE


def _nccl(run: Run) -> Iterator[SourcedBytes]:
    """vLLM makes a communicator for each group of several ranks, and sums once in it.

    vllm 0.11.0 vllm/distributed/device_communicators/pynccl.py.
    """
    found = groups(run)
    if not found:
        return
    if run.compute_capability not in NVLINK:
        yield "NCCL", PLAIN_NCCL, PLAIN_SOURCE
        return
    yield "NCCL library", LIBRARY_BYTES, LIBRARY_SOURCE
    each = [group_bytes(group, run.compute_capability, sums=True) for axis, group in found.items()
            if axis != "ep"]  # fmt: skip
    yield "NCCL communicators", sum(each), GROUPS_SOURCE


def fused(run: Run) -> bool:
    """Whether FlashInfer adds up and norms at once, which takes workspaces of its own."""
    now: Version = version(run)
    capable = run.compute_capability == "9.0" or run.compute_capability.startswith("10.")
    lonely = run.mesh.pp == 1 and run.mesh.dp == 1
    return bool(
        compiled(run) and now >= FUSED_FROM and capable and int(run.mesh.tp) in FUSED_RANKS
        and (lonely or now >= FUSED_WITH_PIPELINE)
    )  # fmt: skip
