"""Memory of CUDA and its libraries, and which part of it vLLM deducts from the pool.

vLLM takes a memory snapshot before it loads the model and one after the profile run. Memory in use
at the first snapshot is not deducted (`uncounted_parts`), later memory is (`counted_parts`).
Until 0.10 the first snapshot was before NCCL was started, from 0.11 on after it. V0's 0.6.4
and V1 until 0.9.0 deducted everything in use on the card, CUDA's context and other processes
included; they and 0.27 also deduct the worker's block tables, and all else that torch keeps.
From 0.33 on the handle and workspace of cuBLAS are created before the first snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.source import code, measured
from ...ledger.units import GIB, MIB
from ...run.cuda import nccl
from ...run.cuda.chips import cublas_bytes
from ...run.cuda.libraries import CONTEXT_SOURCE, HANDLE_SOURCE, context_bytes, handle_bytes
from ...run.run import Run
from ...run.served import OTHERS, NamedBytes
from ...run.weights.shards import ServerShard
from .activations import HANDLE_FIRST, WORKSPACES, deducts_kept, is_compiled
from .cache_layers import base_block_size
from .parts import UNMEASURED, SourcedBytes, of_chip, part, step_sequences
from .sampler import state_parts
from .versions import v1, version

ALL, AFTER_START, AFTER_NCCL = "all", "since start", "since nccl"
# torch's kernels and handles in a server of one process: GiB by compute capability, to 12.0.
KERNELS_GIB = {
    **{"7.0": 0.09, "7.5": 0.01, "8.0": 0.10, "8.6": 0.05, "8.9": 0.05, "9.0": 0.13},
    **dict.fromkeys(("10.0", "12.0", *UNMEASURED), 0.13),
}
KERNELS_SOURCE = measured(
    "logs of vLLM 0.6.5 to 0.17.0 on one card, GiB: H100 0.13 to 0.14 (9), "
    "A100 0.09 and 0.12, V100 0.09 (2), A10 and L4 0.05, T4 0.01"
)
NEWER_KERNELS_GIB, NEWER_KERNELS_FROM = 0.12, (0, 18, 0)
NEWER_KERNELS_SOURCE = measured(
    "logs of vLLM 0.18.0 and 0.19.0 on one H100: 0.24 to 0.27 GiB (40 of 42; "
    "two Granite models 0.46), 0.12 more than before"
)
PCIE, PCIE_NCCL_BYTES = "PCIe", int(0.2 * GIB)  # in a card's title
PCIE_NCCL_SOURCE = measured(
    "logs of vLLM 0.7.1 to 0.8.5 on cards without NVLink: 0.15 to 0.25 GiB "
    "more than alone (L40S, RTX 2080 Ti, RTX 3090); 0.10.1 on two A100s without peer access: 0.1"
)
GATHER_UNTIL = (0, 25, 0)
GATHER_SOURCE = code(
    "vllm 0.11.0 vllm/distributed/device_communicators/base_device_communicator.py all_gather: "
    "torch's own group, a communicator beside vLLM's"
)
FUSED_FROM, FUSED_WITH_PIPELINE = (0, 17, 0), (0, 27, 0)
FUSED_RANKS = (2, 4, 8)
MULTICAST_PAGE = 512 * MIB  # the granularity that CUDA recommends for multicast memory
FUSED_SOURCE = code(
    "vllm 0.19.0 vllm/config/vllm.py enable_allreduce_rms_fusion; flashinfer "
    "0.6.6 comm/trtllm_ar.py: three buffers, comm/mnnvl.py rounds each up to 512 "
    "MiB; logs of TP 2 and 4 on H100 agree within 0.1 GiB"
)
FREE_SOURCE = code("the memory that the run file says is free")
TABLES_SOURCE = code(
    "vllm 0.11.0 vllm/v1/worker/block_table.py: 4 bytes for each block of each sequence"
)


def snapshot_scope(run: Run) -> str:
    """What vLLM deducts: ALL memory in use, or what is allocated AFTER_START or AFTER_NCCL."""
    vllm_version = version(run)
    if v1(run):
        since_start = AFTER_START if vllm_version < (0, 11, 0) else AFTER_NCCL
        return ALL if (0, 6, 5) <= vllm_version < (0, 9, 1) else since_start
    return ALL if (0, 6, 4) <= vllm_version < (0, 6, 5) else AFTER_START


def num_ranks(run: Run) -> int:
    """Processes of a server."""
    return int(run.mesh.tp * run.mesh.pp * run.mesh.dp)


def counted_parts(run: Run) -> Iterator[SourcedBytes]:
    """Name, bytes and source of memory outside torch that vLLM deducts from the pool."""
    scope = snapshot_scope(run)
    if scope == ALL:
        yield SourcedBytes("CUDA context", context_bytes(run), CONTEXT_SOURCE)
        if run.free_bytes < run.card_bytes:
            used = run.card_bytes - run.free_bytes
            text = f"{run.card_bytes:,} of the card - {run.free_bytes:,} free"
            yield SourcedBytes(OTHERS, used, FREE_SOURCE, text)
    if scope != AFTER_NCCL or num_ranks(run) == 1:
        yield from _kernel_parts(run)
    elif version(run) < HANDLE_FIRST:
        yield SourcedBytes("cuBLAS handle", handle_bytes(run), HANDLE_SOURCE)
    if scope != AFTER_NCCL:
        yield from _nccl_parts(run)
    if run.mesh.tp > 1 and version(run) < GATHER_UNTIL and has_nvlink(run):
        group = nccl.communicators(run)["tp"]
        size = nccl.group_bytes(group, run.compute_capability, sums=False)
        yield SourcedBytes("communicator for logits", size, GATHER_SOURCE)
    if fuses_allreduce(run):
        pages = ("workspaces", 3), ("bytes", MULTICAST_PAGE)
        yield part("workspaces of fused sums", FUSED_SOURCE, *pages)
    if scope == ALL or deducts_kept(run):
        blocks = ("blocks", -(-int(run.options["max_seq_len"]) // base_block_size(run)))
        rows = ("sequences", step_sequences(run))
        yield part("tables of blocks", TABLES_SOURCE, rows, blocks, ("bytes", 4))


def uncounted_parts(run: Run, shard: ServerShard) -> tuple[NamedBytes, ...]:
    """Name, bytes and source of memory that vLLM does not deduct: it is in the first snapshot
    already, or torch keeps it beside weights and peak.
    """
    parts: list[SourcedBytes] = []
    if snapshot_scope(run) != ALL:
        parts.append(SourcedBytes("CUDA context", context_bytes(run), CONTEXT_SOURCE))
    if snapshot_scope(run) == AFTER_NCCL and num_ranks(run) > 1:
        parts += [*_kernel_parts(run), *_nccl_parts(run)]
    if v1(run) and version(run) >= HANDLE_FIRST:
        parts.append(SourcedBytes("cuBLAS handle", handle_bytes(run), HANDLE_SOURCE))
        workspace = cublas_bytes(run.compute_capability)
        parts.append(SourcedBytes("cuBLAS workspace", int(workspace), WORKSPACES))
    if shard.head and not deducts_kept(run):
        parts += state_parts(run)
    return tuple((name, size, str(source)) for name, size, source, _ in parts)


def _kernel_parts(run: Run) -> Iterator[SourcedBytes]:
    size = int(of_chip(KERNELS_GIB, run) * GIB)
    if v1(run) and version(run) >= HANDLE_FIRST:
        size = max(0, size - handle_bytes(run))
    yield SourcedBytes("torch's kernels and handles", size, KERNELS_SOURCE)
    if v1(run) and version(run) >= NEWER_KERNELS_FROM:
        newer = int(NEWER_KERNELS_GIB * GIB)
        yield SourcedBytes("kernels of newer versions", newer, NEWER_KERNELS_SOURCE)


def _nccl_parts(run: Run) -> Iterator[SourcedBytes]:
    """vLLM creates a communicator for each group of several ranks, and runs one all-reduce in it.

    vllm 0.11.0 vllm/distributed/device_communicators/pynccl.py.
    """
    process_groups = nccl.communicators(run)
    if not process_groups:
        return
    if not has_nvlink(run):
        yield SourcedBytes("NCCL", PCIE_NCCL_BYTES, PCIE_NCCL_SOURCE)
        return
    yield SourcedBytes("NCCL library", nccl.LIBRARY_BYTES, nccl.LIBRARY_SOURCE)
    groups = [group for axis, group in process_groups.items() if axis != "ep"]
    sizes = (nccl.group_bytes(group, run.compute_capability, sums=True) for group in groups)
    yield SourcedBytes("NCCL communicators", sum(sizes), nccl.GROUPS_SOURCE)


def has_nvlink(run: Run) -> bool:
    """Whether the cards are sold with NVLink to all others of their node: none with PCIe is."""
    return run.compute_capability in nccl.NVLINK and PCIE not in run.card


def fuses_allreduce(run: Run) -> bool:
    """Whether FlashInfer fuses all-reduce with the norm, which needs workspaces."""
    capable = run.compute_capability == "9.0" or run.compute_capability.startswith("10.")
    alone = int(run.mesh.pp) == int(run.mesh.dp) == 1  # tensor parallelism
    since = FUSED_FROM if alone else FUSED_WITH_PIPELINE
    ranked = int(run.mesh.tp) in FUSED_RANKS
    return is_compiled(run) and version(run) >= since and capable and ranked
