"""What guessing tokens ahead adds on a rank: a draft's weights, its layers, and its buffers.

vllm 0.11.0 vllm/config/speculative.py, vllm/v1/spec_decode/eagle.py; methods are vLLM's own names:
ngram (nothing on the GPU), draft_model, eagle, eagle3 and mtp.

Legend: h hidden size of the model, k tokens guessed ahead.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.num import ceil_div
from ...model.arch import Arch, Layer
from ...model.blocks import Attention, LatentAttention
from ...run.run import Run
from ...weights.shards import ServerShard, ShardedParameter, held
from .versions import v1, version

METHODS = ("ngram", "draft_model", "eagle", "eagle3", "mtp")
EAGLE = ("eagle", "eagle3", "mtp")  # run as one head behind the model, on its hidden states
OWN_HEADS, OWN_HEADS_UNTIL = ("deepseek", "glm", "kimi"), (0, 16, 0)
ONE_MTP_LAYER = ("qwen3_next", "qwen3_5")  # published, though their config.json may not say so
EAGLE3_VOCAB = 32000  # rows of an EAGLE-3 head's own output, in every head that is published


class DraftModel(Struct, frozen=True, kw_only=True):
    """What a rank holds to guess ahead.

    `held`: its parameters; they are stored as the model's own are where `quantized`, else in the
    model's dtype. `buffers`: what stays on the GPU beside them, made before the model is loaded.
    """

    held: tuple[ShardedParameter, ...] = ()
    quantized: bool = False
    buffers: tuple[tuple[str, int], ...] = ()


def method(run: Run) -> str:
    """How tokens are guessed; empty: not at all."""
    given = run.options.get("speculative_method")
    return str(given) if given else "draft_model" if run.draft is not None else ""


def tokens_ahead(run: Run) -> int:
    """Tokens that are guessed ahead; multi-token prediction guesses as many as it has layers."""
    if not method(run):
        return 0
    default = num_mtp_layers(run.arch) if method(run) == "mtp" else 0
    return int(run.options.get("num_speculative_tokens") or default)


def num_mtp_layers(arch: Arch) -> int:
    """Multi-token-prediction layers that are published beside a model."""
    if not arch.mtp_parameters:
        return int(arch.family.startswith(ONE_MTP_LAYER))
    own = arch.layers[-1].num_parameters
    return max(1, round(arch.mtp_parameters / (own + 2 * arch.vocab * arch.hidden)))


def problems(run: Run) -> Iterator[str]:
    """What vLLM would refuse, and what is not modelled."""
    name, now = method(run), version(run)
    if not name:
        if run.options.get("num_speculative_tokens"):
            yield ("inference.num_speculative_tokens needs inference.speculative_method; set it "
                   "to 'ngram', or leave both out")  # fmt: skip
        return
    key = "inference.speculative_method"
    if name not in METHODS:
        yield f"{key}={name!r} is not modelled; use one of {', '.join(METHODS)}"
    elif name == "mtp" and not num_mtp_layers(run.arch):
        yield f"{key}='mtp', but {run.arch.family} predicts one token at a time; use 'ngram'"
    elif name in ("eagle", "eagle3", "draft_model") and run.draft is None:
        yield f"{key}={name!r} needs inference.speculative_model"
    elif name == "draft_model" and v1(run) and now < (0, 15, 0):
        yield (f"{key}='draft_model' is not in vLLM's V1 engine before 0.15.0; use 'eagle3', or "
               "engine_version 0.15.0")  # fmt: skip
    if name in METHODS and not tokens_ahead(run):
        yield f"{key}={name!r} needs inference.num_speculative_tokens"


def draft_layers(run: Run) -> Iterator[tuple[Layer, int | None]]:
    """The draft's layers with their windows; their keys and values lie in the model's pool."""
    name = method(run)
    if name == "mtp":
        last = next(layer for layer in reversed(run.arch.layers)
                    if isinstance(layer.mixer, Attention | LatentAttention))  # fmt: skip
        yield from ((last, None) for _ in range(num_mtp_layers(run.arch)))
    elif name in METHODS and run.draft is not None:
        windows = run.draft.windows or (None,) * len(run.draft.layers)
        yield from zip(run.draft.layers, windows, strict=True)


def draft(run: Run, shard: ServerShard) -> DraftModel:
    """The rank's part of the draft: with the last stage of a pipeline."""
    name = method(run)
    if not shard.head or name not in METHODS or name == "ngram":
        return DraftModel()
    if name == "mtp":
        return DraftModel(held=tuple(_mtp(run, shard)), quantized=True,
                     buffers=buffers(run, run.arch.hidden))  # fmt: skip
    assert run.draft is not None
    whole = replace(shard, places=range(len(run.draft.layers)), embedding=True)
    if name == "draft_model":
        return DraftModel(
            held=tuple(held(run.draft, whole)), buffers=buffers(run, run.draft.hidden)
        )
    return DraftModel(held=tuple(_eagle(run, run.draft, whole, third=name == "eagle3")),
                 buffers=buffers(run, run.draft.hidden))  # fmt: skip


