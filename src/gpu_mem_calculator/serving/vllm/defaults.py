"""What vLLM chooses where nobody says: how many sequences and tokens at once, and how long.

The choices are those of `vllm serve`; Python's `LLM` class takes twice as many tokens at once.
vllm 0.11.0 vllm/engine/arg_utils.py _set_default_args and vllm/config/scheduler.py, others as
marked.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ...ledger.units import GIB
from ...model.blocks import Recurrence, StateSpace
from ...run.run import Run
from .versions import Version, v1, version

LARGE_CARD, LARGEST_CARD = 70 * GIB, 160 * GIB
LONG_CONTEXT = 32 * 1024  # V0 cuts prompts of longer ones into pieces
UTILIZATION = ((0, 20, 0), 0.92, 0.9)  # since when, since then, before


def settled(run: Run) -> Run:
    """The run with every choice made."""
    options: dict[str, Any] = dict(run.options)
    now, new = version(run), v1(run)
    options["engine_generation"] = "v1" if new else "v0"
    if options["max_seq_len"] is None:
        options["max_seq_len"] = run.arch.max_seq_len
    if options["gpu_memory_utilization"] is None:
        since, later, before = UTILIZATION
        options["gpu_memory_utilization"] = later if now >= since else before
    made = replace(run, options=options)
    if options["enable_chunked_prefill"] is None:
        options["enable_chunked_prefill"] = _in_pieces(made)
    if options["enable_prefix_caching"] is None:
        options["enable_prefix_caching"] = _keeps_prefixes(made)
    seqs = options["max_num_seqs"] or _sequences(run, now)
    tokens = options["max_num_batched_tokens"] or _tokens(made, seqs)
    if options["max_num_seqs"] is None and new:
        seqs = min(seqs, tokens)
    options |= {"max_num_seqs": seqs, "max_num_batched_tokens": tokens}
    if options["swap_space"] is None:
        options["swap_space"] = 0 if new else 4
    return replace(run, options=options)


def _large(run: Run, now: Version) -> bool:
    """70 GiB or more; until 0.8.4 H100 and H200 by their names, and no A100 from 0.9.0 on."""
    card = run.compute_capability
    named = (card == "9.0" or now >= (0, 8, 5)) and (card != "8.0" or now < (0, 9, 0))
    return run.card_bytes >= LARGE_CARD and named


def _sequences(run: Run, now: Version) -> int:
    """Sequences at once: 256, or 1,024 on large cards (on all from 0.8.0 to 0.8.3)."""
    if not v1(run):
        return 256
    return 1024 if now < (0, 8, 4) or _large(run, now) else 256


def _tokens(run: Run, seqs: int) -> int:
    """Tokens of a step."""
    now, length = version(run), int(run.options["max_seq_len"])
    pieces = run.options["enable_chunked_prefill"]
    if not v1(run):
        # vllm 0.6.5 vllm/config.py SchedulerConfig: 2,048, before that 512
        return (2048 if now >= (0, 6, 5) else 512) if pieces else max(length, 2048)
    largest = now >= (0, 28, 0) and run.card_bytes >= LARGEST_CARD
    tokens = 16384 if largest else 8192 if _large(run, now) else 2048
    if not pieces:
        tokens = max(tokens, length)
    return min(tokens, seqs * length) if now >= (0, 12, 0) else tokens


def _in_pieces(run: Run) -> bool:
    """Whether prompts are cut: in V1 always, in V0 (from 0.5.1) beyond 32,768 tokens.

    vllm 0.7.2 vllm/engine/arg_utils.py: not with windows, adapters or a draft. Latent attention
    cuts none before 0.8, but its steps are as short (vllm/config.py, VllmConfig).
    """
    options, now = run.options, version(run)
    if v1(run):
        return True
    if any(run.arch.windows):
        return False
    drafted = run.draft is not None or options["speculative_method"] is not None
    plain = options["max_lora_rank"] is None and not drafted
    return plain and now >= (0, 5, 1) and int(options["max_seq_len"]) > LONG_CONTEXT


def _keeps_prefixes(run: Run) -> bool:
    """Prefix caching: V1's default, but for models with states until 0.26."""
    mixers = [mixer for layer, _, _ in run.arch.runs for mixer in layer.mixers]
    states = any(isinstance(mixer, StateSpace | Recurrence) for mixer in mixers)
    return v1(run) and (not states or version(run) >= (0, 26, 0))
