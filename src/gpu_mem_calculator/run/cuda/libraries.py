"""GPU memory of CUDA and its libraries, in addition to the tensors of a run or a server.

Measured on an NVIDIA H200 (driver 580.159, torch 2.11.0+cu130), as nvidia-smi's figure less torch's
reserved bytes: each part alone in a new process, and their sum in every measured run. Code is
loaded when it is first used; CUDA_MODULE_LOADING=EAGER takes 1.04 GiB more.

Other GPUs are known from published logs: a context before any work (ollama, llama.cpp and TensorRT
print what is free after it is created), and torch's messages in processes that ran out of memory.
The driver reserves local memory for every thread that a multiprocessor can hold, so a context grows
with the multiprocessors and the threads of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...ledger.num import sized
from ...ledger.source import code, measured
from ...ledger.units import KIB, MIB
from ...models.arch.arch import Layer
from ...models.arch.blocks import Attention, LatentAttention, Moe
from ...pytorch.modelling.huggingface.flash import has_flash, prefers_cudnn
from ..engine import Engine
from ..run import Run
from ..served import NON_TORCH, NamedBytes, ServerItem
from .chips import AS_H200, CHIPS, Chip
from .nccl import STREAMS_BYTES, nccl

if TYPE_CHECKING:
    from ...pytorch.modelling.huggingface.attention_inputs import AttentionInputs

# qkv, proj, fc1 and fc2 in forward and for gradients: four by ring exchange, two in a pipeline,
# four in bulk; cuMemCreate allocates them.
OVERLAP_BUFFERS = 10
OVERLAP_SOURCE = code(
    "Transformer Engine 2.18 pytorch/module/base.py initialize_ub, "
    "common/comm_gemm_overlap/comm_gemm_overlap.cpp:419, 824"
)
MEASURED_CAPABILITY = "9.0"  # on which code and handles were measured
CONTEXT_BYTES = 16_867_328  # of a context on every GPU, beside its multiprocessors
CONTEXT_SOURCE = measured(
    "CUDA context before anything is loaded: H200 526.8 MiB, the same in 467 of 467 runs; from "
    "published logs, the total in part from other logs, MiB: T4 103, V100 309 to 311 (3 machines), "
    "A100 423 to 427 (3), RTX 3090 256 and 269, A40 268, RTX 4090 391, RTX 5090 513, H100 514 and "
    "527; 4 % off at most, but for an RTX 4080 with 265 (10 %, a display may be in it). Pascal is "
    "taken as Volta, B200 as H200: as many threads a multiprocessor"
)
EXPERTS_BYTES = 2 * MIB
KERNELS_SOURCE = measured(
    "torch's kernels, H200: 92 MiB with the first, 2 for those that follow, 2 more with experts; "
    "the sum of all parts is within 2 MiB in 456 of 462 runs, page tables of pinned host memory "
    "left out. Other cards: what torch's messages of a full card leave beside context and handle, "
    "to 10 MiB: V100 59 to 79 (4), A100 56 and 77, T4 and RTX 2080 Ti 2 to 51 (4), RTX 3080 and "
    "3090 37 to 39 (5), L4, L40S and RTX 4090 0 to 50 (5; 125 in one more, on an L4)"
)
# A handle has two workspaces.
HANDLE_SOURCE = measured(
    "a cuBLAS handle: two workspaces of its own, 66 MiB for the first thread, "
    "64 for backward's on an H200"
)
CUDNN_FORWARD_BYTES, CUDNN_BYTES = 8 * MIB, 16 * MIB
LENGTH_BYTES = 88 * KIB
CUDNN_SOURCE = measured(
    "cuDNN's attention: 8 MiB forward, 16 with backward; a plan for each length while decoding, "
    "88 KiB (88 to 128 in 3 runs of 48 to 512 tokens); torch's own attention kernels take none"
)
STREAMS_SOURCE = measured("torch's pools of CUDA streams: 70 MiB with the first, however many")
INT8_SOURCE = measured("the cuBLAS handle of bitsandbytes, where a matmul is in int8")
# Measured: NCCL in a group of one process: streams, kernels and one communicator of 64 channels;
# 558 or 560 MiB in 18 of 18 DDP runs.
NCCL_BYTES = 560 * MIB
HOST_EXPERTS_BYTES, HOST_NCCL_BYTES = 290 * MIB, 350 * MIB


def chip(run: Run) -> Chip:
    """The row of a run's card; of a capability that is not in the table, an H200's."""
    return CHIPS.get(run.compute_capability, AS_H200)


def context_bytes(run: Run) -> int:
    """Bytes of a CUDA context before anything is loaded."""
    return CONTEXT_BYTES + run.multiprocessors * chip(run).context_kib * KIB


def kernels_bytes(run: Run) -> int:
    """Bytes of torch's kernels when they are loaded."""
    return chip(run).kernels_mib * MIB


def handle_bytes(run: Run, *, first: bool = True) -> int:
    """Bytes of a cuBLAS handle; the `first` also loads 2 MiB of code."""
    return (2 * chip(run).workspace_mib + (2 if first else 0)) * MIB


def has_experts(run: Run) -> bool:
    """Whether any layer is a mixture of experts."""
    return any(isinstance(layer.mlp, Moe) for layer, _, _ in run.arch.runs)


