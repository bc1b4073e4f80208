"""What transformers makes once in a pass of inference and the whole model reads.

generate gives each sequence positions and a mask of its own (generation/utils.py:880 of
transformers 5.17.0), so that rotary tables and masks are made for the batch. `run.batch` counts
every sequence that the model sees: beams, and several answers to one prompt, are sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..autograd.events import BlockEvents, EventRecorder
from ..autograd.peak import PeakTracker
from ..ledger.ledger import ACT, EMBEDDED, Entry
from ..ledger.num import Num, holds
from ..ledger.source import code
from ..modelling.huggingface.setting import BlockSetting
from ..run.run import Run
from .decode_steps import CacheMode, DecodeStep, LayerKind
from .instants import MASKS, REORDER, TABLES, GenerationInstant

BEAM_CODE = code("transformers 5.17.0 generation/utils.py _beam_search")
GENERATE_CODE = code("transformers 5.17.0 generation/utils.py _sample")
MASK_CODE = code("transformers 5.17.0 masking_utils.py:373 sdpa_mask, :539 eager_mask")
TABLE_CODE = code("transformers 5.17.0 modeling_llama.py: cos and sin, made once a forward")
INSIDE = ("layer", "norm")  # where the model's forward names what it has made
BEHIND = ("scores", REORDER)  # what follows the model's forward
Windows = dict[int | None, DecodeStep]


def plain(run: Run) -> bool:
    """One forward pass, and no token chosen."""
    return type(run.new_tokens) is int and run.new_tokens == 0


def first_beats(
    run: Run, how: BlockSetting, found: tuple[LayerKind, ...], prompt: list[DecodeStep]
) -> list[str]:
    """What the prompt's pass makes before its layers run."""
    names = [MASKS] if _windows(run, how, found, prompt) else []
    return [*names, TABLES] if _rotary(found) else names


def made_once(
    run: Run, how: BlockSetting, found: tuple[LayerKind, ...], passes: list[dict[str, DecodeStep]],
    table: tuple[GenerationInstant, ...], manner: CacheMode,
) -> Iterator[Entry]:  # fmt: skip
    """Ids, the embedding's output and masks of each pass."""
    if manner.beams > 1:
        yield _beams(run, table)
    for name, step in passes[0].items():
        here = [b for b in table if b.step == name]
        if here:
            yield from _ids(run, step, here, manner)
    yield from inputs(run, how, found, passes, table)


def inputs(
    run: Run, how: BlockSetting, found: tuple[LayerKind, ...], passes: list[dict[str, DecodeStep]],
    table: tuple[GenerationInstant, ...],
) -> Iterator[Entry]:  # fmt: skip
    """The embedding's output and the masks of each pass."""
    for name, step in passes[0].items():
        here = [b for b in table if b.step == name]
        if here:
            yield _embedded(run, how, step.seq, here)
            yield from _masks(run, how, found, [each[name] for each in passes], here)


