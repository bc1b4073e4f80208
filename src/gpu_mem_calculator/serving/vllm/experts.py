"""Workspaces of vLLM's fused experts.

Until 0.7 there are three: the output of the first matmul, of the activation, of the second matmul.
From 0.8 on the first and the last share one. From 0.14 on one workspace serves all layers and
stays allocated while tokens are sampled.

Legend: t tokens, k experts a token is sent to, h hidden.
"""

from __future__ import annotations

from ...ledger.source import code
from ...run.run import Run
from ...run.weights.layer_widths import LayerWidths
from .sampler import SourcedBytes
from .versions import Version, version

WORKSPACE_SOURCE = code(
    "vllm 0.19.0 vllm/model_executor/layers/fused_moe/fused_moe.py TritonExperts workspace_shapes, "
    "modular_kernel.py _allocate_buffers; 0.11.0 fused_moe.py fused_experts_impl; 0.7.2 the same"
)
SHARED_FROM, PERSISTENT_FROM = (0, 8, 0), (0, 14, 0)
# Tokens of one kernel call (vllm/envs.py VLLM_FUSED_MOE_CHUNK_SIZE), by first version.
CHUNKS: tuple[tuple[Version, int | None], ...] = (
    ((0, 18, 0), None),
    ((0, 12, 0), 16 * 1024),
    ((0, 0, 0), 32 * 1024),
)
NAME = "workspace of the experts"
OTHER_KERNELS = ("mxfp4", "nvfp4")  # their rows are in the kernel's workspace


def workspace_part(run: Run, widths: LayerWidths, size: int) -> SourcedBytes:
    """One layer's workspace; `size`: bytes of an element.

    With data parallelism every rank runs the tokens of all replicas.
    """
    experts = widths.experts
    if experts is None or run.options["quantization"] in OTHER_KERNELS:
        return SourcedBytes(NAME, 0, WORKSPACE_SOURCE)
    tokens = int(run.options["max_num_batched_tokens"]) * int(run.mesh.dp)
    chunk = next(chunk for since, chunk in CHUNKS if version(run) >= since)
    tokens = min(tokens, chunk or tokens)
    if version(run) >= PERSISTENT_FROM:
        row = max(experts.act, widths.hidden) + max(experts.up, widths.hidden)
    elif version(run) >= SHARED_FROM:
        row = max(experts.up, widths.hidden) + experts.act
    else:
        row = experts.up + experts.act + widths.hidden
    rows = tokens * experts.top_k
    text = f"{tokens:,} tokens × {experts.top_k} experts × {row:,} × {size} bytes"
    return SourcedBytes(NAME, rows * row * size, WORKSPACE_SOURCE, text)
