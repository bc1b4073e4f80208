"""What transformers makes once in a pass of inference and the whole model reads."""

from __future__ import annotations

from collections.abc import Iterator

from ..ledger.ledger import ACT, Entry
from ..ledger.num import Num
from ..ledger.source import code
from .generated import EMBEDDED
from .generation import Beat, Kind, Step, slides
from .huggingface.ops import Setting
from .run import Run

GENERATE_CODE = code("transformers 5.17.0 generation/utils.py _sample")


def made_once(
    run: Run, how: Setting, found: tuple[Kind, ...], passes: list[dict[str, Step]],
    table: tuple[Beat, ...],
) -> Iterator[Entry]:  # fmt: skip
    """Ids, the embedding's output, masks, then tables, which the whole model reads.

    generate gives each sequence positions and a mask of its own (generation/utils.py:880), so
    that rotary tables and masks are made for the batch.
    """
    plain = type(run.new_tokens) is int and run.new_tokens == 0
    batch = 1 if plain else run.batch
    for name, step in passes[0].items():
        here = [b for b in table if b.step == name]
        if not here:
            continue
        inside = {b.name: 1 for b in here if b.work in ("layer", "norm")}
        yield _ids(run, step, plain=plain, live={b.name: 1 for b in here})
        yield from _named(run, how, step.seq, batch, here)
        yield from _masks(run, how, found, [each[name] for each in passes], batch, inside)
        rotary = max(getattr(k.layer.mixer, "rotary_dim", 0) or getattr(k.layer.mixer, "rope_dim",
                     0) for k in found)  # fmt: skip
        if rotary:
            sets = len({k.window for k in found}) if "tables" in how.names else 1
            yield _tables(how, batch * step.seq * rotary, sets, inside)


def _tables(how: Setting, elements: Num, sets: int, live: dict[str, Num]) -> Entry:
    """cos and sin of every position."""
    size = elements * (32 if "wide_tables" in how.names else how.bits) // 8
    return Entry(
        name="rotary tables", kind=ACT, bytes=2 * sets * size, live=live,
        tensors=lambda: [size] * (2 * sets),
        source=code("transformers 5.17.0 modeling_llama.py: cos and sin, made once a forward"),
    )  # fmt: skip


def _ids(run: Run, step: Step, *, plain: bool, live: dict[str, Num]) -> Entry:
    """The prompt; a mask, positions and ids of all tokens, those that were chosen included."""
    prompt = 8 * run.batch * run.seq
    longer = 0 if plain else prompt + 8 * run.batch * step.number
    return Entry(name="token ids, mask and positions", kind=ACT, bytes=prompt + 3 * longer,
                 live=live, tensors=lambda: (prompt, longer, longer, longer),
                 source=GENERATE_CODE)  # fmt: skip


def goes_in(run: Run) -> bool:
    """Whether the embedding's output itself is the first layer's input."""
    return len(run.arch.embedding) == 1 and run.arch.embedding_norm is None


def _named(
    run: Run, how: Setting, tokens: Num, batch: Num, here: list[Beat]
) -> Iterator[Entry]:
    """The embedding's output, and learnt positions, which the model's forward names.

    A layer that it goes into has it as its input; unrolled it is the same tensor.
    """
    direct = goes_in(run)
    live = {b.name: 1 for b in here if b.work == "norm" or (
        b.work == "layer" and (b.place > 0 or run.unrolled or not direct))}  # fmt: skip
    rows = run.batch if "positions" in how.names else batch
    learnt = rows if len(run.arch.embedding) > 1 else 0
    each = tokens * how.hidden * how.bits // 8
    yield Entry(
        name=EMBEDDED, kind=ACT, bytes=(run.batch + learnt) * each, live=live,
        tensors=lambda: (run.batch * each, learnt * each)[: 1 + (len(run.arch.embedding) > 1)],
        source=code("transformers 5.17.0 modeling_llama.py: inputs_embeds in LlamaModel.forward"),
    )  # fmt: skip


def _masks(
    run: Run, how: Setting, found: tuple[Kind, ...], passes: list[Step], batch: Num,
    live: dict[str, Num],
) -> Iterator[Entry]:  # fmt: skip
    """Masks that the model makes for its layers, one for each kind of window.

    Eager attention has one in the activations' dtype (masking_utils.py:539), SDPA a boolean one
    where a window slides or the family asks for it (:373).
    """
    mixers = [kind.layer.mixer for kind in found]
    eager = run.attention == "eager" or not all(getattr(m, "sdpa", True) for m in mixers)
    seen: dict[int | None, Step] = {}
    for kind, step in zip(found, passes, strict=True):
        asked = getattr(kind.layer.mixer, "always_masked", False)
        if hasattr(kind.layer.mixer, "output") and (
            eager or asked or (run.attention == "sdpa" and slides(step, kind.window))
        ):
            seen.setdefault(kind.window, step)
    if ("masks" in how.names and run.attention != "flash_attention_2") or (
        "eager_masks" in how.names and eager
    ):
        seen.setdefault(0 if None in seen else None, passes[0])
    for window, step in seen.items():
        width = how.bits if eager else 8
        rows = run.batch if eager else batch
        yield Entry(
            name="attention mask" if window is None else "attention mask of the window", kind=ACT,
            bytes=rows * step.seq * (step.seq + step.past) * width // 8, live=live,
            source=code("transformers 5.17.0 masking_utils.py:373 sdpa_mask, :539 eager_mask"),
        )  # fmt: skip