def _eagle(run: Run, head: Arch, shard: ServerShard, *, third: bool) -> Iterator[ShardedParameter]:
    """vllm 0.11.0 models/llama_eagle.py and llama_eagle3.py: the projection is not cut.

    The first lacks its layer's input norm and the final norm, and uses the model's head. The third
    reads three of the model's layers, and q, k and v two vectors side by side.
    """
    width = 3 * run.arch.hidden if third else 2 * head.hidden
    yield ShardedParameter("fc.weight", (head.hidden, width), "other")
    for one in held(head, shard):
        if one.role == "embedding":
            if (head.vocab, head.hidden) != (run.arch.vocab, run.arch.hidden) or run.mesh.pp > 1:
                yield one
        elif third and ("q_proj" in one.name or "k_proj" in one.name or "v_proj" in one.name):
            yield replace(one, shape=(one.shape[0], 2 * one.shape[1]))
        elif one.layer >= 0 and (third or "input_layernorm" not in one.name):
            yield one
    if third:
        rows = int(ceil_div(EAGLE3_VOCAB, shard.tp))
        yield from (
            ShardedParameter(name, (head.hidden,), "norm") for name in ("hidden_norm", "norm")
        )
        yield ShardedParameter("lm_head.weight", (rows, head.hidden), "head")


def _mtp(run: Run, shard: ServerShard) -> Iterator[ShardedParameter]:
    """vllm 0.11.0 models/deepseek_mtp.py: a layer, two norms before it and one behind, and a
    projection that is not cut.

    Until 0.16.0 each keeps its own copy of the head (`shared_head`), but for models whose
    predictors have none of their own.
    """
    arch, place = run.arch, len(run.arch.layers)
    last, _ = next(draft_layers(run))
    alone = replace(arch, layers=(last,), windows=(), layer_names=(), embedding=(),
                    embedding_norm=None, final_norm=None, head=None, head_extra=())  # fmt: skip
    part = replace(shard, places=range(1), embedding=True, head=False)
    for index in range(num_mtp_layers(arch)):
        for one in held(alone, part):
            yield replace(one, layer=place + index)
        yield ShardedParameter(
            "eh_proj.weight", (arch.hidden, 2 * arch.hidden), "other", place + index
        )
        for name in ("enorm", "hnorm", "shared_head.norm"):
            yield ShardedParameter(f"{name}.weight", (arch.hidden,), "norm", place + index)
        if version(run) < OWN_HEADS_UNTIL and arch.family.startswith(OWN_HEADS):
            rows = shard.vocab(arch.vocab)
            yield ShardedParameter(
                "shared_head.head.weight", (rows, arch.hidden), "head", place + index
            )
    if run.mesh.pp > 1:
        yield ShardedParameter(
            "embed_tokens.weight", (shard.vocab(arch.vocab), arch.hidden), "embedding"
        )


def buffers(run: Run, hidden: int) -> tuple[tuple[str, int], ...]:
    """vllm 0.11.0 vllm/v1/spec_decode/eagle.py EagleProposer.__init__: hidden states, embeddings
    (16 bits), positions (8 bytes), token ids and a range (4 each) for every token of a step.
    """
    tokens, size = int(run.options["max_num_batched_tokens"]), 4 if run.precision == "fp32" else 2
    return (("draft: hidden states and embeddings of a step", 2 * tokens * hidden * size),
            ("draft: token ids and positions of a step", tokens * 16))  # fmt: skip


def logit_rows(run: Run) -> int:
    """More rows of logits in the trial run: one a sequence, for the rejection sampler.

    vllm 0.11.0 gpu_model_runner.py _dummy_sampler_run. While it serves, a step has up to
    max_num_seqs x (k + 1) rows, which the trial run does not make.
    """
    return int(run.options["max_num_seqs"]) if tokens_ahead(run) and v1(run) else 0


def notes(run: Run) -> tuple[str, ...]:
    """What people should know about guessing ahead."""
    ahead = tokens_ahead(run)
    if not ahead:
        return ()
    rows = int(run.options["max_num_seqs"]) * (ahead + 1)
    found = [f"a full step checks {rows:,} rows of logits, {ahead + 1} a sequence, which the trial "
             "run does not make"]  # fmt: skip
    if method(run) == "eagle3":
        found.append(f"the EAGLE-3 head is taken to have {EAGLE3_VOCAB:,} words of its own")
    return tuple(found)
