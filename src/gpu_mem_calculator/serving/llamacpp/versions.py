"""Builds of llama.cpp at which a rule of its memory changed; release tags are b and a number.

Each number is the first tag that has the change (git describe --contains of the commit).
"""

from __future__ import annotations

import re

from ...ledger.frameworks import LLAMA_CPP

NEWEST = LLAMA_CPP.numbers[0]  # August 2026
# March 2024: since then micro-batches, offloaded products and masks are the same
OLDEST = LLAMA_CPP.oldest_numbers[0]
MANY_DECODED = 4882  # one token is reserved with the outputs of a whole micro-batch
LATENT = 5137  # a latent cache; before, the keys and values of every head
SLIDING_CACHE = 5429  # layers with a window have cells for the window only
FEW_DECODED = 5550  # one token is reserved with one output again
WINDOW_UBATCH = 5554  # a window's cells are for it and a micro-batch, before for it and a batch
FUSED_GATE = 5777  # ggml_swiglu_split in one op
SET_ROWS = 6071  # keys and values are written by index
SPLIT_VIEWS = 5837  # queries and keys of a fused projection are views of it
STREAMS = 5913  # a separate cache for each sequence, unless it is unified
ALL_VIEWS = 6195  # values too, and all of them without rotary
FLASH_AUTO = 6325  # flash attention is on by default where there is a kernel
EARLY_WEIGHTS = 6583  # the router's weights are computed before the experts
GROUPED = 6810  # groups of experts are masked
PADDED_256 = 6927  # a context is padded to 256; four slots by default
PLAIN_MASK = 7350  # the rows of a mask are no longer padded
VALUES_FIRST = 7044  # the order is queries, values, keys
WINDOW_256 = 6975  # the cells of a window are padded to 256
FIT = 7410  # --fit is on by default: what nobody gave is lowered until it fits
OUTPUT_FIRST = 7468  # -ngl counts the output layer before the others
TWO_EMBEDDINGS = 7628  # tokens and embeddings are both inputs
NO_VALUES = 7832  # a latent cache has keys only
FIRST_NORM = 8508  # the embedding's norm is in the first layer
FUSED_UP = 8497  # --fit's patterns name fused gates of experts
ROTATED = 8624  # a Hadamard product before a quantized cache
DELTA = 9180  # Gated DeltaNet is one op, and outputs are selected after the final norm
HALF_MASK = 9410  # flash attention's mask is an fp16 input, before it was converted
FEW_OUTPUTS = 9460  # a server has logits for as many tokens as it has slots
FLASH_SPACE = 9489  # a quantized cache is converted to fp16 in a workspace after attention's result
NO_ROWS = 9890  # CUDA no longer has -sm row
LATE = 10158  # gpt-oss computes every token in its last layer as well
EACH_STREAM = 10584  # --fit counts the context of each separate cache


def build_number(text: str) -> int | None:
    """The number in b10586, 10586 or a text with such a tag; None where it has none."""
    match = re.fullmatch(r"(\d{3,6})", text.strip()) or re.search(r"\bb~?(\d{3,6})\b", text.lower())
    return int(match[1]) if match else None
