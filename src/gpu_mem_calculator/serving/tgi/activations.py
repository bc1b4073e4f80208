"""TGI's warm-up: one prefill of max_batch_prefill_tokens, with a cache for its requests alone.

torch's cached segments are not released before TGI reads the free memory, so reserved bytes
count (server/text_generation_server/models/flash_causal_lm.py warmup). The layers' allocations and
frees are replayed through a model of torch's allocator.

Gemma 3's part is an image, and attention masks for every token: since 3.3 a mask over all pairs of
tokens joins the tokens of an image (models/vlm_causal_lm.py forward,
custom_modeling/flash_gemma3_modeling.py get_attention_mask); attention in the tower is plain torch
(custom_modeling/siglip.py SiglipAttention). Other towers are not modelled.

Legend: T tokens of the prefill, h hidden, V vocabulary. Names are those of flash_llama_modeling.py,
whose local variables stay alive until a layer returns.
"""

from __future__ import annotations

from msgspec import Struct

from ...ledger.num import ceil_div, round_up
from ...ledger.remember import remembered
from ...ledger.units import MIB
from ...pytorch.replay.needs import needs_bytes
from ...pytorch.replay.replays import history
from ...pytorch.replay.stream import AllocationStream
from ...run.cuda.chips import cublas_bytes
from ...run.run import Run
from ...run.weights.layer_widths import LayerWidths, distinct_widths
from ...run.weights.rank_weights import run_format
from ...run.weights.shards import ServerShard
from . import defaults
from .defaults import prefill_tokens
from .versions import MARLIN, version

FLASHINFER_BYTES = 128 * MIB  # layers/attention/flashinfer.py get_workspace
CHUNK = 32768  # tokens of one fused_moe call
IN_PLACE = (2, 4, 0)  # from here on log probabilities overwrite the logits
LAYERS_PER_KIND = 4  # layers of each kind in the stream; more do not change the result
ELEMENT_BYTES = 2  # bytes of an element
AWQ_PARTS = 8
MASKS_FROM = (3, 3, 0)
FAMILY = "gemma3"
PATCHES, HEADS = 4096, 16  # of the tower, the same in all model sizes
SPARE = 4  # one-byte masks alive at once, besides the one that stays


class StreamRecorder:
    """Sizes and events of an allocation stream; event n allocates tensor n, ~n frees it."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.events: list[int] = []

    def allocate(self, size: int) -> int:
        """Allocate a tensor of `size` bytes; its number is returned."""
        self.sizes.append(size)
        self.events.append(len(self.sizes) - 1)
        return len(self.sizes) - 1

    def free(self, *tensors: int) -> None:
        """Free tensors by their numbers."""
        self.events += [~tensor for tensor in tensors]


class PromptImage(Struct, frozen=True):
    """Pairs of patches in all attention heads of a rank, and pairs of tokens."""

    patches: int
    tokens: int


def requests(run: Run) -> int:
    """Prompts of the warm-up, each as long as allowed."""
    return int(ceil_div(prefill_tokens(run), _prompt_tokens(run)))


def _prompt_tokens(run: Run) -> int:
    """Tokens of the longest prompt of the warm-up."""
    tokens = prefill_tokens(run)
    return min(defaults.max_input_tokens(run) or tokens, tokens)


def warm_tokens(run: Run) -> int:
    """Tokens of the warm-up's cache: whole requests if their length is known."""
    longest, block = defaults.max_request_tokens(run), defaults.block_size(run)
    if longest is None:
        return int(round_up(prefill_tokens(run), block))
    return requests(run) * int(round_up(longest - 1, block))


class WarmupPrefill(Struct, frozen=True, kw_only=True):
    """What the stream of the warm-up is made of.

    - `layers`: widths of each different layer
    - `tokens`: tokens of the prefill; `rows`: rows of logits
    - `vocab`: size of the vocabulary; `ranks`: tensor-parallel ranks
    - `copied`: log probabilities are a copy of the logits
    - `parts`: partial sums that a matmul keeps apart
    - `query`: queries are copied for the attention kernel
    - `image`: the image of the prompt, if one is modelled
    """

    layers: tuple[LayerWidths, ...]
    tokens: int
    rows: int
    vocab: int
    ranks: int
    copied: bool = False
    parts: int = 1
    query: bool = False
    image: PromptImage | None = None


