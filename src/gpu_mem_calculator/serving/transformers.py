"""transformers' own inference: `generate`, or one forward pass, on one GPU.

Legend: b sequences, s tokens of the prompt, n new tokens. Line numbers refer to transformers
5.17.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from msgspec.structs import replace

from ..ledger.ledger import ACT, PARAM, RUNTIME, TEMP, Entry, Instant, Ledger
from ..ledger.num import Num, nothing
from ..ledger.source import ARITHMETIC, Source, code
from ..ledger.units import MIB
from ..memory.engine import Engine
from ..memory.generation import FIRST, LAST, PROMPT, Beat, Kind, Step, beats, kinds, slides, steps
from ..memory.huggingface.inference import (
    NAMES,
    Passed,
    cached_parts,
    layer_pass,
    logits_pass,
    norm_pass,
)
from ..memory.huggingface.ops import Setting
from ..memory.made_once import GENERATE_CODE, made_once
from ..memory.moment import Moment
from ..memory.run import Run
from ..memory.runtime import WORKSPACES, cublas_bytes
from ..memory.timeline import STARTUP
from ..model.adapters import linears
from ..model.arch import Arch
from ..replay.allocator import replay
from ..replay.settings import Settings
from ..replay.stream import Stream

BITS = {"fp32": 32, "bf16_pure": 16, "fp16_pure": 16}
LAYER_CODE = code("transformers 5.17.0 modeling code, walked without a graph")
CACHE_CODE = code("transformers 5.17.0 cache_utils.py DynamicLayer.update: joined by torch.cat")
NO_CACHE = ("mpt",)
ALLOCATOR_CODE = code(
    "torch 2.11 c10/cuda/CUDACachingAllocator.cpp, replayed for the weights in their order"
)


def problems(run: Run) -> Iterator[str]:
    """What generate cannot do with a model, and what is not modelled."""
    if run.arch.family in NO_CACHE:
        yield (f"model: {run.arch.family} keeps no cache in transformers 5.17.0, and its inference "
               "is not modelled; measure it")  # fmt: skip
    mixers = [layer.mixer for layer, _, _ in run.arch.runs]
    if run.attention == "sdpa" and not all(getattr(mixer, "sdpa", True) for mixer in mixers):
        yield (f"inference.attention='sdpa' does not exist for {run.arch.family} in transformers; "
               "use 'eager'")  # fmt: skip
    if run.attention == "flash_attention_2" and run.precision == "fp32":
        yield "inference.attention='flash_attention_2' has no fp32 kernel; use 'sdpa'"


def ledger(run: Run) -> Ledger:
    """The model, its cache, and the layer or head at work."""
    how = setting(run)
    found = kinds(run.arch, windows="windows" not in how.names)
    table = beats(found, run.new_tokens)
    passes = [steps(kind, run.seq, run.new_tokens) for kind in found]
    load = Instant(name="startup", phase=STARTUP, title="start-up: model on the GPU")
    entries = [
        *_weights(run, how, table), *_caches(how, found, passes, table),
        *_layers(how, found, passes, table), *_head(run, how, table),
        *made_once(run, how, found, passes, table), *_workspaces(run, table),
    ]  # fmt: skip
    return Ledger((load, *(b.instant for b in table)), tuple(entries))


def setting(run: Run) -> Setting:
    """How the model runs: in the dtype of its weights, with nothing kept for backward."""
    bits = BITS[run.precision]
    return Setting(
        batch=run.batch, seq=run.seq, hidden=run.arch.hidden, bits=bits, matmul_bits=bits,
        weight_bits=bits, half=run.precision.startswith("fp16"), attention=run.attention,
        cudnn=run.compute_capability in ("9.0", "10.0"), training=False,
        names=NAMES.get(run.arch.family, frozenset()),
    )  # fmt: skip


def _at(how: Setting, step: Step) -> Setting:
    """The setting of one pass."""
    return replace(how, seq=step.seq, past=step.past, decoding=step.stored is not None)


def _live(table: tuple[Beat, ...], *, startup: bool = False) -> dict[str, Num]:
    return {**({"startup": 1} if startup else {}), **{b.name: 1 for b in table}}


def _weights(run: Run, how: Setting, table: tuple[Beat, ...]) -> Iterator[Entry]:
    """Parameters, buffers, and what the allocator counts beyond them.

    A tied head is made like any other, then tied: it is there while the model is loaded only.
    """
    arch, size = run.arch, how.weight_bits // 8
    always = _live(table, startup=True)
    yield Entry(name="parameters", kind=PARAM, bytes=run.scaled(arch.num_parameters) * size,
                live=always, source=ARITHMETIC)  # fmt: skip
    buffers = sum(-(-b.num_bytes // 512) * 512 for b in arch.buffers)
    yield Entry(name="buffers", kind=PARAM, bytes=buffers, live=always, source=ARITHMETIC)
    if arch.tied:
        yield Entry(
            name="head before it is tied to the embedding", kind=PARAM,
            bytes=run.scaled(arch.vocab * arch.hidden) * size, live={"startup": 1},
            source=code("transformers 5.17.0 modeling_utils.py: lm_head is made, then tied"),
        )  # fmt: skip
    if not run.expandable_segments:
        rest, more = _beyond(_sizes(arch, size), arch.tied)
        yield Entry(name="weights: blocks that are not split", kind=RUNTIME,
                    bytes=run.scaled(rest), live=always, source=ALLOCATOR_CODE)  # fmt: skip
        yield Entry(name="head: blocks that are not split", kind=RUNTIME,
                    bytes=run.scaled(more - rest), live={"startup": 1},
                    source=ALLOCATOR_CODE)  # fmt: skip


def _sizes(arch: Arch, size: int) -> tuple[int, ...]:
    """Bytes of each weight in the order of the model, a tied head's at the end."""
    found = [int(weight.numel) * size for weight in arch.weights()]
    if arch.tied:
        found.append(int(arch.vocab) * int(arch.hidden) * size)
    return tuple(found)


