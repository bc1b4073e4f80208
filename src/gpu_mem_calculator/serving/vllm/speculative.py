"""Speculative decoding on a rank: a draft's weights, layers and buffers.

vllm 0.11.0 vllm/config/speculative.py, vllm/v1/spec_decode/eagle.py; methods are vLLM's names:
ngram (nothing on the GPU), draft_model, eagle, eagle3 and mtp.

Legend: h hidden size of the model, k draft tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.num import ceil_div
from ...ledger.source import code
from ...models.arch.arch import Arch, Layer
from ...models.arch.variants import EAGLE3_VOCAB, last_attention_layer, layers_alone
from ...run.run import Run
from ...run.weights.shards import ServerShard, ShardedParameter, held
from .parts import SourcedBytes, element_bytes, part, step_sequences, step_tokens
from .versions import v1, version

BUFFERS_SOURCE = code("vllm 0.11.0 vllm/v1/spec_decode/eagle.py EagleProposer.__init__")
METHODS = ("ngram", "draft_model", "eagle", "eagle3", "mtp")
EAGLE = ("eagle", "eagle3", "mtp")  # one head after the model, on its hidden states
OWN_HEADS, OWN_HEADS_UNTIL = ("deepseek", "glm", "kimi"), (0, 16, 0)
ONE_MTP_LAYER = ("qwen3_next", "qwen3_5")  # published with one, even if config.json does not say so


class DraftModel(Struct, frozen=True, kw_only=True):
    """What a rank stores for speculative decoding.

    - `parameters`: the draft's parameters on the rank
    - `quantized`: whether they are in the model's weight format; otherwise in the model's dtype
    - `buffers`: other tensors, allocated before the model is loaded
    """

    parameters: tuple[ShardedParameter, ...] = ()
    quantized: bool = False
    buffers: tuple[SourcedBytes, ...] = ()


def method(run: Run) -> str:
    """The speculative method; empty without speculation."""
    name = run.options.get("speculative_method")
    return str(name) if name else "draft_model" if run.draft is not None else ""


def tokens_ahead(run: Run) -> int:
    """Draft tokens of a step; by default one for each multi-token-prediction layer."""
    if not method(run):
        return 0
    default = num_mtp_layers(run.arch) if method(run) == "mtp" else 0
    return int(run.options.get("num_speculative_tokens") or default)


def num_mtp_layers(arch: Arch) -> int:
    """Multi-token-prediction layers that are published with a model."""
    if not arch.mtp_parameters:
        return int(arch.family.startswith(ONE_MTP_LAYER))
    layer_parameters = arch.layers[-1].num_parameters
    return max(1, round(arch.mtp_parameters / (layer_parameters + 2 * arch.vocab * arch.hidden)))


def draft_layers(run: Run) -> Iterator[tuple[Layer, int | None]]:
    """The draft's layers with their windows; their keys and values are in the model's pool."""
    name = method(run)
    if name == "mtp":
        last = last_attention_layer(run.arch)
        yield from ((last, None) for _ in range(num_mtp_layers(run.arch)))
    elif name in METHODS and run.draft is not None:
        windows = run.draft.windows or (None,) * len(run.draft.layers)
        yield from zip(run.draft.layers, windows, strict=True)


def draft_model(run: Run, shard: ServerShard) -> DraftModel:
    """The rank's part of the draft, which is on the last pipeline stage."""
    name = method(run)
    if not shard.head or name not in METHODS or name == "ngram":
        return DraftModel()
    if name == "mtp":
        parameters = tuple(_mtp_parameters(run, shard))
        buffers = draft_buffers(run, run.arch.hidden)
        return DraftModel(parameters=parameters, quantized=True, buffers=buffers)
    assert run.draft is not None
    draft_shard = replace(shard, places=range(len(run.draft.layers)), embedding=True)
    parameters = held(run.draft, draft_shard)
    if name != "draft_model":
        parameters = tuple(_eagle_parameters(run, run.draft, draft_shard, third=name == "eagle3"))
    return DraftModel(parameters=parameters, buffers=draft_buffers(run, run.draft.hidden))