def runs_cudnn(run: Run) -> bool:
    """Whether torch runs the attention of any layer with cuDNN's kernel."""
    from ...pytorch.modelling.huggingface.attention_kernels import kernel
    from ...pytorch.modelling.huggingface.setting import BlockSetting

    bits = 32 if run.precision == "fp32" and not run.autocast else 16
    setting = BlockSetting(
        batch=1,
        seq=1,
        hidden=run.arch.hidden,
        bits=bits,
        matmul_bits=bits,
        weight_bits=bits,
        attention=run.attention,
        cudnn=prefers_cudnn(run.compute_capability),
        flash=has_flash(run.compute_capability),
    )
    layers = (_attention_inputs(layer) for layer, _, _ in run.arch.runs)
    return any(heads is not None and kernel(setting, heads) == "cudnn" for heads in layers)


def _attention_inputs(layer: Layer) -> AttentionInputs | None:
    """The sizes that decide the kernel of a layer's attention; None without attention.

    A mask does not decide where cuDNN can run.
    """
    from ...pytorch.modelling.huggingface.attention_inputs import AttentionInputs

    block = layer.mixer
    if isinstance(block, LatentAttention):
        return AttentionInputs(
            heads=block.heads,
            kv_heads=block.heads,
            value_dim=block.value_dim,
            head_dim=block.nope_dim + block.rope_dim,
        )
    if not isinstance(block, Attention):
        return None
    kv_heads = block.heads if block.expanded else block.kv_heads
    return AttentionInputs(
        heads=block.heads,
        kv_heads=kv_heads,
        head_dim=block.head_dim,
        value_dim=block.value_dim or block.head_dim,
        broadcast=block.always_masked,
        sdpa=block.sdpa,
    )


def loaded_parts(run: Run, *, transformers: bool, streams: bool) -> Iterator[NamedBytes]:
    """Code and handles that are loaded by the end of the first step: (name, bytes, source)."""
    trains = run.new_tokens is None
    experts = EXPERTS_BYTES if has_experts(run) else 0
    yield "torch's kernels", kernels_bytes(run) + experts, str(KERNELS_SOURCE)
    handles = handle_bytes(run) + (handle_bytes(run, first=False) if trains else 0)
    yield "cuBLAS handles", handles, str(HANDLE_SOURCE)
    if transformers and runs_cudnn(run):
        plans = 0 if trains else decoded_lengths(run) * LENGTH_BYTES
        attention = CUDNN_BYTES if trains else CUDNN_FORWARD_BYTES + plans
        yield "cuDNN attention", attention, str(CUDNN_SOURCE)
    if run.quantization == "int8":
        yield "int8 matmul", handle_bytes(run, first=False), str(INT8_SOURCE)
    if streams:
        yield "CUDA streams", STREAMS_BYTES, str(STREAMS_SOURCE)
    if run.options.get("tp_comm_overlap") and run.mesh.tp > 1:
        yield "buffers of overlapped collectives", overlap_bytes(run), str(OVERLAP_SOURCE)


def overlap_bytes(run: Run) -> int:
    """Bytes of Transformer Engine's buffers: a micro-batch's activations each, before sequence
    parallelism shards them.
    """
    elements = run.batch * run.seq // run.mesh.cp * run.arch.hidden
    return int(sized(OVERLAP_BUFFERS * elements, 32 if run.precision == "fp32" else 16))


def decoded_lengths(run: Run) -> int:
    """How many lengths cuDNN plans attention for while tokens are generated.

    A static cache has one length; an assisted round has the assistant's first pass, its single
    tokens, and the check.
    """
    new, wanted = int(run.generated), run.options.get("num_speculative_tokens") or 0
    if run.options.get("cache_implementation") == "static":
        return 1
    return new if run.draft is None else 3 * new + wanted


def outside_torch(
    run: Run, *, transformers: bool = True, streams: bool = False
) -> Iterator[NamedBytes]:
    """What nvidia-smi shows in addition to torch's reserved memory: (name, bytes, source).

    `transformers`: Hugging Face's modelling code runs; `streams`: the engine creates CUDA streams.
    """
    yield "CUDA context", context_bytes(run), str(CONTEXT_SOURCE)
    yield from loaded_parts(run, transformers=transformers, streams=streams)
    yield from nccl(run, streams=streams)


def host_libraries(run: Run, engine: Engine, *, nccl: bool) -> NamedBytes:
    """Host RAM of the libraries in each process: (name, bytes, source); 0 bytes where not measured.

    CUDA's part is 126 MiB; the rest is code that is mapped when it is first used.
    """
    measured_runs = engine.host_libraries
    if measured_runs is None:
        return "libraries", 0, ""
    if run.options.get("cpu_offload") or run.options.get("offload_optimizer") == "cpu":
        measured_runs = engine.stepping_host or measured_runs
    size = measured_runs.bytes + HOST_EXPERTS_BYTES * has_experts(run) + HOST_NCCL_BYTES * nccl
    source = measured(f"resident pages of libraries: {measured_runs.runs}")
    return "libraries on the host", size, str(source)


def process_items(run: Run, *, as_measured: bool = False) -> Iterator[ServerItem]:
    """The memory of a server's process before it loads a model. `as_measured`: code and handles are
    those of the GPU on which they were measured, for servers with kernels beyond torch's, of which
    no smaller size is known.
    """
    loaded = replace(run, compute_capability=MEASURED_CAPABILITY) if as_measured else run
    parts = (
        ("CUDA context", context_bytes(run), CONTEXT_SOURCE),
        ("torch's kernels", kernels_bytes(loaded), KERNELS_SOURCE),
        ("cuBLAS handle", handle_bytes(loaded), HANDLE_SOURCE),
    )
    for name, size, source in parts:
        yield ServerItem(NON_TORCH, name, size, source)
    for name, size, text in nccl(run, streams=False):
        yield ServerItem(NON_TORCH, name, size, code(text))
