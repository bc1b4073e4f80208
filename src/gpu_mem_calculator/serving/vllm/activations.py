"""The peak of the profile run, which vLLM measures before it allocates its pool.

max_num_batched_tokens pass through the layers, then max_num_seqs sequences are sampled.
`ProfilePeak` is the increase of torch's allocated peak, the log's "peak activation".

Compiled layers (V1) are split at attention into pieces. A piece's caller keeps its inputs:
attention's output and the residual. Inside, the peak is at the activation of the feed-forward:
gate and up, their product, and the new residual. Measured on an H200 with torch 2.11 on such a
piece: exactly these, and in the first run, which benchmarks kernels, a buffer as large as the L2
cache.

Eager layers (V0, enforce_eager) keep more tensors alive by name: the layer's input, the residual,
the feed-forward's input, gate and up, their product, the output, and its sum over the ranks.

Fused experts have workspaces: until 0.7 three, the output of the first matmul, of the activation,
of the second matmul. From 0.8 on the first and the last share one. From 0.14 on one workspace
serves all layers and stays allocated while tokens are sampled.

Legend: t tokens of a step, h hidden, f feed-forward on the rank, k experts a token is sent to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from ...ledger.formula import Term, total
from ...ledger.source import Source, code, measured
from ...ledger.units import GIB, MIB
from ...models.arch.arch import Layer
from ...models.arch.blocks import Attention, LatentAttention
from ...run.cuda.chips import cublas_bytes
from ...run.run import Run
from ...run.weights.layer_widths import LayerWidths, distinct_widths, layer_widths, mixer_widths
from ...run.weights.shards import ServerShard
from . import images
from .cache import states_outside_pool
from .cache_layers import CHECKPOINTS, cache_slots, checkpointed
from .parts import (
    UNMEASURED,
    SourcedBytes,
    element_bytes,
    of_chip,
    part,
    step_sequences,
    step_tokens,
)
from .sampler import sampled_rows, sampling_parts, state_parts
from .speculative import logit_rows
from .versions import Version, uses_second_runner, v1, version

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
PIECE = code(
    "vllm 0.11.0 vllm/compilation/backends.py split_graph, piecewise_backend.py; torch "
    "2.11 inductor frees a buffer behind its last use"
)
EAGER = code("vllm 0.7.3 vllm/model_executor/models/llama.py, run as written")
BENCHMARK = measured(
    "NVIDIA H200, torch 2.11: inductor's benchmark clears the L2 cache with a buffer of its size "
    "while kernels are tried, 60 MiB; logs of H100s agree with 50"
)
WORKSPACES = code("torch 2.11 aten/src/ATen/cuda/CublasHandlePool.cpp getChosenWorkspaceSize")
STEP = code("vllm 0.11.0 vllm/v1/worker/gpu_model_runner.py profile_run")
LATENT = code(
    "vllm 0.11.0 vllm/v1/attention/backends/mla/common.py: keys and values of a chunk of "
    "earlier tokens, as large as they can get"
)
STAGE = code(
    "vllm 0.11.0 vllm/v1/worker/gpu_model_runner.py _dummy_run: hidden states and "
    "residual of the stage before"
)
STATES = code("vllm 0.7.3 vllm/model_executor/models/mamba_cache.py")
L2_MIB = {
    **{"7.0": 6, "7.5": 4, "8.0": 40, "8.6": 6, "8.9": 72, "9.0": 50, "10.0": 126, "12.0": 96},
    **dict.fromkeys(UNMEASURED, 50),
}
H200_L2_MIB, H200_BYTES = 60, 100 * GIB
KEPT_FROM = (0, 27, 0)
# vllm/v1/worker/gpu_worker.py Worker.init_device: a product of 16 × 16 before the first snapshot
HANDLE_FIRST = (0, 33, 0)
PEAK_FROM = (0, 6, 4)  # vllm/worker/worker.py determine_num_available_blocks


class ProfilePeak(Struct, frozen=True):
    """The highest instant of the profile run, and name, bytes and source of what is alive."""

    instant: str
    parts: tuple[SourcedBytes, ...]

    @property
    def bytes(self) -> int:
        """Sum of all parts."""
        return sum(part.bytes for part in self.parts)


def deducts_segments(run: Run) -> bool:
    """Whether this vLLM version deducts the segments that torch keeps, instead of this peak.

    They are not replayed where images are profiled.
    """
    return version(run) < PEAK_FROM and not images.num_images(run)


def deducts_kept(run: Run) -> bool:
    """Whether vLLM deducts all that torch keeps after the profile run, beside its peak.

    vllm 0.27.0 vllm/utils/mem_utils.py memory_profiling: total_consumed.
    """
    return v1(run) and version(run) >= KEPT_FROM


def is_compiled(run: Run) -> bool:
    """Whether the layers run under torch.compile."""
    return v1(run) and not run.options["enforce_eager"]


def profile_peak(run: Run, shard: ServerShard) -> ProfilePeak:
    """The profile run's peak on one rank."""
    constant, size = tuple(_constant_parts(run, shard)), element_bytes(run)
    image_inputs = tuple(images.image_parts(run, size)) if shard.embedding else ()
    always = (*constant, *image_inputs)
    peaks = [ProfilePeak(instant, (*parts, *always)) for instant, parts in _instants(run, shard)]
    if image_inputs:
        tower = images.tower_parts(run, size, shard.tp)
        peaks.append(ProfilePeak("the vision tower", (*tower, *constant)))
    return max(peaks, key=lambda peak: peak.bytes)