def warm_up_bytes(run: Run, shard: ServerShard, available: int | None = None) -> int:
    """Bytes that torch has reserved after the prefill.

    If less than that is `available`, the allocator releases cached segments and tries again.
    """
    workspaces, prefill = _workspaces(run), _prefill(run, shard)
    reserved = workspaces + _reserved_bytes(prefill)
    if available is None or reserved <= available:
        return reserved
    if workspaces + _needed_bytes(prefill) > available:
        return reserved
    return workspaces + _reserved_bytes(prefill, available - workspaces)


def least_bytes(run: Run, shard: ServerShard) -> int:
    """The least memory in bytes with which the prefill runs."""
    return _workspaces(run) + _needed_bytes(_prefill(run, shard))


def _workspaces(run: Run) -> int:
    flashinfer = FLASHINFER_BYTES if defaults.attention_kernels(run) == "flashinfer" else 0
    return cublas_bytes(run.compute_capability) + flashinfer


def _prefill(run: Run, shard: ServerShard) -> WarmupPrefill:
    all_logits = version(run) < (3, 0, 0) or bool(run.options.get("enable_prefill_logprobs"))
    tokens, count = prefill_tokens(run), requests(run)
    return WarmupPrefill(
        layers=distinct_widths(run.arch, shard),
        tokens=tokens,
        rows=tokens if all_logits else count,
        vocab=run.arch.vocab,
        ranks=shard.tp,
        copied=all_logits and version(run) < IN_PLACE,
        parts=_split_k_parts(run),
        query=defaults.attention_kernels(run) == "flashinfer",
        image=prompt_image(run, shard.tp, count, _prompt_tokens(run)),
    )


def _split_k_parts(run: Run) -> int:
    """Partial sums of a matmul in AWQ's kernel (layers/awq/quantize/qmodule.py), otherwise 1."""
    awq_kernel = version(run) < MARLIN or float(run.compute_capability) < 8
    return AWQ_PARTS if awq_kernel and run_format(run).name == "awq" else 1


@remembered(64, always=True)
def _reserved_bytes(prefill: WarmupPrefill, cap: int | None = None) -> int:
    """Bytes reserved at the end of the stream; `cap`: bytes that torch may reserve."""
    return history(_stream(prefill), cap=cap)[-1][1]


@remembered(64, always=True)
def _needed_bytes(prefill: WarmupPrefill) -> int:
    return needs_bytes(_stream(prefill))


def _stream(prefill: WarmupPrefill) -> AllocationStream:
    """The layers, then the head: logits, and a copy of them if `copied`."""
    recorder = StreamRecorder()
    hidden = prefill.layers[0].hidden if prefill.layers else 0
    hidden_bytes = prefill.tokens * hidden * ELEMENT_BYTES
    masks = [] if prefill.image is None else record_image(recorder, prefill.image)
    inputs: list[int] = [recorder.allocate(hidden_bytes)]
    for widths in (layer for layer in prefill.layers for _ in range(LAYERS_PER_KIND)):
        outputs = _record_layer(recorder, widths, prefill, first=len(inputs) == 1)
        recorder.free(*inputs)
        inputs = outputs
    norm = recorder.allocate(hidden_bytes)
    recorder.free(recorder.allocate(hidden_bytes), *inputs)
    logits_bytes = prefill.rows * prefill.vocab * ELEMENT_BYTES
    rank_rows = prefill.rows * int(ceil_div(prefill.vocab, prefill.ranks))
    parts = [recorder.allocate(rank_rows * ELEMENT_BYTES)] if prefill.ranks > 1 else []
    logits = recorder.allocate(logits_bytes)
    recorder.free(*parts)
    recorder.free(norm, *masks)
    if prefill.copied:
        recorder.free(recorder.allocate(logits_bytes))
    recorder.free(logits)
    return AllocationStream.of(sizes=recorder.sizes, events=recorder.events)


