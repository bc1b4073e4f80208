"""Gemma 3's part of TGI's warm-up: an image, and attention masks for every token.

Since 3.3 a mask over all pairs of tokens joins the tokens of an image (models/vlm_causal_lm.py
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
PATCHES, HEADS = 4096, 16  # of the tower, the same in all model sizes
SPARE = 4  # one-byte masks alive at once, besides the one that stays


class PromptImage(Struct, frozen=True):
    """Pairs of patches in all attention heads of a rank, and pairs of tokens."""

    patches: int
    tokens: int


def prompt_image(run: Run, ranks: int, requests: int, tokens: int) -> PromptImage | None:
    """The warm-up's image, if its tower is modelled; `tokens`: of the longest request."""
    if version(run) < SINCE or not is_modelled(run):
        return None
    return PromptImage(HEADS * PATCHES * PATCHES // ranks, requests * tokens * tokens)


def is_modelled(run: Run) -> bool:
    """Whether the model has Gemma 3's tower."""
    return bool(run.arch.tower) and run.arch.family.startswith(FAMILY)


def record_image(recorder: StreamRecorder, image: PromptImage) -> list[int]:
    """Record the tower's attention, which is freed, and the masks, which are returned."""
    scores = recorder.allocate(2 * image.patches)
    scaled = recorder.allocate(2 * image.patches)
    recorder.free(scores)
    scores_fp32 = recorder.allocate(4 * image.patches)
    softmax = recorder.allocate(4 * image.patches)
    recorder.free(scores_fp32)
    recorder.free(recorder.allocate(2 * image.patches), softmax, scaled)
    spare = [recorder.allocate(image.tokens) for _ in range(SPARE)]
    masks = [recorder.allocate(image.tokens)]
    recorder.free(*spare)
    masks.append(recorder.allocate(4 * image.tokens))  # as an additive mask
    masks.append(recorder.allocate(image.tokens))  # of the window
    masks.append(recorder.allocate(4 * image.tokens))  # additive, for layers with a window
    return masks
