"""The seconds of a row, where its source prints a rate: by the source's own formula.

- Tokens a second: the step's tokens over them.
- Megatron's TFLOP/s (SC21, section 5.1): 96 B s l h² (1 + s / 6h + V / 16 l h) with full recompute;
  all pairs of attention count.
- Llama 3's: 6 N + 6 L h s for each token, half the pairs; its paper does not say so, at 8k all
  pairs would be 4 % more.
- stas00's (benchmark.py): 6 N + 6 L h s for each token without recompute, N without the embedding.
"""

from __future__ import annotations

from .rows import TimingRow
from .sections import RunFileParts, UnusableError, batch

RECOMPUTED = 96
TERA = 1e12
LLAMA_8B = {"weights": 7504658432, "layers": 32, "hidden": 4096}
LLAMA_405B = {"weights": 403747897344, "layers": 126, "hidden": 16384}


def seconds_of(row: TimingRow, parts: RunFileParts) -> tuple[float, str]:
    """The measured seconds of a step, and what they were computed from."""
    if row.step_seconds is not None:
        return row.step_seconds, "seconds"
    tokens = batch(row) * parts.training["seq_len"]
    if row.tokens_per_s is not None:
        return tokens / row.tokens_per_s, "tokens a second"
    if row.tflops_gpu is None:
        raise UnusableError("its source prints neither a time nor a rate")
    flops = _flops(row, parts, tokens)
    return flops / (row.tflops_gpu * TERA * row.n_gpus), "FLOP/s"


def _flops(row: TimingRow, parts: RunFileParts, tokens: int) -> float:
    if row.source == "Megatron SC21":
        return megatron_flops(row, tokens, RECOMPUTED)
    if row.source == "BigScience":
        raise UnusableError("its TFLOPs are by an older formula, and it has no seconds")
    sizes = {"Llama 3": LLAMA_405B, "stas00": LLAMA_8B}[row.source]
    return tokens * llama_flops(sizes, parts.training["seq_len"])


def megatron_flops(row: TimingRow, tokens: int, factor: int) -> float:
    """Megatron's FLOPs of a step; `factor` is 96 with full recompute, 72 without."""
    layers, hidden, vocab = row.n_layers or 0, row.hidden or 0, row.vocab or 0
    attention = (row.seq or 0) / (6 * hidden)
    logits = vocab / (16 * layers * hidden)
    return factor * tokens * layers * hidden**2 * (1 + attention + logits)


def llama_flops(sizes: dict[str, int], seq: int) -> float:
    """FLOPs of a token with half the pairs of attention."""
    return 6 * sizes["weights"] + 6 * sizes["layers"] * sizes["hidden"] * seq
