"""Memory of a generation: caches, the layer or head that runs, the choice of a token.

One case gives both: the entries of a ledger at the instants that can be the peak, and, unrolled,
the events of each layer and of the head in every pass.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ...ledger.ledger import ACT, CACHE, TEMP, Entry
from ...ledger.num import EMPTY, Bytes, Num, nothing, sized
from ...ledger.source import Source, code
from ...pytorch.autograd.forward import ForwardPass
from ...pytorch.autograd.peak import PeakParts
from ...pytorch.modelling.huggingface.setting import BlockSetting
from ...run.run import Run
from ..step.block_events import HEAD
from . import decode_steps
from .case import GenerationCase
from .decode_steps import FIRST, LAST, PROMPT, CacheMode, DecodeStep, LayerKind, layer_kinds
from .inference_layer import (
    InferenceLayer,
    cached_parts,
    layer_pass,
    logits_pass,
    norm_pass,
    reorder_pass,
)
from .instants import REORDER, GenerationInstant, generation_instants, unrolled_instants
from .model_inputs import GENERATE_CODE, goes_in, inputs_before_layers, plain, reads_whole_cache
from .stream import SCORES, PassEvents
from .token_choice import TokenChoice, choose_token, named_tensors

LAYER_CODE = code("transformers 5.17.0 modeling code, walked without a graph")
CACHE_CODE = code("transformers 5.17.0 cache_utils.py DynamicLayer.update: joined by torch.cat")
STATIC_CODE = code("transformers 5.17.0 cache_utils.py StaticLayer.lazy_initialization")
CAST_CODE = code("torch 2.11 autocast_mode.cpp cached_cast: until autocast exits")
REORDER_CODE = code("transformers 5.17.0 cache_utils.py CacheLayerMixin.reorder_cache")


def cache_entries(case: GenerationCase) -> Iterator[Entry]:
    """Entries of the caches of layers that do not run, after the prompt and in the steps."""
    source = CACHE_CODE if case.manner.room is None else STATIC_CODE
    for kind, each in zip(case.found, case.passes, strict=True):
        for when, tokens, counts in _idle_caches(case, kind, each):
            parts = cached_bytes(case, kind, tokens)
            total = sum((size for _, size in parts), EMPTY)
            if not nothing(total) and any(counts.values()):
                yield Entry(
                    f"{kind.title}: cache {when}", CACHE, total, counts, source, parts=parts
                )


def cached_bytes(
    case: GenerationCase, kind: LayerKind, tokens: Num
) -> tuple[tuple[str, Bytes], ...]:
    """What one layer of a kind caches for `tokens` of each sequence: name, bytes."""
    parts = cached_parts(case.how, kind.layer, tokens)
    return tuple((name, sized(elements, bits)) for name, elements, bits in parts)


def _idle_caches(
    case: GenerationCase, kind: LayerKind, each: dict[str, DecodeStep]
) -> Iterator[tuple[str, Num, dict[str, Num]]]:
    """Caches of a kind's layers while another layer runs: words for when, tokens of each sequence,
    and the number of layers at each instant.
    """
    titles = {PROMPT: "prompt", FIRST: "first step", LAST: "last step"}
    for name, step in each.items():
        in_pass = case.in_pass(name)
        in_forward = [i for i in in_pass if i.work != REORDER]
        in_reorder = [i for i in in_pass if i.work == REORDER]
        after: dict[str, Num] = {i.name: i.layers_before(kind) for i in in_forward}
        after |= {i.name: i.layers_after(kind) for i in in_reorder}
        yield f"behind the {titles[name]}", step.left, after
        if step.stored is not None:
            before: dict[str, Num] = {i.name: i.layers_after(kind) for i in in_forward}
            yield f"before the {titles[name]}", step.stored, before
        copied: dict[str, Num] = {i.name: i.layers_before(kind) for i in in_reorder}
        yield f"of picked beams, {titles[name]}", step.reordered, copied


def layer_passes(case: GenerationCase) -> dict[tuple[int, str, str], InferenceLayer]:
    """The pass of each kind of layer in each pass of the model, and the copy of its cache, by kind,
    pass and work.
    """
    passes: dict[tuple[int, str, str], InferenceLayer] = {}
    for instant in case.table:
        key = (instant.kind, instant.step, instant.work)
        if instant.work in ("layer", REORDER) and key not in passes:
            kind, step = case.found[instant.kind], case.step(instant)
            setting = case.at(step)
            if instant.work == "layer":
                passes[key] = layer_pass(setting, kind.layer, step, slides=kind.window is not None)
            else:
                passes[key] = reorder_pass(setting, kind.layer, step)
    return passes


def layer_entries(case: GenerationCase) -> Iterator[Entry]:
    """Entries of the layer that runs, with its own cache before and after."""
    passes = layer_passes(case)
    for instant in case.table:
        if instant.work in ("layer", REORDER):
            peak = passes[instant.kind, instant.step, instant.work].moment
            title = case.found[instant.kind].title
            if instant.work == "layer":
                yield from work_entries(f"{title}: at work", peak, instant)
            else:
                name = f"{title}: cache copied"
                yield from work_entries(name, peak, instant, REORDER_CODE, CACHE)


def cast_entries(case: GenerationCase) -> Iterator[Entry]:
    """16-bit copies of the weights of layers that have run, which autocast keeps until the model's
    forward ends.
    """
    passes = layer_passes(case) if case.how.autocast else {}
    for (index, name, _), layer in passes.items():
        kind, sizes = case.found[index], layer.script.sizes
        size = sum((sizes[number] for number in layer.casts), EMPTY)
        forward = [
            i for i in case.table if i.step == name and i.work in ("layer", "norm", "logits")
        ]
        if not nothing(size):
            yield Entry(
                name=f"{kind.title}: 16-bit weights cached by autocast",
                kind=TEMP,
                bytes=size,
                live={i.name: i.layers_before(kind) for i in forward},
                source=CAST_CODE,
            )


def work_entries(
    name: str,
    peak: PeakParts,
    instant: GenerationInstant,
    source: Source = LAYER_CODE,
    kind: str = ACT,
) -> Iterator[Entry]:
    """Entries of a peak at one instant: tensors, of `kind`, and workspace."""
    live = {instant.name: 1}
    parts = ((name, kind, peak.act), (f"{name}, kernel workspace", TEMP, peak.temp))
    for title, part_kind, size in parts:
        if not nothing(size):
            yield Entry(name=title, kind=part_kind, bytes=size, live=live, source=source)


def head_pass(case: GenerationCase, instant: GenerationInstant) -> ForwardPass:
    """The pass of the final norm, or of the logits: the last token's, in a plain forward all."""
    run, step = case.run, case.passes[0][instant.step]
    setting = case.at(step)
    if instant.work == "norm":
        return norm_pass(setting, run.arch)
    return logits_pass(setting, run.arch, setting.seq if plain(run) else step.logits)