@lru_cache(maxsize=64)
def _beyond(sizes: tuple[int, ...], tied: bool) -> tuple[int, int]:
    """Bytes beyond the weights' own that torch counts when they are there, and at the highest."""
    events = [*range(len(sizes)), *([~(len(sizes) - 1)] if tied else [])]
    stream = Stream(sizes=list(sizes), events=events, marks=[(len(events), "load")])
    phase = replay(stream, Settings()).phases["load"]
    there = sum(sizes[:-1] if tied else sizes)
    return phase.start_next_bytes - there, phase.peak_bytes - sum(sizes)


def _caches(
    how: Setting, found: tuple[Kind, ...], passes: list[dict[str, Step]], table: tuple[Beat, ...]
) -> Iterator[Entry]:
    """Keys and values of the layers that are not at work: behind the prompt, and in the steps."""
    for kind, each in zip(found, passes, strict=True):
        last, first = each[LAST], each[FIRST]
        rows = (
            ("of the prompt", each[PROMPT].seq, {PROMPT: Beat.done, FIRST: Beat.waiting}),
            ("behind the first step", first.past + 1, {FIRST: Beat.done}),
            ("before the last step", last.stored, {LAST: Beat.waiting}),
            ("behind the last step", last.past + 1, {LAST: Beat.done}),
        )
        for when, tokens, counts in rows:
            parts = tuple(
                (name, elements * bits // 8)
                for name, elements, bits in cached_parts(how, kind.layer, tokens)
            )
            live = {b.name: counts[b.step](b, kind) for b in table if b.step in counts}
            total: Num = 0
            for _, size in parts:
                total = total + size
            if not nothing(total) and any(live.values()):
                yield Entry(name=f"{kind.title}: cache {when}", kind=ACT, bytes=total, live=live,
                            source=CACHE_CODE, parts=parts)  # fmt: skip


def _layers(
    how: Setting, found: tuple[Kind, ...], passes: list[dict[str, Step]], table: tuple[Beat, ...]
) -> Iterator[Entry]:
    """The layer at work, its own cache before and after included."""
    for beat in table:
        if beat.work == "layer":
            kind, step = found[beat.kind], passes[beat.kind][beat.step]
            moment = _passed(_at(how, step), kind, step).moment
            yield from _working(f"{kind.title}: at work", moment, beat)


def _passed(how: Setting, kind: Kind, step: Step) -> Passed:
    return layer_pass(how, kind.layer, masked=slides(step, kind.window), stored=step.stored,
                      slides=kind.window is not None)  # fmt: skip


def _working(name: str, moment: Moment, beat: Beat, source: Source = LAYER_CODE) -> Iterator[Entry]:
    parts = ((name, ACT, moment.act), (f"{name}, kernel workspace", TEMP, moment.temp))
    for title, kind, size in parts:
        if not nothing(size):
            yield Entry(name=title, kind=kind, bytes=size, live={beat.name: 1}, source=source)


def _head(run: Run, how: Setting, table: tuple[Beat, ...]) -> Iterator[Entry]:
    """The final norm, the logits, and their fp32 copy that the next token is chosen from.

    generate names that copy until the next step has its own (generation/utils.py:3042).
    """
    whole = type(run.new_tokens) is int and run.new_tokens == 0
    logits = run.batch * run.arch.vocab
    for beat in table:
        here = how if beat.step == PROMPT else replace(how, seq=1)
        if beat.work == "norm":
            yield from _working("final norm", norm_pass(here, run.arch), beat)
        elif beat.work == "logits":
            moment = logits_pass(here, run.arch, here.seq if whole else 1)
            yield from _working("logits", moment, beat)
        elif beat.work == "scores":
            for name, bits in (("logits of the last token", how.bits), ("their fp32 copy", 32)):
                yield Entry(name=name, kind=ACT, bytes=logits * bits // 8, live={beat.name: 1},
                            source=GENERATE_CODE)  # fmt: skip
    later = {b.name: 1 for b in table if b.step != PROMPT}
    yield Entry(name="logits that the token before was chosen from", kind=ACT, bytes=logits * 4,
                live=later, source=GENERATE_CODE)  # fmt: skip


def _workspaces(run: Run, table: tuple[Beat, ...]) -> Iterator[Entry]:
    """cuBLAS has one workspace for the one thread that runs; cuBLASLt, which adds biases, another
    of 1 MiB. Both stay.
    """
    source = code("torch 2.11 aten/src/ATen/cuda/CublasHandlePool.cpp getChosenWorkspaceSize")
    biased = any(one.bias for layer, _, _ in run.arch.runs for one in linears(layer))
    for name, size in (
        (WORKSPACES, cublas_bytes(run.compute_capability)), ("cuBLASLt workspace", biased * MIB),
    ):  # fmt: skip
        if size:
            yield Entry(name=name, kind=RUNTIME, bytes=size, live=_live(table), source=source)


ENGINE = Engine(
    name="transformers",
    title="transformers",
    streams=False,
    options={
        "engine_version": "5.17.0", "batch_size": 1, "prompt_len": 1024, "new_tokens": 8,
        "max_seq_len": None, "dtype": "bf16", "attention": "sdpa", "quantization": "none",
        "kv_cache_dtype": "auto", "tensor_parallel_size": 1, "pipeline_parallel_size": 1,
    },
    problems=problems,
    ledger=ledger,
)  # fmt: skip
