"""What each pass of a generation makes once for the whole model: ids, masks, tables, the embedding.

Sizes are in `pytorch/modelling/huggingface/inputs.py`; here is when each tensor is alive.
`run.batch` counts every sequence that the model sees: each beam, and each of several answers to one
prompt, is a sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...ledger.ledger import ACT, EMBEDDED, Entry
from ...ledger.num import EMPTY, Bytes, Num, holds, sized
from ...ledger.source import code
from ...models.arch.blocks import Mixer
from ...pytorch.autograd.events import BlockEvents
from ...pytorch.autograd.peak import PeakTracker
from ...pytorch.modelling.huggingface.inputs import (
    EMBEDDING_CODE,
    MASK_CODE,
    TABLE_CODE,
    always_masked,
    embedding_bytes,
    mask_bytes,
    mask_events,
    needs_mask,
    rotary_width,
    runs_eager,
    scaled_embedding_events,
    table_bits,
    table_bytes,
    table_events,
)
from ...pytorch.modelling.huggingface.setting import BlockSetting
from ...run.run import Run
from .case import GenerationCase
from .decode_steps import CacheMode, DecodeStep, LayerKinds
from .instants import MASKS, REORDER, TABLES, GenerationInstant, GenerationInstants

BEAM_CODE = code("transformers 5.17.0 generation/utils.py _beam_search")
GENERATE_CODE = code("transformers 5.17.0 generation/utils.py _sample")
IN_FORWARD = ("layer", "norm")  # while the model's forward refers to what it has made
AFTER_FORWARD = ("scores", REORDER)


def plain(run: Run) -> bool:
    """Whether the run is one forward pass that chooses no token."""
    return type(run.new_tokens) is int and run.new_tokens == 0


def inputs_before_layers(
    setting: BlockSetting, kinds: LayerKinds, prompt: list[DecodeStep]
) -> list[str]:
    """What the prompt's pass makes before its layers run: MASKS, TABLES, both or none."""
    names = [MASKS] if _mask_steps(setting, kinds, prompt) else []
    return [*names, TABLES] if rotary_width(_mixers(kinds), latent=True) else names


def input_entries(case: GenerationCase) -> Iterator[Entry]:
    """Entries of the ids, the embedding's output and the masks of each pass."""
    if case.manner.beams > 1:
        yield _beam_entry(case.run, case.table)
    for name, step in case.passes[0].items():
        in_pass = case.in_pass(name)
        if in_pass:
            yield from _id_entries(case.run, step, in_pass, case.manner)
    yield from pass_input_entries(case)


def pass_input_entries(case: GenerationCase) -> Iterator[Entry]:
    """Entries of the embedding's output and the masks of each pass."""
    for name, step in case.passes[0].items():
        in_pass = case.in_pass(name)
        if in_pass:
            yield _embedding_entry(case, step.seq, in_pass)
            yield from _mask_entries(case, [each[name] for each in case.passes], in_pass)