def head_entries(case: GenerationCase) -> Iterator[Entry]:
    """Entries of the final norm, the logits, and what the next token is chosen from, to which
    generate refers until it chooses again.
    """
    titles = {"norm": "final norm", "logits": "logits"}
    for instant in case.table:
        if instant.work in titles:
            yield from work_entries(titles[instant.work], head_pass(case, instant).moment, instant)
        elif instant.work == "scores":
            peak = choose_token(case.choice, first=instant.step == PROMPT).moment
            yield from work_entries("choice of a token", peak, instant, GENERATE_CODE)
    later: dict[str, Num] = {
        i.name: 1
        for i in case.table
        if i.work == REORDER or (i.step != PROMPT and i.work != "scores")
    }
    parts = tuple((name, sized(size, bits)) for name, size, bits in named_tensors(case.choice))
    yield Entry(
        name="what the token before was chosen from",
        kind=ACT,
        bytes=sum((size for _, size in parts), EMPTY),
        live=later,
        source=GENERATE_CODE,
        parts=parts,
    )


def pass_events(case: GenerationCase) -> dict[str, PassEvents]:
    """The events of each layer and of the head in every pass, by the instant's name."""
    passes, events = layer_passes(case), {}
    for instant in (i for i in case.table if i.instant.present):
        if instant.work in ("layer", REORDER):
            layer = passes[instant.kind, instant.step, instant.work]
            embedded = instant.work == "layer" and instant.place == 0 and goes_in(case.run)
            events[instant.name] = layer_events(layer, instant.place, embedded=embedded)
        elif instant.work == "scores":
            choice = choose_token(case.choice, first=instant.step == PROMPT)
            events[instant.name] = choice_events(choice)
        else:
            block = head_pass(case, instant).script
            returns = instant.work == "logits"
            events[instant.name] = PassEvents(
                block=HEAD, script=block, forward=True, returns=returns
            )
    return events


def layer_events(layer: InferenceLayer, block: int, *, embedded: bool) -> PassEvents:
    """A layer's events; `block` is its number. `embedded`: its input is the embedding's output."""
    return PassEvents(
        block=block,
        script=layer.script,
        forward=True,
        cache_before=layer.given,
        cache_after=layer.kept,
        named=layer.named,
        casts=layer.casts,
        embedded=embedded,
    )


def choice_events(choice: ForwardPass) -> PassEvents:
    """The events of choosing a token; tensors to which variables still refer are its cache."""
    return PassEvents(
        block=SCORES,
        script=choice.script,
        forward=True,
        cache_before=choice.given,
        cache_after=(choice.script.exit, *choice.kept),
    )


def build_case(run: Run, how: BlockSetting, mode: CacheMode, choice: TokenChoice) -> GenerationCase:
    """The generation of `run.batch` sequences, each beam and each answer one; `run.seq` is the
    prompt's tokens.
    """
    found = layer_kinds(run.arch, windows=not how.quirks.buffer_windows)
    mode = replace(mode, whole=reads_whole_cache(run, found))
    walk = decode_steps.replayed_passes if run.unrolled else decode_steps.rolled_passes
    passes = [walk(kind, run.seq, run.generated, mode) for kind in found]
    beams = mode.beams > 1
    if run.unrolled:
        table = unrolled_instants(found, int(run.generated), beams=beams)
    else:
        prompts = [each[decode_steps.PROMPT] for each in passes]
        first = inputs_before_layers(how, found, prompts)
        table = generation_instants(found, run.generated, first, beams=beams)
    return GenerationCase(
        run=run, how=how, manner=mode, found=found, passes=passes, table=table, choice=choice
    )