def _eagle_parameters(
    run: Run, head: Arch, shard: ServerShard, *, third: bool
) -> Iterator[ShardedParameter]:
    """vllm 0.11.0 models/llama_eagle.py and llama_eagle3.py: the projection is replicated.

    EAGLE has neither its layer's input norm nor the final norm, and uses the model's head. EAGLE-3
    (`third`) reads three of the model's layers, and its q, k and v read two concatenated vectors.
    """
    width = 3 * run.arch.hidden if third else 2 * head.hidden
    yield ShardedParameter("fc.weight", (head.hidden, width), "other")
    for parameter in held(head, shard):
        if parameter.role == "embedding":
            if (head.vocab, head.hidden) != (run.arch.vocab, run.arch.hidden) or run.mesh.pp > 1:
                yield parameter
        elif third and any(f"{name}_proj" in parameter.name for name in "qkv"):
            yield replace(parameter, shape=(parameter.shape[0], 2 * parameter.shape[1]))
        elif parameter.layer >= 0 and (third or "input_layernorm" not in parameter.name):
            yield parameter
    if third:
        rows = int(ceil_div(EAGLE3_VOCAB, shard.tp))
        for name in ("hidden_norm", "norm"):
            yield ShardedParameter(name, (head.hidden,), "norm")
        yield ShardedParameter("lm_head.weight", (rows, head.hidden), "head")


def _mtp_parameters(run: Run, shard: ServerShard) -> Iterator[ShardedParameter]:
    """vllm 0.11.0 models/deepseek_mtp.py: a layer, two norms before it and one after it.

    A projection is replicated. Until 0.16.0 the families in OWN_HEADS keep a copy of the head for
    each layer (`shared_head`).
    """
    arch, hidden, rows = run.arch, run.arch.hidden, shard.vocab(run.arch.vocab)
    single_layer = layers_alone(arch, (last_attention_layer(arch),))
    layer_shard = replace(shard, places=range(1), embedding=True, head=False)
    for place in range(len(arch.layers), len(arch.layers) + num_mtp_layers(arch)):
        for parameter in held(single_layer, layer_shard):
            yield replace(parameter, layer=place)
        yield ShardedParameter("eh_proj.weight", (hidden, 2 * hidden), "other", place)
        for name in ("enorm", "hnorm", "shared_head.norm"):
            yield ShardedParameter(f"{name}.weight", (hidden,), "norm", place)
        if version(run) < OWN_HEADS_UNTIL and arch.family.startswith(OWN_HEADS):
            yield ShardedParameter("shared_head.head.weight", (rows, hidden), "head", place)
    if run.mesh.pp > 1:
        yield ShardedParameter("embed_tokens.weight", (rows, hidden), "embedding")


def draft_buffers(run: Run, hidden: int) -> tuple[SourcedBytes, ...]:
    """vllm 0.11.0 vllm/v1/spec_decode/eagle.py EagleProposer.__init__, for every token of a step.

    Hidden states and embeddings (16 bits), positions (8 bytes), token ids and a range (4 each).
    """
    tokens, size = ("tokens", step_tokens(run)), ("bytes", element_bytes(run))
    states, ids = "draft: hidden states and embeddings", "draft: token ids and positions"
    return (
        part(f"{states} of a step", BUFFERS_SOURCE, 2, tokens, hidden, size),
        part(f"{ids} of a step", BUFFERS_SOURCE, tokens, ("bytes", 16)),
    )


def logit_rows(run: Run) -> int:
    """Extra rows of logits in the profile run: one per sequence, for the rejection sampler.

    vllm 0.11.0 gpu_model_runner.py _dummy_sampler_run. While it serves, a step has up to
    max_num_seqs x (k + 1) rows, which the profile run does not make.
    """
    return step_sequences(run) if tokens_ahead(run) and v1(run) else 0


def notes(run: Run) -> Iterator[str]:
    """Sentences for the user about speculative decoding."""
    drafts = tokens_ahead(run)
    if not drafts:
        return
    rows = step_sequences(run) * (drafts + 1)
    yield (
        f"a full decode step verifies {rows:,} rows of logits, {drafts + 1} per sequence; "
        "vLLM's profiling pass does not include them"
    )
    if method(run) == "eagle3":
        yield f"the EAGLE-3 head is assumed to have its own vocabulary of {EAGLE3_VOCAB:,} tokens"
