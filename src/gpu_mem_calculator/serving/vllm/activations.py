"""The highest moment of the trial run that vLLM measures before it cuts its pool.

As many tokens as a step takes pass through the layers, then as many sequences as the server takes
are sampled. `ProfilePeak` is the increase of torch's allocated peak, the log's "peak activation".

Compiled layers (V1) are cut at attention into pieces. A piece's caller keeps what goes in:
attention's output and the residual. Inside, the widest moment is the activation of the
feed-forward: gate and up, their product, and the new residual. Measured on an H200 with torch 2.11
on such a piece: exactly these, and in the first run, which tries kernels, a buffer as large as the
L2 cache.

Eager layers (V0, enforce_eager) keep more by name: the layer's input, the residual, the
feed-forward's input, gate and up, their product, the output, and its sum over the ranks.

Legend: t tokens of a step, h hidden, f feed-forward on the rank, k experts a token is sent to.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ...ledger.source import Source, code, measured
from ...ledger.units import GIB, MIB
from ...model.arch import Layer
from ...model.blocks import Attention, LatentAttention
from ...run.run import Run
from ...step.workspaces import cublas_bytes
from ...weights.layer_widths import LayerWidths, mixer_widths, widths
from ...weights.shards import ServerShard
from . import images
from .cache import outside_bytes
from .experts import KEPT_FROM, WORKSPACE, workspace_bytes
from .sampler import SourcedBytes, rows, sampling
from .speculative import logit_rows
from .versions import second_runner, v1, version

PIECE = code("vllm 0.11.0 vllm/compilation/backends.py split_graph, piecewise_backend.py; torch "
             "2.11 inductor frees a buffer behind its last use")  # fmt: skip
EAGER = code("vllm 0.7.3 vllm/model_executor/models/llama.py, run as written")
TUNED = measured("NVIDIA H200, torch 2.11: inductor's benchmark clears the L2 cache with a buffer "
                 "of its size while kernels are tried, 60 MiB; logs of H100s agree with "
                 "50")  # fmt: skip
WORKSPACES = code("torch 2.11 aten/src/ATen/cuda/CublasHandlePool.cpp getChosenWorkspaceSize")
STEP = code("vllm 0.11.0 vllm/v1/worker/gpu_model_runner.py profile_run")
LATENT = code("vllm 0.11.0 vllm/v1/attention/backends/mla/common.py: keys and values of a chunk of "
              "earlier tokens, as large as they can get")  # fmt: skip
STAGE = code("vllm 0.11.0 vllm/v1/worker/gpu_model_runner.py _dummy_run: hidden states and "
             "residual of the stage before")  # fmt: skip
STATES = code("vllm 0.7.3 vllm/model_executor/models/mamba_cache.py")
L2_MIB = {"7.0": 6, "7.5": 4, "8.0": 40, "8.6": 6, "8.9": 72, "9.0": 50, "10.0": 126, "12.0": 96}
H200_L2_MIB, H200_BYTES = 60, 100 * GIB


class ProfilePeak(Struct, frozen=True):
    """What is alive at the highest moment, and which it is."""

    moment: str
    parts: tuple[SourcedBytes, ...]

    @property
    def bytes(self) -> int:
        """The sum."""
        return sum(size for _, size, _ in self.parts)


def element_bytes(run: Run) -> int:
    """Bytes of an element of the hidden states."""
    return 4 if run.precision == "fp32" else 2


def compiled(run: Run) -> bool:
    """Whether torch.compile makes the layers."""
    return v1(run) and not run.options["enforce_eager"]


def peak(run: Run, shard: ServerShard) -> ProfilePeak:
    """The trial run of a rank."""
    always, size = tuple(_always(run, shard)), element_bytes(run)
    seen = tuple(images.kept(run, size)) if shard.embedding else ()
    found = [
        ProfilePeak(moment, (*parts, *always, *seen)) for moment, parts in _moments(run, shard)
    ]
    if seen:
        found.append(ProfilePeak("the vision tower", (*images.tower(run, size, shard.tp), *always)))
    return max(found, key=lambda one: one.bytes)


def _moments(run: Run, shard: ServerShard) -> Iterator[tuple[str, tuple[SourcedBytes, ...]]]:
    seen = set()
    for layer in shard.layers(run.arch):
        if id(layer) not in seen:
            seen.add(id(layer))
            yield from _layer(run, layer, shard)
    if shard.head:
        yield "sampling", tuple(_sampling(run))


def _always(run: Run, shard: ServerShard) -> Iterator[SourcedBytes]:
    """What is there from the first matmul on."""
    tokens, size = int(run.options["max_num_batched_tokens"]), element_bytes(run)
    yield "cuBLAS workspace", cublas_bytes(run.compute_capability), WORKSPACES
    if not shard.embedding:
        yield "from the stage before", 2 * tokens * run.arch.hidden * size, STAGE
    if v1(run) and version(run) >= KEPT_FROM:
        kept = max((workspace_bytes(run, one, size) for one in kinds(run, shard)), default=0)
        if kept:
            yield "workspace of the experts", kept, WORKSPACE
    states = outside_bytes(run, shard)
    if states:
        yield "states of sequences", states, STATES


def kinds(run: Run, shard: ServerShard) -> tuple[LayerWidths, ...]:
    """Every different kind of layer on the rank."""
    return tuple({widths(layer, run.arch.hidden, shard): None for layer in shard.layers(run.arch)})


def _sampling(run: Run) -> Iterator[SourcedBytes]:
    """Hidden states of the step; those of the sampled tokens, V1's once more as noise."""
    size, hidden = element_bytes(run), run.arch.hidden
    copies = 2 if v1(run) and not second_runner(run) else 1
    yield "hidden states", int(run.options["max_num_batched_tokens"]) * hidden * size, STEP
    yield "hidden states of the sampled tokens", copies * rows(run) * hidden * size, STEP
    yield from sampling(run, size)
    drafted = logit_rows(run) * run.arch.vocab * size
    if drafted and not second_runner(run):
        yield "logits of guessed tokens", drafted, STEP


