"""Gemma 3's part of TGI's warm-up: it is shown a picture, and masks are made for every token.

Since 3.3 a mask over all pairs of tokens joins the tokens of a picture (models/vlm_causal_lm.py
forward, custom_modeling/flash_gemma3_modeling.py get_attention_mask); attention in the tower is
plain torch (custom_modeling/siglip.py SiglipAttention). Other towers are not modelled.
"""

from __future__ import annotations

from msgspec import Struct

from ...run.run import Run
from .events import StreamRecorder
from .versions import version

SINCE = (3, 3, 0)
FAMILY = "gemma3"
PATCHES, HEADS = 4096, 16  # of the tower, which all of its sizes have
SPARE = 4  # masks of one byte that are there at once, beside the one that is kept


class PromptImage(Struct, frozen=True):
    """Pairs of patches in all heads of a rank, and pairs of tokens."""

    patches: int
    tokens: int


def prompt_image(run: Run, ranks: int, requests: int, tokens: int) -> PromptImage | None:
    """What is seen; `tokens` of the longest request."""
    if version(run) < SINCE or not is_modelled(run):
        return None
    return PromptImage(HEADS * PATCHES * PATCHES // ranks, requests * tokens * tokens)


def is_modelled(run: Run) -> bool:
    """Whether the model's tower is the one that is modelled."""
    return bool(run.arch.tower) and run.arch.family.startswith(FAMILY)


def record_image(tape: StreamRecorder, seen: PromptImage) -> list[int]:
    """The tower's attention, which is over when the text begins, and masks that are kept."""
    scores = tape.make(2 * seen.patches)
    scaled = tape.make(2 * seen.patches)
    tape.free(scores)
    wide = tape.make(4 * seen.patches)
    soft = tape.make(4 * seen.patches)
    tape.free(wide)
    tape.free(tape.make(2 * seen.patches), soft, scaled)
    spare = [tape.make(seen.tokens) for _ in range(SPARE)]
    kept = [tape.make(seen.tokens)]
    tape.free(*spare)
    kept.append(tape.make(4 * seen.tokens))  # as what is added to scores
    kept.append(tape.make(seen.tokens))  # beyond the window
    kept.append(tape.make(4 * seen.tokens))  # what is added in layers with a window
    return kept