def _instants(run: Run, shard: ServerShard) -> Iterator[tuple[str, tuple[SourcedBytes, ...]]]:
    """Name and parts of each instant; equal layers are one object and are counted once."""
    visited = set()
    for layer in shard.layers(run.arch):
        if id(layer) not in visited:
            visited.add(id(layer))
            yield from _layer_instants(run, layer, shard)
    if shard.head:
        yield "sampling", tuple(_sampling_parts(run))


def _constant_parts(run: Run, shard: ServerShard) -> Iterator[SourcedBytes]:
    """What stays allocated from the first matmul on."""
    tokens, size = ("tokens", step_tokens(run)), element_bytes(run)
    if version(run) < HANDLE_FIRST:
        yield SourcedBytes("cuBLAS workspace", cublas_bytes(run.compute_capability), WORKSPACES)
    if shard.head and deducts_kept(run):
        yield from state_parts(run)
    if not shard.embedding:
        yield part("from the stage before", STAGE, 2, tokens, run.arch.hidden, ("bytes", size))
    if v1(run) and version(run) >= PERSISTENT_FROM:
        layers = distinct_widths(run.arch, shard)
        workspaces = [workspace_part(run, widths, size) for widths in layers]
        workspaces += checkpoint_parts(run, shard)
        if any(part.bytes for part in workspaces):
            yield max(workspaces, key=lambda part: part.bytes)
    states = states_outside_pool(run, shard)
    if states:
        sequences = step_sequences(run)
        each = ("bytes", states // sequences)
        yield part("states of sequences", STATES, ("sequences", sequences), each)


def _sampling_parts(run: Run) -> Iterator[SourcedBytes]:
    """Hidden states of the step and of the sampled tokens (V1: twice, as noise), and logits."""
    each, hidden = ("bytes", element_bytes(run)), run.arch.hidden
    copies = 2 if v1(run) and not uses_second_runner(run) else 1
    yield part("hidden states", STEP, ("tokens", step_tokens(run)), hidden, each)
    sampled = ("sequences", sampled_rows(run))
    yield part("hidden states of the sampled tokens", STEP, copies, sampled, hidden, each)
    yield from sampling_parts(run, element_bytes(run))
    rows = logit_rows(run)
    if rows and not uses_second_runner(run):
        logits = ("sequences", rows), ("logits", run.arch.vocab)
        yield part("logits of guessed tokens", STEP, *logits, each)


def _layer_instants(
    run: Run, layer: Layer, shard: ServerShard
) -> Iterator[tuple[str, tuple[SourcedBytes, ...]]]:
    widths = layer_widths(layer, run.arch.hidden, shard)
    source, buffer = (PIECE, _benchmark_buffer(run)) if is_compiled(run) else (EAGER, ())
    instants = compiled_widths(widths)
    if not is_compiled(run):
        instants = _eager_widths(widths, reduced=shard.tp > 1)
    for instant, terms in instants:
        parts = [_walked(run, instant, terms, source), *buffer]
        if instant == "experts" and not (v1(run) and version(run) >= PERSISTENT_FROM):
            parts.append(workspace_part(run, widths, element_bytes(run)))
        yield instant, tuple(parts)
    yield "attention", tuple(_attention_parts(run, layer, shard, source))


def _walked(run: Run, instant: str, terms: Iterable[Term], source: Source) -> SourcedBytes:
    """The tensors of one instant, `terms` elements of each token."""
    tokens, size = ("tokens", step_tokens(run)), ("bytes", element_bytes(run))
    return part(f"{instant}: activations", source, tokens, list(terms), size)


def _benchmark_buffer(run: Run) -> tuple[SourcedBytes, ...]:
    size = of_chip(L2_MIB, run)
    if run.compute_capability == "9.0" and run.card_bytes > H200_BYTES:
        size = H200_L2_MIB
    return (part("buffer of inductor's benchmark", BENCHMARK, ("MiB of L2 cache", size), MIB),)


def compiled_widths(widths: LayerWidths) -> Iterator[tuple[str, tuple[Term, ...]]]:
    """Name of each instant of a compiled piece, and the elements per token of its tensors."""
    hidden = widths.hidden
    inputs = (("attention", widths.read), ("residual", hidden), ("new residual", hidden))
    if widths.up:
        yield "feed-forward", (*inputs, ("gate and up", widths.up), ("product", widths.act))
    if widths.experts is not None:
        yield "experts", (*inputs, *_expert_terms(widths))


def _expert_terms(widths: LayerWidths) -> tuple[Term, ...]:
    """Elements per token around the experts' workspace."""
    assert widths.experts is not None
    shared = widths.hidden if widths.up else 0
    terms = (("input", widths.hidden), ("output", widths.hidden), ("shared expert", shared))
    return (*terms, ("router", widths.experts.count))


def _eager_widths(widths: LayerWidths, *, reduced: bool) -> Iterator[tuple[str, tuple[Term, ...]]]:
    """Name of each instant of an eager layer, and the elements per token of its tensors."""
    hidden = widths.hidden
    summed = ("sum over ranks", hidden if reduced else 0)
    if widths.up:
        inputs = (("layer input", hidden), ("residual", hidden), ("input", hidden))
        inner = (("gate and up", widths.up), ("product", widths.act), ("output", hidden))
        yield "feed-forward", (*inputs, *inner, summed)
    if widths.experts is not None:
        yield "experts", (("residual", hidden), *_expert_terms(widths), summed)


def _attention_parts(
    run: Run, layer: Layer, shard: ServerShard, source: Source
) -> Iterator[SourcedBytes]:
    """q, k and v before and after rotary embedding, the output, and the residual.

    Eager layers also keep their input.
    """
    copies = 1 if is_compiled(run) else 3
    terms: tuple[Term, ...] = ()
    for mixer in layer.mixers:
        mixed, read = mixer_widths(mixer, shard)
        rotated = mixed if isinstance(mixer, Attention) and is_compiled(run) else 0
        widest = (("q, k and v", mixed), ("rotated", rotated), ("output", read))
        terms = max(terms, widest, key=total)
    kept = ("residual" if copies == 1 else "inputs and residual", copies * run.arch.hidden)
    yield _walked(run, "attention", (*terms, kept), source)
    latent = next((m for m in layer.mixers if isinstance(m, LatentAttention)), None)
    if latent is not None and v1(run):
        yield _latent_chunk(run, latent, shard)


def _latent_chunk(run: Run, mixer: LatentAttention, shard: ServerShard) -> SourcedBytes:
    tokens = max(8 * int(run.options["max_seq_len"]), 4 * step_sequences(run) * 16)
    tokens = min(tokens, (64 if version(run) >= (0, 11, 0) else 128) * 1024)
    rows = ("tokens", tokens), ("heads", -(-mixer.heads // shard.attention_tp))
    width, size = [("", mixer.nope_dim), ("", mixer.value_dim)], ("bytes", element_bytes(run))
    return part("attention: earlier keys and values", LATENT, *rows, width, size)


def checkpoint_parts(run: Run, shard: ServerShard) -> Iterator[SourcedBytes]:
    """States inside a prompt, one for each block of a step, which prefix caching keeps."""
    for mixer in checkpointed(run):
        block = cache_slots(run, shard)[0].page.block
        states = ("states", -(-step_tokens(run) // block))
        each = mixer.state_elements // shard.attention_tp
        yield part("states at the ends of blocks", CHECKPOINTS, states, each, ("bytes", 4))


def workspace_part(run: Run, widths: LayerWidths, size: int) -> SourcedBytes:
    """One layer's workspace; `size`: bytes of an element.

    With data parallelism every rank runs the tokens of all replicas.
    """
    experts = widths.experts
    if experts is None or run.options["quantization"] in OTHER_KERNELS:
        return SourcedBytes(NAME, 0, WORKSPACE_SOURCE)
    tokens = step_tokens(run) * int(run.mesh.dp)
    chunk = next(chunk for since, chunk in CHUNKS if version(run) >= since)
    rows = ("tokens", min(tokens, chunk or tokens)), ("experts", experts.top_k)
    if version(run) >= PERSISTENT_FROM:
        row = max(experts.act, widths.hidden) + max(experts.up, widths.hidden)
    elif version(run) >= SHARED_FROM:
        row = max(experts.up, widths.hidden) + experts.act
    else:
        row = experts.up + experts.act + widths.hidden
    return part(NAME, WORKSPACE_SOURCE, *rows, row, ("bytes", size))