def _id_entries(
    run: Run, step: DecodeStep, in_pass: list[GenerationInstant], mode: CacheMode
) -> Iterator[Entry]:
    """The prompt; a mask, positions and ids of all tokens, those that were chosen included.

    generate's own frame refers to those of the prompt until it returns, and to the ids of every
    sequence where there are several to a prompt. After a pass the mask and the positions are a
    token longer.
    """
    token = sized(run.batch, 64)
    prompt = token * run.seq
    arguments = [prompt // mode.copies, *([prompt] if mode.copies > 1 else [])]
    later, longer = holds(step.number > 0), prompt + token * step.number
    during = [*arguments, prompt * later, prompt * later, longer, longer, longer]
    after = [*arguments, prompt, prompt, longer * later, longer + token, longer + token]
    if plain(run):
        during, after = arguments, []
    yield _id_entry(during, [i for i in in_pass if i.work not in AFTER_FORWARD])
    yield _id_entry(after, [i for i in in_pass if i.work in AFTER_FORWARD])


def _id_entry(sizes: list[Bytes], instants: list[GenerationInstant]) -> Entry:
    return Entry(
        name="token ids, mask and positions",
        kind=ACT,
        bytes=sum(sizes, EMPTY),
        live={i.name: 1 for i in instants},
        tensors=lambda: sizes,
        source=GENERATE_CODE,
    )


def _beam_entry(run: Run, instants: GenerationInstants) -> Entry:
    """The tokens of running and of finished beams, and which beam each came from."""
    tokens = sized(run.batch * (run.seq + run.generated), 64)
    origins = sized(run.batch * run.generated, 32)
    return Entry(
        name="beams",
        kind=ACT,
        bytes=2 * tokens + 2 * origins,
        live={i.name: 1 for i in instants},
        tensors=lambda: (tokens, tokens, origins, origins),
        source=BEAM_CODE,
    )


def goes_in(run: Run) -> bool:
    """Whether the embedding's output itself is the first layer's input: nothing is added to it, no
    norm follows, and it is not cast.
    """
    arch = run.arch
    alone = len(arch.embedding) == 1 and arch.embedding_norm is None
    return alone and not arch.layers[0].fp32_residual


def _embedding_entry(case: GenerationCase, tokens: Num, in_pass: list[GenerationInstant]) -> Entry:
    """The embedding's output, and learnt positions, to which the model's forward refers.

    Where it is the first layer's input, that layer counts it; unrolled it is the same tensor.
    """
    run, setting = case.run, case.how
    apart = run.unrolled or not goes_in(run)
    live = {
        i.name: 1
        for i in in_pass
        if i.work in (*IN_FORWARD, MASKS, TABLES) and (apart or i.work != "layer" or i.place > 0)
    }
    position_rows = run.batch if setting.quirks.positions_per_sequence or not plain(run) else 1
    sizes = embedding_bytes(setting, tokens, len(run.arch.embedding), position_rows=position_rows)
    return Entry(
        name="embedding: output",
        kind=ACT,
        bytes=sum(sizes, EMPTY),
        live=live,
        tensors=lambda: sizes,
        script=scaled_embedding_events(sizes[0]) if setting.quirks.scaled_embedding else None,
        role=EMBEDDED,
        source=EMBEDDING_CODE,
    )


def _mixers(kinds: LayerKinds) -> Iterator[Mixer | None]:
    return (kind.layer.mixer for kind in kinds)


def _mask_steps(
    setting: BlockSetting, kinds: LayerKinds, steps: list[DecodeStep]
) -> dict[int | None, DecodeStep]:
    """The masks of a pass, by window: one for each kind of window, with the pass of its layers."""
    masks: dict[int | None, DecodeStep] = {}
    eager = runs_eager(setting.attention, _mixers(kinds))
    for kind, step in zip(kinds, steps, strict=True):
        mixer = kind.layer.mixer
        if hasattr(mixer, "output") and needs_mask(setting, mixer, eager=eager, slides=step.masked):
            masks.setdefault(kind.window, step)
    if (setting.quirks.unused_mask and setting.attention != "flash_attention_2") or (
        setting.quirks.unused_eager_mask and eager
    ):
        masks.setdefault(0 if None in masks else None, steps[0])
    return masks


def reads_whole_cache(run: Run, kinds: LayerKinds) -> bool:
    """Whether a prompt reads all of a static cache: eager attention does, and so do families that
    always have a mask.
    """
    eager = runs_eager(run.attention, _mixers(kinds))
    return eager or any(map(always_masked, _mixers(kinds)))


def _mask_entries(
    case: GenerationCase, steps: list[DecodeStep], in_pass: list[GenerationInstant]
) -> Iterator[Entry]:
    """The masks of a pass. With a static cache generate itself makes them and refers to them."""
    run, setting, kinds = case.run, case.how, case.found
    static = any(step.capacity is not None for step in steps)
    works = (*IN_FORWARD, TABLES, *(("logits",) if static else ()))
    live: dict[str, Num] = {i.name: 1 for i in in_pass if i.work in works}
    eager = runs_eager(setting.attention, _mixers(kinds))
    all_events = []
    for window, step in _mask_steps(setting, kinds, steps).items():
        area = step.seq * (step.seq + step.past)
        unpadded = plain(run) or (static and not step.masked and not eager)  # made by the model
        size = mask_bytes(setting, area, 1 if unpadded else run.batch, eager=eager)
        rows, eager_size = None if unpadded else run.batch, size if eager else None
        events = mask_events(area, rows, eager_size, slides=window is not None)
        all_events.append(events)
        yield Entry(
            name="attention mask" if window is None else "attention mask of the window",
            kind=ACT,
            bytes=size,
            live=live,
            script=events,
            source=MASK_CODE,
        )
    yield from _peak_entry("attention masks being computed", all_events, in_pass, MASKS)


def rotary_entries(case: GenerationCase) -> Iterator[Entry]:
    """Entries of the rotary tables of each pass: one pair for all layers, or for each window."""
    run, setting, kinds = case.run, case.how, case.found
    width = rotary_width(_mixers(kinds), latent=True)
    copies = len({kind.window for kind in kinds}) if setting.quirks.rotary_tables_per_kind else 1
    for name, step in case.passes[0].items() if width else ():
        in_pass = case.in_pass(name)
        if in_pass:
            positions = step.seq if plain(run) else run.batch * step.seq
            events = table_events(positions * width, table_bits(setting))
            for _ in range(copies):
                yield Entry(
                    name="rotary tables",
                    kind=ACT,
                    bytes=table_bytes(setting, positions, width),
                    script=events,
                    live={i.name: 1 for i in in_pass if i.work in IN_FORWARD},
                    source=TABLE_CODE,
                )
            yield from _peak_entry(
                "rotary tables being computed", [events] * copies, in_pass, TABLES
            )


def _peak_entry(
    name: str, all_events: Iterable[BlockEvents], in_pass: list[GenerationInstant], work: str
) -> Iterator[Entry]:
    """The most bytes alive while tensors are made one after another, in the prompt's pass."""
    live: dict[str, Num] = {i.name: 1 for i in in_pass if i.work == work}
    peak = PeakTracker()
    alive = EMPTY
    for events in all_events if live else ():
        for event in events.forward:
            size = events.sizes[event if event >= 0 else ~event]
            alive = alive + size if event >= 0 else alive - size
            peak.see(alive, EMPTY, EMPTY)
    if live:
        source = MASK_CODE if work == MASKS else TABLE_CODE
        yield Entry(name=name, kind=ACT, bytes=peak.total, live=live, source=source)
