"""What speculative decoding adds: a draft's weights, its layers' cache, larger decode batches.

sglang 0.5.23 srt/models/llama_eagle.py, llama_eagle3.py, deepseek_nextn.py; srt/server_args.py
auto_choose_speculative_params. A draft of the EAGLE kind uses the model's embedding and head; that
of EAGLE-3 has a small head itself.

Legend: h hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.num import ceil_div
from ...models.arch.arch import Arch, Layer
from ...models.arch.variants import EAGLE3_VOCAB, has_attention, last_attention_layer, layers_alone
from ...run.run import Run
from ...run.weights.shards import ServerShard, ShardedParameter, held

EAGLE, EAGLE3, NEXTN, STANDALONE, NGRAM = "eagle", "eagle3", "nextn", "standalone", "ngram"
METHODS = (EAGLE, EAGLE3, NEXTN, STANDALONE, NGRAM)  # a flag's values, in capitals
ALIASES = {"mtp": NEXTN, "draft_model": STANDALONE}


class DraftDepth(Struct, frozen=True):
    """How far a draft runs ahead.

    - `steps`: passes of the draft
    - `branches`: candidates of each pass
    - `tokens`: tokens that the model then verifies in one pass; 1 without a draft
    """

    steps: int = 0
    branches: int = 0
    tokens: int = 1


def method(run: Run) -> str:
    """The method of speculative decoding under its name in METHODS; empty where there is none."""
    name = run.options.get("speculative_method")
    if name:
        lower = str(name).lower()
        return ALIASES.get(lower, lower if lower in METHODS else str(name))
    return STANDALONE if run.draft is not None else ""


def draft_depth(run: Run) -> DraftDepth:
    """The depth that the run file sets, else SGLang's choice for the model."""
    if not method(run):
        return DraftDepth()
    tokens = run.options.get("num_speculative_tokens")
    if tokens:
        return DraftDepth(max(1, int(tokens) - 1), 1, int(tokens))
    return DraftDepth(5, 4, 8) if run.arch.family == "llama" else DraftDepth(3, 1, 4)


def problems(run: Run) -> Iterator[str]:
    """What SGLang would refuse, and what is not modelled."""
    name, key = method(run), "inference.speculative_method"
    if name and name not in METHODS:
        yield f"{key}={name!r} is not modelled; use one of {', '.join(METHODS)}"
    elif name in (EAGLE, EAGLE3, STANDALONE) and run.draft is None and not run.arch.mtp_parameters:
        yield f"{key}={name!r} needs inference.speculative_model"
    elif name == NGRAM and run.draft is not None:
        yield f"inference.speculative_model is not for {NGRAM!r}, which has no model; leave it out"
    elif not name and run.options["num_speculative_tokens"]:
        yield "inference.num_speculative_tokens needs inference.speculative_method; use 'eagle3'"
    elif name == NEXTN and not run.arch.mtp_parameters:
        lacks = f"{run.arch.family} has no multi-token-prediction layers"
        yield f"{key}={name!r}, but {lacks}; use 'eagle3' with inference.speculative_model"
    elif name not in ("", NGRAM) and run.draft is None and not has_attention(run.arch):
        yield f"{key}={name!r}: the model has no layer with attention, as its draft has"


def draft_layers(run: Run) -> tuple[Layer, ...]:
    """The draft's layers; their cache holds as many tokens as the model's."""
    if method(run) in ("", NGRAM):
        return ()
    if run.draft is not None:
        return run.draft.layers
    return (last_attention_layer(run.arch),)


def draft_parameters(run: Run, shard: ServerShard) -> Iterator[ShardedParameter]:
    """The rank's shard of each of the draft's parameters; drafts run on the last stage."""
    name = method(run)
    if name in ("", NGRAM) or not shard.head:
        return
    if run.draft is None:
        yield from _eagle_draft(run.arch, shard, draft_layers(run), 2 * run.arch.hidden)
        return
    whole = replace(shard, places=range(len(run.draft.layers)), embedding=True)
    if name == STANDALONE:
        yield from held(run.draft, whole)
        return
    eagle3 = name == EAGLE3
    width = 3 * run.arch.hidden if eagle3 else 2 * run.draft.hidden
    yield from _eagle_draft(run.draft, shard, run.draft.layers, width, eagle3=eagle3)


def _eagle_draft(
    arch: Arch, shard: ServerShard, layers: tuple[Layer, ...], width: int, *, eagle3: bool = False
) -> Iterator[ShardedParameter]:
    """A projection of `width` onto h, the layers, and EAGLE-3's head; its q, k and v read 2h."""
    bare = replace(layers_alone(arch, layers), tower=())
    part = replace(shard, places=range(len(layers)), embedding=True, head=False)
    yield ShardedParameter("fc.weight", (arch.hidden, width), "other")
    for one in held(bare, part):
        doubled = eagle3 and any(f"{name}_proj.weight" in one.name for name in "qkv")
        shape = (one.shape[0], 2 * one.shape[1]) if doubled else one.shape
        yield ShardedParameter(one.name, shape, one.role, one.layer)
    if eagle3:
        rows = int(ceil_div(EAGLE3_VOCAB, shard.tp))
        yield ShardedParameter("lm_head.weight", (rows, arch.hidden), "head")
