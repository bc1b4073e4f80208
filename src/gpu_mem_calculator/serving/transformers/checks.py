"""What transformers' generate refuses, and what is not modelled, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...ledger.frameworks import TRANSFORMERS
from ...ledger.quoting import quoted
from ...models.arch.arch import Arch, Layer
from ...models.arch.blocks import Attention, StateSpace
from ...pytorch.modelling.huggingface.flash import NO_FLASH_CARD, has_flash
from ...run.run import Run
from ...run.weights.rank_weights import format_problems
from .row import ROW

# Options of which only one value is modelled; another is refused, never ignored.
ONE_VALUE = {
    "engine_version": TRANSFORMERS.version,
    "kv_cache_dtype": "auto",
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
}
NO_FLASH = ("falcon", "gptj", "gpt_neo", "bloom", "llama4", "mpt")
CACHES = ("dynamic", "static")
QUANTIZATIONS = ("none", "nf4", "int8")


def problems(run: Run) -> Iterator[str]:
    """What generate refuses of a run, and what is not modelled."""
    options = run.options
    yield from option_problems(options)
    if options["quantization"] in QUANTIZATIONS:
        yield from format_problems(run)
    if run.arch.family in ROW.no_code:
        yield (
            f"model: {run.arch.family} keeps no cache in transformers {TRANSFORMERS.version}, "
            "and its inference is not modelled; measure it"
        )
    mixers = [layer.mixer for layer, _, _ in run.arch.runs]
    if run.attention == "sdpa" and not all(getattr(mixer, "sdpa", True) for mixer in mixers):
        lacks = f"does not exist for {run.arch.family} in transformers"
        yield f"inference.attention='sdpa' {lacks}; use 'eager'"
    if run.attention == "flash_attention_2":
        yield from _flash_problems(run)
    if any(isinstance(mixer, StateSpace) for mixer in mixers):
        defaults = {"cache_implementation": "dynamic", "num_beams": 1, "quantization": "none"}
        yield from _fixed_problems(options, defaults, "for state-space layers")
    if run.draft is not None:
        yield from _assistance_problems(run, run.draft)


def _fixed_problems(
    options: Mapping[str, Any], modelled: Mapping[str, Any], where: str
) -> Iterator[str]:
    """A sentence for each option that has another value than the only one modelled."""
    for key, value in modelled.items():
        if options[key] != value:
            name = f"inference.{key}={quoted(options[key])}"
            yield f"{name} is not modelled {where}; set it to {quoted(value)}"


def option_problems(options: Mapping[str, Any]) -> Iterator[str]:
    """What is refused for every model, by the options alone."""
    quantization = options["quantization"]
    refused = f"inference.quantization={quantization!r} is not modelled"
    yield from _fixed_problems(options, ONE_VALUE, "for transformers")
    if quantization not in QUANTIZATIONS:
        yield f"{refused} for transformers; use {', '.join(map(repr, QUANTIZATIONS))}"
    elif quantization != "none" and options["dtype"] == "fp32":
        yield f"{refused} with dtype='fp32'; use 'bf16' or 'fp16'"
    if options["num_speculative_tokens"] is not None and options["speculative_model"] is None:
        yield "inference.num_speculative_tokens needs a speculative_model, the assistant; add one"
    yield from _choice_problems(options)


def _flash_problems(run: Run) -> Iterator[str]:
    """Refusals of flash-attn, which is modelled where transformers' common interface calls it
    (integrations/flash_attention.py), not for families with separate code.
    """
    given = "inference.attention='flash_attention_2'"
    if run.precision == "fp32":
        yield f"{given} has no fp32 kernel; use 'sdpa'"
    if not has_flash(run.compute_capability):
        yield NO_FLASH_CARD.format("inference", run.compute_capability)
    if run.options["cache_implementation"] == "static":
        yield f"{given} with a static cache is not modelled; use 'sdpa'"
    if run.arch.family in NO_FLASH or not all(map(_is_flash_layer, run.arch.runs)):
        yield f"{given} is not modelled for {run.arch.family}; use 'sdpa' or 'eager'"


def _is_flash_layer(layer_run: tuple[Layer, int, int]) -> bool:
    mixer = layer_run[0].mixer
    if not isinstance(mixer, Attention) or not mixer.sdpa:
        return False
    masked = mixer.alibi or mixer.sinks or mixer.always_masked
    equal = (mixer.value_dim or mixer.head_dim) == mixer.head_dim
    return not masked and equal and mixer.head_dim <= 256 and not mixer.head_dim % 8


def _assistance_problems(run: Run, draft: Arch) -> Iterator[str]:
    """Refusals of assisted generation (generation/utils.py _assisted_decoding)."""
    options = run.options
    modelled = {
        **dict.fromkeys(("batch_size", "num_beams", "num_return_sequences"), 1),
        **{"do_sample": False, "cache_implementation": "dynamic", "quantization": "none"},
    }
    yield from _fixed_problems(options, modelled, "with a speculative_model")
    if not options["new_tokens"]:
        yield "inference.speculative_model has nothing to do where new_tokens is 0; leave it out"
    for title, arch in (("model", run.arch), ("inference.speculative_model", draft)):
        windows = any(one is not None for one in arch.windows)
        states = any(isinstance(layer.mixer, StateSpace) for layer, _, _ in arch.runs)
        if windows or states or arch.family in ROW.no_code:
            yield (
                f"{title}: assisted generation with sliding windows or states is not modelled; "
                "leave speculative_model out"
            )
    if draft.vocab != run.arch.vocab:
        sizes = f"a vocabulary of {draft.vocab}, the model one of {run.arch.vocab}"
        yield f"inference.speculative_model has {sizes}; they must be the same"


def _choice_problems(options: Mapping[str, Any]) -> Iterator[str]:
    """Options that exclude each other: generation/configuration_utils.py validate."""
    cache = options["cache_implementation"]
    if cache not in CACHES:
        given = f"inference.cache_implementation={cache!r}"
        yield f"{given} is not modelled; use 'dynamic' or 'static'"
    if options["num_beams"] > 1 and options["do_sample"]:
        yield "inference.do_sample with num_beams > 1 is not modelled; leave one of them out"
    many, beams = options["num_return_sequences"], options["num_beams"]
    if many > beams > 1 or (many > 1 and beams == 1 and not options["do_sample"]):
        more = f"inference.num_return_sequences={many} is more than one search finds"
        yield f"{more}: set num_beams to as many at least, or do_sample"
    defaults = {"cache_implementation": "dynamic", "num_beams": 1, "do_sample": False}
    for key, value in defaults.items() if not options["new_tokens"] else ():
        if options[key] != value:
            yield f"inference.{key} acts on tokens that are generated; set new_tokens, or leave it"
    for key in ("top_k", "top_p"):
        if options[key] is not None and not options["do_sample"]:
            yield f"inference.{key} acts on sampling alone; set do_sample, or leave it out"
