"""Workspaces of vLLM's fused experts.

Until 0.7 three: what comes out of the first matmul, out of the activation, out of the second. From
0.8 the first and the last share one. From 0.14 one workspace for all layers is kept, and stays
there while tokens are sampled.

Legend: t tokens, k experts a token is sent to, h hidden.
"""

from __future__ import annotations

from ...ledger.source import code
from ...run.run import Run
from ...weights.layer_widths import LayerWidths
from .versions import Version, version

WORKSPACE = code("vllm 0.19.0 vllm/model_executor/layers/fused_moe/fused_moe.py TritonExperts "
                 "workspace_shapes, modular_kernel.py _allocate_buffers; 0.11.0 fused_moe.py "
                 "fused_experts_impl; 0.7.2 the same")  # fmt: skip
SHARED_FROM, KEPT_FROM = (0, 8, 0), (0, 14, 0)
# Tokens that pass through the kernels at once (vllm/envs.py VLLM_FUSED_MOE_CHUNK_SIZE): since when.
CHUNKS: tuple[tuple[Version, int | None], ...] = (
    ((0, 18, 0), None), ((0, 12, 0), 16 * 1024), ((0, 0, 0), 32 * 1024),
)  # fmt: skip
OTHER_KERNELS = ("mxfp4", "nvfp4")  # keep their rows inside the kernel's own workspace


def workspace_bytes(run: Run, wide: LayerWidths, size: int) -> int:
    """A layer's. With data parallelism every rank runs the tokens of all."""
    experts = wide.experts
    if experts is None or run.options["quantization"] in OTHER_KERNELS:
        return 0
    tokens = int(run.options["max_num_batched_tokens"]) * int(run.mesh.dp)
    chunk = next(chunk for since, chunk in CHUNKS if version(run) >= since)
    tokens = min(tokens, chunk or tokens)
    if version(run) >= KEPT_FROM:
        each = max(experts.act, wide.hidden) + max(experts.up, wide.hidden)
    elif version(run) >= SHARED_FROM:
        each = max(experts.up, wide.hidden) + experts.act
    else:
        each = experts.up + experts.act + wide.hidden
    return tokens * experts.top_k * each * size
