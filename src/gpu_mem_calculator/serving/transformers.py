"""transformers' own inference: `generate`, or one forward pass, on one GPU.

Legend: b sequences, s tokens of the prompt, n new tokens. Line numbers refer to transformers
5.17.0.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..ledger.ledger import ACT, PARAM, RUNTIME, TEMP, Entry, Instant, Ledger
from ..ledger.num import Num, nothing
from ..ledger.source import ARITHMETIC, Source, code
from ..ledger.units import MIB
from ..memory.engine import Engine
from ..memory.generated import SCORES, GenerationWriter, Turn, scores
from ..memory.generation import (
    FIRST,
    LAST,
    MASKS,
    PROMPT,
    Beat,
    Kind,
    Step,
    beats,
    every_beat,
    every_step,
    kinds,
    slides,
    steps,
)
from ..memory.huggingface.inference import (
    NAMES,
    Turned,
    cached_parts,
    layer_pass,
    logits_pass,
    norm_pass,
)
from ..memory.huggingface.setting import Setting
from ..memory.made_once import GENERATE_CODE, first_beats, goes_in, made_once, plain, tables
from ..memory.moment import Moment
from ..memory.passing import Pass
from ..memory.play import HEAD
from ..memory.run import Run
from ..memory.runtime import WORKSPACES, cublas_bytes
from ..memory.timeline import STARTUP
from ..model.adapters import linears

BITS = {"fp32": 32, "bf16_pure": 16, "fp16_pure": 16}
LAYER_CODE = code("transformers 5.17.0 modeling code, walked without a graph")
CACHE_CODE = code("transformers 5.17.0 cache_utils.py DynamicLayer.update: joined by torch.cat")
NO_CACHE = ("mpt",)
Walked = dict[tuple[int, str], Turned]  # by kind of layer and pass


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
    walked = every_step if run.unrolled else steps
    passes = [walked(kind, run.seq, run.new_tokens) for kind in found]
    if run.unrolled:
        table = every_beat(found, run.new_tokens)
    else:
        first = first_beats(run, how, found, [each[PROMPT] for each in passes])
        table = beats(found, run.new_tokens, first)
    load = Instant(name="startup", phase=STARTUP, title="start-up: model on the GPU")
    instants = (load, *(b.instant for b in table))
    shared = (
        *_weights(run, how, table), *made_once(run, how, found, passes, table),
        *_workspaces(run, table), *tables(run, how, found, passes, table),
    )  # fmt: skip
    done = _walked(how, found, passes, table)
    if run.unrolled:
        turns = _turns(run, how, done, table)
        return Ledger(instants, shared, plays=turns, writer=GenerationWriter)
    entries = (*shared, *_caches(how, found, passes, table), *_layers(found, done, table),
               *_head(run, how, table))  # fmt: skip
    return Ledger(instants, entries)


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
    """Parameters and buffers.

    A tied head is made like any other, then tied: it is there while the model is loaded only.
    """
    arch, size = run.arch, how.weight_bits // 8
    always = _live(table, startup=True)
    yield Entry(name="parameters", kind=PARAM, bytes=run.scaled(arch.num_parameters) * size,
                tensors=lambda: [int(weight.numel) * size for weight in arch.weights()],
                live=always, source=ARITHMETIC)  # fmt: skip
    buffers = [-(-b.num_bytes // 512) * 512 for b in arch.buffers]
    yield Entry(name="buffers", kind=PARAM, bytes=sum(buffers), tensors=lambda: buffers,
                live=always, source=ARITHMETIC)  # fmt: skip
    if arch.tied:
        yield Entry(
            name="head before it is tied to the embedding", kind=PARAM,
            bytes=run.scaled(arch.vocab * arch.hidden) * size, live={"startup": 1},
            source=code("transformers 5.17.0 modeling_utils.py: lm_head is made, then tied"),
        )  # fmt: skip


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


def _walked(
    how: Setting, found: tuple[Kind, ...], passes: list[dict[str, Step]], table: tuple[Beat, ...]
) -> Walked:
    """Each kind of layer in each pass."""
    done: Walked = {}
    for beat in table:
        key = (beat.kind, beat.step)
        if beat.work == "layer" and key not in done:
            kind, step = found[beat.kind], passes[beat.kind][beat.step]
            done[key] = layer_pass(
                _at(how, step), kind.layer, masked=slides(step, kind.window), stored=step.stored,
                slides=kind.window is not None,
            )  # fmt: skip
    return done


def _layers(found: tuple[Kind, ...], done: Walked, table: tuple[Beat, ...]) -> Iterator[Entry]:
    """The layer at work, its own cache before and after included."""
    for beat in table:
        if beat.work == "layer":
            moment = done[beat.kind, beat.step].moment
            yield from _working(f"{found[beat.kind].title}: at work", moment, beat)


def _turns(run: Run, how: Setting, done: Walked, table: tuple[Beat, ...]) -> dict[str, Turn]:
    """What each layer and the head make and free, pass after pass."""
    made = {}
    for beat in (b for b in table if b.instant.present):
        if beat.work == "layer":
            turn = done[beat.kind, beat.step]
            made[beat.name] = Turn(
                block=beat.place, script=turn.script, forward=True, given=turn.given,
                kept=turn.kept, named=turn.named, embedded=beat.place == 0 and goes_in(run),
            )  # fmt: skip
        elif beat.work == "scores":
            wide = run.batch * run.arch.vocab * 4
            script = scores(wide * how.bits // 32, wide)
            made[beat.name] = Turn(block=SCORES, script=script, forward=True)
        else:
            script = _behind(run, how, beat).script
            made[beat.name] = Turn(block=HEAD, script=script, forward=True)
    return made


def _working(name: str, moment: Moment, beat: Beat, source: Source = LAYER_CODE) -> Iterator[Entry]:
    parts = ((name, ACT, moment.act), (f"{name}, kernel workspace", TEMP, moment.temp))
    for title, kind, size in parts:
        if not nothing(size):
            yield Entry(name=title, kind=kind, bytes=size, live={beat.name: 1}, source=source)


def _behind(run: Run, how: Setting, beat: Beat) -> Pass:
    """The final norm, or the logits: of the last token, but in a plain forward of all."""
    here = how if beat.step == PROMPT else replace(how, seq=1)
    if beat.work == "norm":
        return norm_pass(here, run.arch)
    return logits_pass(here, run.arch, here.seq if plain(run) else 1)


def _head(run: Run, how: Setting, table: tuple[Beat, ...]) -> Iterator[Entry]:
    """The final norm, the logits, and their fp32 copy that the next token is chosen from.

    generate names that copy until the next step has its own (generation/utils.py:3042).
    """
    logits = run.batch * run.arch.vocab
    for beat in table:
        if beat.work in ("norm", "logits"):
            title = "final norm" if beat.work == "norm" else "logits"
            yield from _working(title, _behind(run, how, beat).moment, beat)
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
            live: dict[str, Num] = {b.name: 1 for b in table if b.work != MASKS}
            yield Entry(name=name, kind=RUNTIME, bytes=size, live=live, source=source)


ENGINE = Engine(
    name="transformers",
    title="transformers",
    options={
        "engine_version": "5.17.0", "batch_size": 1, "prompt_len": 1024, "new_tokens": 8,
        "max_seq_len": None, "dtype": "bf16", "attention": None, "quantization": "none",
        "kv_cache_dtype": "auto", "tensor_parallel_size": 1, "pipeline_parallel_size": 1,
    },
    fixed=("engine_version", "quantization", "kv_cache_dtype", "tensor_parallel_size",
           "pipeline_parallel_size"),
    problems=problems,
    ledger=ledger,
)  # fmt: skip