def _ids(
    run: Run, step: DecodeStep, here: list[GenerationInstant], manner: CacheMode
) -> Iterator[Entry]:
    """The prompt; a mask, positions and ids of all tokens, those that were chosen included.

    generate's own frame names those of the prompt to its end, and the ids of every sequence where
    there are several to a prompt. Behind a pass the mask and the positions are a token longer.
    """
    each = 8 * run.batch
    prompt = each * run.seq
    given = [prompt // manner.copies, *([prompt] if manner.copies > 1 else [])]
    later, longer = holds(step.number > 0), prompt + each * step.number
    inside = [*given, prompt * later, prompt * later, longer, longer, longer]
    behind = [*given, prompt, prompt, longer * later, longer + each, longer + each]
    if plain(run):
        inside, behind = given, []
    yield _tokens(inside, [b for b in here if b.work not in BEHIND])
    yield _tokens(behind, [b for b in here if b.work in BEHIND])


def _tokens(sizes: list[Num], here: list[GenerationInstant]) -> Entry:
    total: Num = 0
    for size in sizes:
        total = total + size
    return Entry(name="token ids, mask and positions", kind=ACT, bytes=total,
                 live={b.name: 1 for b in here}, tensors=lambda: sizes,
                 source=GENERATE_CODE)  # fmt: skip


def _beams(run: Run, table: tuple[GenerationInstant, ...]) -> Entry:
    """The tokens of running and of finished beams, and which beam each came from."""
    tokens = 8 * run.batch * (run.seq + run.new_tokens)
    origins = 4 * run.batch * run.new_tokens
    return Entry(name="beams", kind=ACT, bytes=2 * tokens + 2 * origins,
                 live={b.name: 1 for b in table},
                 tensors=lambda: (tokens, tokens, origins, origins), source=BEAM_CODE)  # fmt: skip


def goes_in(run: Run) -> bool:
    """Whether the embedding's output itself is the first layer's input."""
    arch = run.arch
    alone = len(arch.embedding) == 1 and arch.embedding_norm is None
    return alone and not arch.layers[0].fp32_residual


def _embedded(run: Run, how: BlockSetting, tokens: Num, here: list[GenerationInstant]) -> Entry:
    """The embedding's output, and learnt positions, which the model's forward names.

    A layer that it goes into has it as its input; unrolled it is the same tensor.
    """
    apart = run.unrolled or not goes_in(run)
    live = {b.name: 1 for b in here if b.work in (*INSIDE, MASKS, TABLES)
            and (apart or b.work != "layer" or b.place > 0)}  # fmt: skip
    rows = run.batch if how.quirks.positions_per_sequence or not plain(run) else 1
    each = tokens * how.hidden * how.bits // 8
    tables = (run.batch * each, rows * each)[: len(run.arch.embedding)]
    script = scaled_script(tables[0]) if how.quirks.scaled_embedding else None
    return Entry(
        name="embedding: output", kind=ACT, bytes=sum(tables), live=live, tensors=lambda: tables,
        script=script, role=EMBEDDED,
        source=code("transformers 5.17.0 modeling_llama.py: inputs_embeds in LlamaModel.forward"),
    )  # fmt: skip


def scaled_script(size: Num) -> BlockEvents:
    """An embedding's output that is multiplied by a number (modeling_gemma2.py:349)."""
    reel = EventRecorder()
    bare, scaled = reel.make(size), reel.make(size)
    reel.free(bare)
    return BlockEvents(sizes=tuple(reel.sizes), entry=-1, exit=-1, forward=tuple(reel.events),
                  left=(scaled,))  # fmt: skip


def _windows(
    run: Run, how: BlockSetting, found: tuple[LayerKind, ...], passes: list[DecodeStep]
) -> Windows:
    """The masks that the model makes for its layers, one for each kind of window.

    Eager attention always has one (masking_utils.py:539), SDPA where a window slides or the family
    asks for it (:373).
    """
    seen: Windows = {}
    eager = _eager(run, found)
    for kind, step in zip(found, passes, strict=True):
        if hasattr(kind.layer.mixer, "output") and (
            eager or _asked(kind) or (run.attention == "sdpa" and step.masked)
        ):
            seen.setdefault(kind.window, step)
    if (how.quirks.unused_mask and run.attention != "flash_attention_2") or (
        how.quirks.unused_eager_mask and eager
    ):
        seen.setdefault(0 if None in seen else None, passes[0])
    return seen


def reads_all(run: Run, found: tuple[LayerKind, ...]) -> bool:
    """Whether a prompt reads all of a static cache: eager attention, and families that have masks
    whatever the attention.
    """
    return _eager(run, found) or any(map(_asked, found))


def _asked(kind: LayerKind) -> bool:
    return getattr(kind.layer.mixer, "always_masked", False)


def _eager(run: Run, found: tuple[LayerKind, ...]) -> bool:
    mixers = (kind.layer.mixer for kind in found)
    return run.attention == "eager" or not all(getattr(m, "sdpa", True) for m in mixers)


def _masks(
    run: Run,
    how: BlockSetting,
    found: tuple[LayerKind, ...],
    passes: list[DecodeStep],
    here: list[GenerationInstant],
) -> Iterator[Entry]:
    """Masks: in the activations' dtype for eager attention, boolean ones for SDPA."""
    static = any(step.room is not None for step in passes)  # then generate makes and names them
    inside = (*INSIDE, TABLES, *(("logits",) if static else ()))
    live: dict[str, Num] = {b.name: 1 for b in here if b.work in inside}
    made = []
    for window, step in _windows(run, how, found, passes).items():
        area = step.seq * (step.seq + step.past)
        wide = run.batch * area * how.bits // 8 if _eager(run, found) else None
        unpadded = plain(run) or (static and not step.masked and wide is None)  # the model's own
        script = mask_script(area, None if unpadded else run.batch * area, wide,
                             slides=window is not None)  # fmt: skip
        made.append(script)
        yield Entry(
            name="attention mask" if window is None else "attention mask of the window", kind=ACT,
            bytes=script.sizes[script.left[0]], live=live, script=script, source=MASK_CODE,
        )  # fmt: skip
    yield from _being_made("attention masks being made", made, here, MASKS)


def mask_script(area: Num, padded: Num | None, wide: Num | None, *, slides: bool) -> BlockEvents:
    """A mask on its way, boolean map by boolean map (masking_utils.py:57 and_masks): the window,
    the triangle, each sequence's padding (`padded` bytes), and numbers for eager attention
    (`wide` bytes).
    """
    reel = EventRecorder()
    found = reel.make(area)
    if slides:
        window, found = found, reel.make(area)
        reel.free(window)
        triangle = reel.make(area)
        window, found = found, reel.make(area)
        reel.free(triangle)
        reel.free(window)
    for size in (*(() if padded is None else (area, padded)), *(() if wide is None else (wide,))):
        before, found = found, reel.make(size)
        reel.free(before)
    return BlockEvents(sizes=tuple(reel.sizes), entry=-1, exit=-1, forward=tuple(reel.events),
                  left=(found,))  # fmt: skip


def tables(
    run: Run, how: BlockSetting, found: tuple[LayerKind, ...], passes: list[dict[str, DecodeStep]],
    table: tuple[GenerationInstant, ...],
) -> Iterator[Entry]:  # fmt: skip
    """cos and sin of every position, in each pass: for every kind of layer, or for all."""
    rotary = _rotary(found)
    sets = len({k.window for k in found}) if how.quirks.rotary_tables_per_kind else 1
    narrow = 0 if how.quirks.fp32_rotary_tables or how.bits == 32 else how.bits
    for name, step in passes[0].items() if rotary else ():
        here = [b for b in table if b.step == name]
        if here:
            rows = step.seq if plain(run) else run.batch * step.seq
            script = table_script(rows * rotary, narrow)
            size = script.sizes[script.left[0]]
            for _ in range(sets):
                yield Entry(name="rotary tables", kind=ACT, bytes=2 * size, script=script,
                            live={b.name: 1 for b in here if b.work in INSIDE},
                            source=TABLE_CODE)  # fmt: skip
            yield from _being_made("rotary tables being made", [script] * sets, here, TABLES)


def _rotary(found: tuple[LayerKind, ...]) -> int:
    """The widest part of a head that is turned."""
    mixers = (kind.layer.mixer for kind in found)
    return max(getattr(m, "rotary_dim", 0) or getattr(m, "rope_dim", 0) for m in mixers)


def table_script(elements: Num, narrow: int) -> BlockEvents:
    """Frequencies, twice over, their cos and sin, each times a scale, in fp32; then copies of
    `narrow` bits (modeling_llama.py:122).
    """
    reel, size = EventRecorder(), elements * 4
    work = [reel.make(size // 2), reel.make(size)]
    turned = []
    for _ in ("cos", "sin"):
        bare = reel.make(size)
        turned.append(reel.make(size))
        reel.free(bare)
    left = turned
    if narrow:
        left = [reel.make(elements * narrow // 8) for _ in turned]
        work += turned
    for done in work:
        reel.free(done)
    return BlockEvents(sizes=tuple(reel.sizes), entry=-1, exit=-1, forward=tuple(reel.events),
                  left=tuple(left))  # fmt: skip


def _being_made(
    name: str, scripts: Iterable[BlockEvents], here: list[GenerationInstant], work: str
) -> Iterator[Entry]:
    """The highest moment while they are made, one after another, in the prompt's pass."""
    live: dict[str, Num] = {b.name: 1 for b in here if b.work == work}
    high, alive = PeakTracker(), 0
    for script in scripts if live else ():
        for event in script.forward:
            size = script.sizes[event if event >= 0 else ~event]
            alive = alive + size if event >= 0 else alive - size
            high.see(alive, 0, 0)
    if live:
        source = MASK_CODE if work == MASKS else TABLE_CODE
        yield Entry(name=name, kind=ACT, bytes=high.total, live=live, source=source)