def _layer(
    run: Run, layer: Layer, shard: ServerShard
) -> Iterator[tuple[str, tuple[SourcedBytes, ...]]]:
    size, tokens = element_bytes(run), int(run.options["max_num_batched_tokens"])
    wide, each = widths(layer, run.arch.hidden, shard), tokens * size
    source, tuned = (PIECE, _tuned(run)) if compiled(run) else (EAGER, ())
    inner = piece(wide) if compiled(run) else _named(wide, summed=shard.tp > 1)
    for moment, elements in inner:
        parts = [(f"{moment}: activations", elements * each, source), *tuned]
        if moment == "experts" and not (v1(run) and version(run) >= KEPT_FROM):
            parts.append(("workspace of the experts", workspace_bytes(run, wide, size), WORKSPACE))
        yield moment, tuple(parts)
    yield "attention", tuple(_attention(run, layer, shard, each, source))


def _tuned(run: Run) -> tuple[SourcedBytes, ...]:
    size = L2_MIB.get(run.compute_capability, L2_MIB["9.0"])
    if run.compute_capability == "9.0" and run.card_bytes > H200_BYTES:
        size = H200_L2_MIB
    return (("buffer of inductor's benchmark", size * MIB, TUNED),)


def piece(wide: LayerWidths) -> Iterator[tuple[str, int]]:
    """Elements a token at each moment of a compiled piece."""
    inputs, residual = wide.read + wide.hidden, wide.hidden
    if wide.up:
        yield "feed-forward", inputs + residual + wide.up + wide.act
    if wide.experts is not None:
        shared = wide.hidden if wide.up else 0
        yield "experts", inputs + residual + 2 * wide.hidden + shared + wide.experts.count


def _named(wide: LayerWidths, *, summed: bool) -> Iterator[tuple[str, int]]:
    """Elements a token at each moment of an eager layer."""
    outputs = (2 if summed else 1) * wide.hidden
    if wide.up:
        yield "feed-forward", 3 * wide.hidden + wide.up + wide.act + outputs
    if wide.experts is not None:
        shared = wide.hidden if wide.up else 0
        yield "experts", 3 * wide.hidden + shared + wide.experts.count + (outputs - wide.hidden)


def _attention(
    run: Run, layer: Layer, shard: ServerShard, each: int, source: Source
) -> Iterator[SourcedBytes]:
    """q, k and v as projected and as turned, the output, the residual (eager: the input too)."""
    kept = run.arch.hidden * (1 if compiled(run) else 3)
    elements = 0
    for mixer in layer.mixers:
        mixed, read = mixer_widths(mixer, shard)
        turned = mixed if isinstance(mixer, Attention) and compiled(run) else 0
        elements = max(elements, mixed + turned + read)
    yield "attention: activations", (elements + kept) * each, source
    latent = next((m for m in layer.mixers if isinstance(m, LatentAttention)), None)
    if latent is not None and v1(run):
        yield "attention: earlier keys and values", _chunk(run, latent, shard), LATENT


def _chunk(run: Run, mixer: LatentAttention, shard: ServerShard) -> int:
    options = run.options
    tokens = max(8 * int(options["max_seq_len"]), 4 * int(options["max_num_seqs"]) * 16)
    tokens = min(tokens, (64 if version(run) >= (0, 11, 0) else 128) * 1024)
    heads = -(-mixer.heads // shard.attention_tp)
    return tokens * heads * (mixer.nope_dim + mixer.value_dim) * element_bytes(run)
