"""What TGI refuses to start with, and what is not modelled."""

from __future__ import annotations

from collections.abc import Iterator

from ...models.arch.blocks import Attention, LatentAttention
from ...run.releases import version_problems
from ...run.run import Run
from ...run.weights.rank_weights import adapter_problems, format_problems
from ...training.generation.kv_cache import has_cache
from .. import other_server
from .defaults import attention_kernels, max_input_tokens, max_request_tokens
from .row import ROW
from .versions import OLDEST

FORMATS = ("none", "fp8", "int8", "awq", "gptq_int4", "gptq_int8", "nf4")
SPECULATION = ("ngram", "medusa")


def problems(run: Run) -> Iterator[str]:
    """One sentence for each choice that TGI refuses or that is not modelled."""
    options = run.options
    yield from version_problems(run, "TGI", OLDEST)
    cache = options["kv_cache_dtype"]
    given = f"inference.kv_cache_dtype={cache!r}"
    if cache not in ("auto", "fp8", run.precision.partition("_")[0]):
        yield f"{given} is not stored by TGI; use 'auto' or 'fp8'"
    if cache == "fp8" and attention_kernels(run) == "flashdecoding":
        lacks = "which has no kernel for this model's heads"
        yield f"{given} needs flashinfer, {lacks}; use 'auto'"
    if run.precision == "fp32":
        yield "inference.dtype='fp32' is not one of TGI's; use 'bf16' or 'fp16'"
    yield from adapter_problems(run)
    if options["enforce_eager"] and any(options["cuda_graphs"] or ()):
        yield "inference.cuda_graphs names sizes to capture; leave it or enforce_eager out"
    lengths = options.get("max_seq_len"), options.get("max_total_tokens")
    if None not in lengths and lengths[0] != lengths[1]:
        yield (
            f"inference.max_total_tokens={lengths[1]} is the most tokens of a request in TGI, as "
            f"max_seq_len={lengths[0]} is; give one of them"
        )
    prompt, longest = max_input_tokens(run), max_request_tokens(run)
    if longest == 1:
        yield "inference.max_total_tokens=1 leaves no token for an answer; use 2 or more"
    if prompt is not None and longest is not None and prompt >= longest:
        yield f"inference.max_input_tokens={prompt} must be less than max_total_tokens={longest}"
    yield from _model_problems(run)


def _model_problems(run: Run) -> Iterator[str]:
    mixers = [mixer for layer, _, _ in run.arch.runs for mixer in layer.mixers]
    paged = all(isinstance(mixer, Attention | LatentAttention) for mixer in mixers)
    family = run.arch.family
    cross = any(getattr(mixer, "cross", False) for mixer in mixers)
    fix = f"use {other_server(family)}"
    if not paged or cross or family in ROW.no_code:
        yield f"model: TGI does not serve {family} with a paged cache; {fix}"
    elif not has_cache(run.arch):
        yield f"model: {family} generates nothing, and TGI does that alone; {fix}"
    tp = int(run.mesh.tp)
    kv_heads = {mixer.kv_heads for mixer in mixers if isinstance(mixer, Attention)} - {1}
    for count in sorted(kv_heads):  # sizes that no server can shard are reported elsewhere
        if count % tp and tp % count == 0:
            more = f"inference.tensor_parallel_size={tp} is more than {count} key-value heads"
            yield f"{more}, which TGI does not repeat; use {count}"
    quantization, formats = str(run.options["quantization"]), ", ".join(FORMATS)
    if quantization not in FORMATS:
        refused = f"inference.quantization={quantization!r} is not served by TGI"
        yield f"{refused}; use one of {formats}"
    else:
        yield from format_problems(run)
    method, drafts = run.options["speculative_method"], run.options["num_speculative_tokens"]
    if method is not None and method not in SPECULATION:
        refused = f"inference.speculative_method={method!r} is not one of TGI's"
        yield f"{refused}; use {' or '.join(SPECULATION)}"
    elif (method is None) != (drafts is None) and method != "medusa":
        yield (
            "inference.speculative_method and inference.num_speculative_tokens go together; "
            "give both or none"
        )
