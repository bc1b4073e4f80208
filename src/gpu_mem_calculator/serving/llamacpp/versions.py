"""Builds of llama.cpp: its release tags are b and a number, and what changed at which.

Each number is the first tag that has the change (git describe --contains of the commit).
"""

from __future__ import annotations

import re

NEWEST = 10586  # b21e4de7, August 2026
OLDEST = 2500  # March 2024: micro-batches, offloaded products and masks as they are since
MANY_DECODED = 4882  # one token is reserved with the outputs of a whole micro-batch
LATENT = 5137  # a latent cache; before, every head's keys and values
SLIDING_CACHE = 5429  # layers with a window have cells for it only
FEW_DECODED = 5550  # with one output again
WINDOW_UBATCH = 5554  # and for a micro-batch, not a batch
FUSED_GATE = 5777  # ggml_swiglu_split in one op
SET_ROWS = 6071  # keys and values are written by index
SPLIT_VIEWS = 5837  # queries and keys of a joined projection are views of it
STREAMS = 5913  # a cache for each sequence, unless it is unified
ALL_VIEWS = 6195  # values too, and where there is no rotary
FLASH_AUTO = 6325
EARLY_WEIGHTS = 6583  # the router's weights are computed before the experts
GROUPED = 6810  # groups of experts are masked
PADDED_256 = 6927  # a context is padded to 256; four slots by default
PLAIN_MASK = 7350  # the rows of a mask are not padded any more
VALUES_FIRST = 7044  # queries, values, then keys
WINDOW_256 = 6975  # the cells of a window are padded to 256
OUTPUT_FIRST = 7468  # -ngl counts the output layer before the others
TWO_EMBEDDINGS = 7628  # tokens or embeddings: both are inputs
NO_VALUES = 7832  # a latent cache has keys only
FIRST_NORM = 8508  # the embedding's norm is in the first layer
ROTATED = 8624  # a Hadamard product before a quantized cache
DELTA = 9180  # Gated DeltaNet as it is now: one op, outputs behind the final norm
HALF_MASK = 9410  # flash attention is given its mask in fp16, not turned to it
FEW_OUTPUTS = 9460  # a server has logits for as many tokens as it has slots
FLASH_SPACE = 9489  # a quantized cache is turned to fp16 behind the attention's result
NO_ROWS = 9890  # CUDA has no -sm row any more
LATE = 10158  # gpt-oss computes every token in its last layer, too


def build_number(text: str) -> int | None:
    """b10586, 10586, or a text that holds such a tag; None where a version is no build."""
    found = re.fullmatch(r"(\d{3,6})", text.strip()) or re.search(r"\bb~?(\d{3,6})\b", text.lower())
    return int(found[1]) if found else None
