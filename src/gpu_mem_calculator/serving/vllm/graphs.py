"""CUDA graphs: which batch sizes vLLM captures, and the memory they take.

V0 captures the whole model for batches of up to 256 sequences. V1 captures the pieces between
attentions for up to 512 tokens, and from 0.11 on whole decode steps as well.

Legend: s splits of the keys of a sequence, G graphs, L layers.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.formula import total
from ...ledger.source import code, measured
from ...ledger.units import MIB
from ...models.arch.blocks import Moe
from ...run.cuda.chips import cublas_bytes
from ...run.run import Run
from ...run.weights.layer_widths import distinct_widths, widest_attention
from ...run.weights.shards import ServerShard
from .activations import compiled_widths
from .parts import SourcedBytes, element_bytes, part, step_sequences, step_tokens
from .speculative import tokens_ahead
from .versions import v1, version

SIZES = code(
    "vllm 0.19.0 vllm/config/vllm.py _set_cudagraph_sizes; 0.11.0 "
    "vllm/config/__init__.py; V0: 0.7.3 vllm/worker/model_runner.py"
)
SPLITS = 32  # VLLM_FLASH_ATTN_MAX_NUM_SPLITS_FOR_CUDA_GRAPH
SPLIT_SOURCE = code(
    "vllm 0.19.0 vllm/v1/attention/backends/flash_attn.py: FlashAttention 3 keeps "
    "what 32 splits of a sequence add up to, in fp32"
)
DENSE_BYTES, EXPERTS_BYTES = int(0.178 * MIB), int(0.31 * MIB)
LAYER_SOURCE = measured(
    "logs of vLLM 0.19.0 on H100, 102 to 166 graphs of 8 to 80 layers: what "
    "is left beside activations and splits is 0.16 to 0.22 MiB for a layer of "
    "a graph (n = 30), 0.23 to 0.40 with experts (n = 6)"
)
WHOLE_FROM, COARSE_FROM, COUNTED_FROM = (0, 11, 0), (0, 11, 1), (0, 20, 0)
NO_SPLITS = ("gpt_oss", "gemma3")  # other attention kernels


def largest_graph(run: Run) -> int:
    """Tokens of the largest graph; 0 if none is captured."""
    options, seqs = run.options, step_sequences(run)
    if options["enforce_eager"] or options["cudagraph_mode"] == "none":
        return 0
    if options["cudagraph_capture_sizes"] is not None:
        return max(graph_sizes(run), default=0)
    if not v1(run):
        return min(256, -(-seqs // 8) * 8 if seqs > 4 else seqs)
    limit = options["max_cudagraph_capture_size"]
    if limit is None:
        verified = 1 + tokens_ahead(run) if version(run) >= (0, 13, 0) else 1
        limit = min(2 * seqs * verified, 1024 if _captures_1024(run) else 512)
    return min(int(limit), step_tokens(run), *_decode_limit(run))


def _decode_limit(run: Run) -> tuple[int, ...]:
    """Tokens of the largest decode step, where no other steps are captured."""
    decode_only = run.options["cudagraph_mode"] == "full_decode_only"
    return (_decode_tokens(run),) if decode_only else ()


def _decode_tokens(run: Run) -> int:
    return step_sequences(run) * (1 + tokens_ahead(run))


def _captures_1024(run: Run) -> bool:
    """Whether graphs go up to 1,024 tokens: gpt-oss, from 0.28 on every model on Blackwell."""
    vllm_version = version(run)
    blackwell = run.compute_capability.startswith("10.") and vllm_version >= (0, 28, 0)
    return blackwell or (run.arch.family == "gpt_oss" and vllm_version >= COARSE_FROM)


def _given_sizes(run: Run) -> tuple[int, ...]:
    """The sizes that are asked for, without those beyond a step."""
    most = min(step_tokens(run), *_decode_limit(run), 2**62)
    return tuple(sorted({size for size in run.options["cudagraph_capture_sizes"] if size <= most}))


def graph_sizes(run: Run) -> tuple[int, ...]:
    """Tokens of each graph: 1, 2, 4, then steps of 8; from 0.11.1 on steps of 16 beyond 256."""
    if run.options["cudagraph_capture_sizes"] is not None:
        return _given_sizes(run)
    largest = largest_graph(run)
    last_of_8 = largest if version(run) < COARSE_FROM else min(largest, 255)
    sizes = [*(n for n in (1, 2, 4) if n <= largest), *range(8, last_of_8 + 1, 8)]
    if version(run) >= COARSE_FROM:
        sizes += range(256, largest + 1, 16)
    return tuple(sizes)


def graph_count(run: Run) -> int:
    """Number of graphs: of pieces for all sizes, of whole steps for sizes that decode can have.

    vllm 0.33.0 vllm/config/compilation.py CUDAGraphMode: a mode has one of them or both; `full`
    captures whole steps of every size.
    """
    sizes, mode = graph_sizes(run), run.options["cudagraph_mode"] or "full_and_piecewise"
    if not v1(run) or version(run) < WHOLE_FROM or mode in ("piecewise", "full"):
        return len(sizes)
    whole = sum(size <= _decode_tokens(run) for size in sizes)
    return whole + (len(sizes) if mode == "full_and_piecewise" else 0)


def graph_parts(run: Run, shard: ServerShard) -> Iterator[SourcedBytes]:
    """Name, bytes and source of what capturing allocates on a rank."""
    tokens = largest_graph(run)
    if not tokens:
        return
    layers, graphs = len(shard.places), graph_count(run)
    experts = any(isinstance(layer.mlp, Moe) for layer in shard.layers(run.arch))
    each = ("graphs", graphs), ("layers", layers)
    of_layer = ("bytes", EXPERTS_BYTES if experts else DENSE_BYTES)
    yield part(f"{graphs} graphs of {layers} layers", LAYER_SOURCE, *each, of_layer)
    instants = (compiled_widths(widths) for widths in distinct_widths(run.arch, shard))
    widest = max((terms for parts in instants for _, terms in parts), key=total, default=())
    step = ("tokens", tokens), list(widest), ("bytes", element_bytes(run))
    yield part(f"activations of {tokens} tokens", SIZES, *step)
    workspace = cublas_bytes(run.compute_capability)
    yield SourcedBytes("cuBLAS workspace of capturing", workspace, SIZES)
    width = split_width(run, shard)
    if width:
        splits = ("splits", SPLITS), ("sequences", min(tokens, step_sequences(run)))
        heads = ("of all heads", width)
        yield part("splits of attention", SPLIT_SOURCE, *splits, heads, ("bytes", 4))


def split_width(run: Run, shard: ServerShard) -> int:
    """Elements of a token's attention output in all heads, of which every split of a decode step
    keeps an fp32 partial sum; 0 if nothing is split.
    """
    whole = run.options["cudagraph_mode"] != "piecewise"  # pieces leave attention out
    split = whole and v1(run) and version(run) >= WHOLE_FROM and run.compute_capability == "9.0"
    if not split or run.precision == "fp32" or run.arch.family.startswith(NO_SPLITS):
        return 0
    return widest_attention(run.arch, shard)
