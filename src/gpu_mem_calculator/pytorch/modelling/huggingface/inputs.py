"""What a model's forward makes once for all its layers, and how large it is (transformers 5.17.0).

Attention masks, rotary tables and the embedding's output, for training and for inference. The two
differ in when these tensors are freed, which `training/step/model_inputs.py` and
`training/generation/model_inputs.py` say, and in rows: without padding all sequences share one
mask and one
table; generate gives each sequence its own positions and mask (generation/utils.py:880).
"""

from __future__ import annotations

from collections.abc import Iterable

from ....ledger.num import Bytes, Num, sized
from ....ledger.source import code
from ....models.arch.blocks import Mixer
from ...autograd.events import BlockEvents, EventRecorder
from .setting import BlockSetting

MASK_CODE = code("transformers 5.17.0 masking_utils.py:373 sdpa_mask, :539 eager_mask")
TABLE_CODE = code("transformers 5.17.0 modeling_llama.py: cos and sin, computed once a forward")
EMBEDDING_CODE = code("transformers 5.17.0 modeling_llama.py: inputs_embeds in LlamaModel.forward")


def runs_eager(attention: str, mixers: Iterable[Mixer | None]) -> bool:
    """Whether attention is eager: the run asks for it, or transformers has no SDPA for a mixer."""
    return attention == "eager" or not all(getattr(m, "sdpa", True) for m in mixers)


def always_masked(mixer: Mixer | None) -> bool:
    """Whether the family's code passes a mask to every attention kernel (Falcon)."""
    return getattr(mixer, "always_masked", False)


def needs_mask(setting: BlockSetting, mixer: Mixer | None, *, eager: bool, slides: bool) -> bool:
    """Whether the forward makes a mask for a layer.

    Eager attention always has one (masking_utils.py:539), SDPA where a window is shorter than the
    keys (`slides`) or the family asks for it (:373).
    """
    return eager or always_masked(mixer) or (setting.attention == "sdpa" and slides)


def mask_bytes(setting: BlockSetting, area: Num, sequences: Num, *, eager: bool) -> Bytes:
    """Bytes of one mask with `area` pairs of a query and a key.

    Eager attention has a number in the activations' dtype for every sequence of the batch, SDPA a
    boolean for each of `sequences`.
    """
    return sized(area * setting.batch, setting.bits) if eager else sized(area * sequences, 8)


def mask_events(
    area: Num, sequences: Num | None, eager_bytes: Bytes | None, *, slides: bool
) -> BlockEvents:
    """How a mask is made, one boolean map after another (masking_utils.py:57 and_masks).

    The window where it `slides`, the triangle, the padding of each of `sequences` (None: no
    padding), and the numbers of eager attention (`eager_bytes`; None: SDPA). Only the last stays.
    """
    recorder, size = EventRecorder(), sized(area, 8)
    mask = recorder.make(size)
    if slides:
        window, mask = mask, recorder.make(size)
        recorder.free(window)
        triangle = recorder.make(size)
        window, mask = mask, recorder.make(size)
        recorder.free(triangle)
        recorder.free(window)
    padding = () if sequences is None else (size, size * sequences)
    for size in (*padding, *(() if eager_bytes is None else (eager_bytes,))):
        before, mask = mask, recorder.make(size)
        recorder.free(before)
    return recorder.forward_only((mask,))


def rotary_width(mixers: Iterable[Mixer | None], *, latent: bool) -> int:
    """Elements of an attention head that the rotary embedding rotates, the most of all layers;
    0: it rotates none. `latent`: the rotary part of latent attention counts, too.
    """
    widths = (getattr(m, "rotary_dim", 0) or latent * getattr(m, "rope_dim", 0) for m in mixers)
    return max(widths, default=0)


def table_bits(setting: BlockSetting) -> int:
    """Bits of the rotary tables: the activations' dtype, but fp32 where the family keeps it."""
    return 32 if setting.quirks.fp32_rotary_tables else setting.bits


def table_bytes(setting: BlockSetting, positions: Num, width: Num) -> Bytes:
    """Bytes of cos and sin, each of `positions` rows with `width` elements."""
    return sized(2 * positions * width, table_bits(setting))


def table_events(elements: Num, bits: int) -> BlockEvents:
    """How cos and sin of `elements` each are made (modeling_llama.py:122).

    In fp32: frequencies, the same twice over, their cos and sin, each times a scale; then copies
    where the tables have fewer `bits`. cos and sin stay.
    """
    recorder, size = EventRecorder(), sized(elements, 32)
    freed = [recorder.make(size // 2), recorder.make(size)]
    tables = []
    for _ in ("cos", "sin"):
        unscaled = recorder.make(size)
        tables.append(recorder.make(size))
        recorder.free(unscaled)
    if bits < 32:
        freed += tables
        tables = [recorder.make(sized(elements, bits)) for _ in tables]
    for tensor in freed:
        recorder.free(tensor)
    return recorder.forward_only(tables)


def embedding_bytes(
    setting: BlockSetting, tokens: Num, tables: int, *, position_rows: Num
) -> tuple[Bytes, ...]:
    """Bytes of what the embedding gives for `tokens` of each sequence: the token table's rows, and
    where there is a second table those of learnt positions, for `position_rows` sequences.
    """
    row = sized(tokens * setting.hidden, setting.bits)
    return (row * setting.batch, row * position_rows)[:tables]


def scaled_embedding_events(size: Bytes) -> BlockEvents:
    """An embedding's output that is multiplied by a number (modeling_gemma2.py:349)."""
    recorder = EventRecorder()
    unscaled, scaled = recorder.make(size), recorder.make(size)
    recorder.free(unscaled)
    return recorder.forward_only((scaled,))
