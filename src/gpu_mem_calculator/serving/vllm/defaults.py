"""vLLM's defaults: sequences and tokens of a step, context length, chunked prefill, prefix caching.

These are the defaults of `vllm serve`; Python's `LLM` class takes twice as many tokens a step.
vllm 0.11.0 vllm/engine/arg_utils.py _set_default_args and vllm/config/scheduler.py, others as
marked.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ...ledger.units import GIB
from ...models.arch.blocks import Recurrence, StateSpace
from ...run.run import Run
from .versions import Version, v1, version

LARGE_CARD, LARGEST_CARD = 70 * GIB, 160 * GIB
GB10 = "12.1"  # compute capability
LONG_CONTEXT = 32 * 1024  # tokens; V0 splits prompts beyond it into chunks


def apply_defaults(run: Run) -> Run:
    """A copy of the run in which every option has a value."""
    options: dict[str, Any] = dict(run.options)
    vllm_version, is_v1 = version(run), v1(run)
    options["engine_generation"] = "v1" if is_v1 else "v0"
    if options["max_seq_len"] is None:
        options["max_seq_len"] = run.arch.max_seq_len
    if options["gpu_memory_utilization"] is None:
        options["gpu_memory_utilization"] = 0.92 if vllm_version >= (0, 20, 0) else 0.9
    partial = replace(run, options=options)
    if options["enable_chunked_prefill"] is None:
        options["enable_chunked_prefill"] = _chunks_prefill(partial)
    if options["enable_prefix_caching"] is None:
        options["enable_prefix_caching"] = _caches_prefixes(partial)
    seqs = options["max_num_seqs"] or _default_num_seqs(run, vllm_version)
    tokens = options["max_num_batched_tokens"] or _default_num_tokens(partial, seqs)
    if options["max_num_seqs"] is None and is_v1:
        seqs = min(seqs, tokens)
    options |= {"max_num_seqs": seqs, "max_num_batched_tokens": tokens}
    if is_v1 or options["swap_space"] is None:
        options["swap_space"] = 0 if is_v1 else 4
    # vllm 0.33.0 vllm/model_executor/models/interfaces.py _mark_tower_model: a tower whose every
    # kind of input is limited to 0 is left out.
    arch = replace(run.arch, tower=()) if options["language_model_only"] else run.arch
    return replace(run, options=options, arch=arch)


def _is_large_card(run: Run, vllm_version: Version) -> bool:
    """Whether vLLM treats the card as large: 70 GiB or more.

    Until 0.8.4 only H100 and H200, by name; from 0.9.0 on no A100. NVML has no memory to tell of a
    GB10, and what cannot be asked is small (vllm 0.13.0 vllm/engine/arg_utils.py device_memory).
    """
    capability = run.compute_capability
    if capability == GB10:
        return False
    counts = (capability == "9.0" or vllm_version >= (0, 8, 5)) and (
        capability != "8.0" or vllm_version < (0, 9, 0)
    )
    return run.card_bytes >= LARGE_CARD and counts


def _default_num_seqs(run: Run, vllm_version: Version) -> int:
    """Sequences of a step: 256, or 1,024 on large cards (on all from 0.8.0 to 0.8.3)."""
    if not v1(run):
        return 256
    return 1024 if vllm_version < (0, 8, 4) or _is_large_card(run, vllm_version) else 256


def _default_num_tokens(run: Run, seqs: int) -> int:
    """Tokens of a step."""
    vllm_version, length = version(run), int(run.options["max_seq_len"])
    chunked = run.options["enable_chunked_prefill"]
    if not v1(run):
        # vllm 0.6.5 vllm/config.py SchedulerConfig: 2,048, before that 512
        return (2048 if vllm_version >= (0, 6, 5) else 512) if chunked else max(length, 2048)
    largest = vllm_version >= (0, 28, 0) and run.card_bytes >= LARGEST_CARD
    tokens = 16384 if largest else 8192 if _is_large_card(run, vllm_version) else 2048
    if not chunked:
        tokens = max(tokens, length)
    return min(tokens, seqs * length) if vllm_version >= (0, 12, 0) else tokens


def _chunks_prefill(run: Run) -> bool:
    """Whether prompts are split: in V1 always, in V0 (from 0.5.1) beyond 32,768 tokens.

    vllm 0.7.2 vllm/engine/arg_utils.py: not with windows, adapters or a draft. Latent attention
    splits none before 0.8, but its steps are as short (vllm/config.py, VllmConfig).
    """
    options, vllm_version = run.options, version(run)
    if v1(run):
        return True
    if any(run.arch.windows):
        return False
    speculative = run.draft is not None or options["speculative_method"] is not None
    supported = options["max_lora_rank"] is None and not speculative
    return supported and vllm_version >= (0, 5, 1) and int(options["max_seq_len"]) > LONG_CONTEXT


def _caches_prefixes(run: Run) -> bool:
    """Whether prefixes are cached: V1's default, for models with states from 0.26 on."""
    mixers = [mixer for layer, _, _ in run.arch.runs for mixer in layer.mixers]
    states = any(isinstance(mixer, StateSpace | Recurrence) for mixer in mixers)
    return v1(run) and (not states or version(run) >= (0, 26, 0))