def _record_linear(recorder: StreamRecorder, size: int, parts: int) -> int:
    """A matmul, in partial sums if there are several parts; its output is returned."""
    if parts == 1:
        return recorder.allocate(size)
    partial_sums = recorder.allocate(parts * size)
    out = recorder.allocate(size)
    recorder.free(partial_sums)
    return out


def _record_layer(
    recorder: StreamRecorder, widths: LayerWidths, prefill: WarmupPrefill, *, first: bool
) -> list[int]:
    """One layer; its output and the residual are returned. The first has no residual to add."""
    tokens, parts = prefill.tokens, prefill.parts
    hidden_bytes = tokens * widths.hidden * ELEMENT_BYTES
    input_norm = [recorder.allocate(hidden_bytes) for _ in range(1 if first else 2)]
    qkv = _record_linear(recorder, tokens * widths.mixed * ELEMENT_BYTES, parts)
    queries = [recorder.allocate(tokens * widths.read * ELEMENT_BYTES)] if prefill.query else []
    attention_output = recorder.allocate(tokens * widths.read * ELEMENT_BYTES)
    recorder.free(*queries)
    attended = _record_linear(recorder, hidden_bytes, parts)
    recorder.free(qkv, attention_output)
    norm_output, residual = recorder.allocate(hidden_bytes), recorder.allocate(hidden_bytes)
    outputs = []
    if widths.experts is not None:
        outputs.append(_record_experts(recorder, widths, tokens))
    if widths.up:
        up = _record_linear(recorder, tokens * widths.up * ELEMENT_BYTES, parts)
        act = recorder.allocate(tokens * widths.act * ELEMENT_BYTES)
        gated = widths.up > widths.act
        product = recorder.allocate(tokens * widths.act * ELEMENT_BYTES) if gated else act
        recorder.free(*((act,) if gated else ()))
        outputs.append(_record_linear(recorder, hidden_bytes, parts))
        recorder.free(up, product)
    out = outputs[0] if len(outputs) == 1 else recorder.allocate(hidden_bytes)
    recorder.free(*input_norm, attended, norm_output, *(outputs if len(outputs) != 1 else ()))
    return [out, residual]


def _record_experts(recorder: StreamRecorder, widths: LayerWidths, tokens: int) -> int:
    """fused_moe: inputs and outputs of the activation, and the rows after it, in chunks."""
    assert widths.experts is not None
    rows = min(tokens, CHUNK) * widths.experts.top_k
    logits = recorder.allocate(tokens * widths.experts.count * ELEMENT_BYTES)
    sizes = (widths.experts.up, widths.experts.act, widths.hidden)
    caches = [recorder.allocate(rows * width * ELEMENT_BYTES) for width in sizes]
    out = recorder.allocate(tokens * widths.hidden * ELEMENT_BYTES)
    recorder.free(logits, *caches)
    return out


def prompt_image(run: Run, ranks: int, requests: int, tokens: int) -> PromptImage | None:
    """The warm-up's image, if its tower is modelled; `tokens`: of the longest request."""
    if version(run) < MASKS_FROM or not is_modelled(run):
        return None
    return PromptImage(HEADS * PATCHES * PATCHES // ranks, requests * tokens * tokens)


def is_modelled(run: Run) -> bool:
    """Whether the model has Gemma 3's tower."""
    return bool(run.arch.tower) and run.arch.family.startswith(FAMILY)


def record_image(recorder: StreamRecorder, image: PromptImage) -> list[int]:
    """Record the tower's attention, which is freed, and the masks, which are returned."""
    scores = recorder.allocate(2 * image.patches)
    scaled = recorder.allocate(2 * image.patches)
    recorder.free(scores)
    scores_fp32 = recorder.allocate(4 * image.patches)
    softmax = recorder.allocate(4 * image.patches)
    recorder.free(scores_fp32)
    recorder.free(recorder.allocate(2 * image.patches), softmax, scaled)
    spare = [recorder.allocate(image.tokens) for _ in range(SPARE)]
    masks = [recorder.allocate(image.tokens)]
    recorder.free(*spare)
    masks.append(recorder.allocate(4 * image.tokens))  # as an additive mask
    masks.append(recorder.allocate(image.tokens))  # of the window
    masks.append(recorder.allocate(4 * image.tokens))  # additive, for layers with a window
    return masks
