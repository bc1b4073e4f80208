"""What transformers' generate refuses, and what is not modelled: a sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...model.arch import Arch, Layer
from ...model.blocks import Attention, StateSpace
from ...run.run import Run

# Options that generate has in one value only here; another one is refused, never ignored.
ONE_VALUE = {
    "engine_version": "5.17.0", "kv_cache_dtype": "auto", "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
}  # fmt: skip
NO_CACHE = ("mpt",)
NO_FLASH = ("falcon", "gptj", "gpt_neo", "bloom", "llama4", "mpt")
CACHES = ("dynamic", "static")
QUANTIZATIONS = ("none", "nf4", "int8")


def problems(run: Run) -> Iterator[str]:
    """What generate cannot do with a model, and what is not modelled."""
    given = run.options
    yield from option_problems(given)
    if run.arch.family in NO_CACHE:
        yield (f"model: {run.arch.family} keeps no cache in transformers 5.17.0, and its inference "
               "is not modelled; measure it")  # fmt: skip
    mixers = [layer.mixer for layer, _, _ in run.arch.runs]
    if run.attention == "sdpa" and not all(getattr(mixer, "sdpa", True) for mixer in mixers):
        yield (f"inference.attention='sdpa' does not exist for {run.arch.family} in transformers; "
               "use 'eager'")  # fmt: skip
    if run.attention == "flash_attention_2":
        yield from _flash(run)
    if any(isinstance(mixer, StateSpace) for mixer in mixers):
        usual = {"cache_implementation": "dynamic", "num_beams": 1, "quantization": "none"}
        for key, only in usual.items():
            if given[key] != only:
                yield (f"inference.{key}={given[key]!r} is not modelled for state-space layers; "
                       f"set it to {only!r}")  # fmt: skip
    if run.draft is not None:
        yield from _assistance(run, run.draft)


def option_problems(given: Mapping[str, Any]) -> Iterator[str]:
    """What no model can be run with, by the options alone."""
    packed = given["quantization"]
    for key, only in ONE_VALUE.items():
        if given[key] != only:
            yield (f"inference.{key}={given[key]!r} is not modelled for transformers; "
                   f"set it to {only!r}")  # fmt: skip
    if packed not in QUANTIZATIONS:
        yield (f"inference.quantization={packed!r} is not modelled for transformers; "
               f"use {', '.join(map(repr, QUANTIZATIONS))}")  # fmt: skip
    elif packed != "none" and given["dtype"] == "fp32":
        yield (f"inference.quantization={packed!r} is not modelled with dtype='fp32'; "
               "use 'bf16' or 'fp16'")  # fmt: skip
    if given["num_speculative_tokens"] is not None and given["speculative_model"] is None:
        yield "inference.num_speculative_tokens needs a speculative_model, the assistant; add one"
    yield from _choices(given)


def _flash(run: Run) -> Iterator[str]:
    """flash-attn's package runs behind transformers' common interface
    (integrations/flash_attention.py); families with code of their own are left out.
    """
    if run.precision == "fp32":
        yield "inference.attention='flash_attention_2' has no fp32 kernel; use 'sdpa'"
    if run.options["cache_implementation"] == "static":
        yield ("inference.attention='flash_attention_2' with a static cache is not modelled; "
               "use 'sdpa'")  # fmt: skip
    if run.arch.family in NO_FLASH or not all(map(_flashes, run.arch.runs)):
        yield (f"inference.attention='flash_attention_2' is not modelled for {run.arch.family}; "
               "use 'sdpa' or 'eager'")  # fmt: skip


def _flashes(part: tuple[Layer, int, int]) -> bool:
    mixer = part[0].mixer
    return isinstance(mixer, Attention) and not (
        mixer.alibi
        or mixer.sinks
        or mixer.always_masked
        or not mixer.sdpa
        or mixer.head_dim > 256
        or mixer.head_dim % 8
        or (mixer.value_dim or mixer.head_dim) != mixer.head_dim
    )


def _assistance(run: Run, draft: Arch) -> Iterator[str]:
    """What generate cannot have assisted (generation/utils.py _assisted_decoding)."""
    given = run.options
    alone = {"batch_size": 1, "num_beams": 1, "num_return_sequences": 1, "do_sample": False,
             "cache_implementation": "dynamic", "quantization": "none"}  # fmt: skip
    for key, only in alone.items():
        if given[key] != only:
            yield (f"inference.{key}={given[key]!r} is not modelled with a speculative_model; "
                   f"set it to {only!r}")  # fmt: skip
    if not given["new_tokens"]:
        yield "inference.speculative_model has nothing to do where new_tokens is 0; leave it out"
    for title, arch in (("model", run.arch), ("inference.speculative_model", draft)):
        windows = any(one is not None for one in arch.windows)
        states = any(isinstance(layer.mixer, StateSpace) for layer, _, _ in arch.runs)
        if windows or states or arch.family in NO_CACHE:
            yield (f"{title}: assisted generation with sliding windows or states is not modelled; "
                   "leave speculative_model out")  # fmt: skip
    if draft.vocab != run.arch.vocab:
        yield (f"inference.speculative_model has a vocabulary of {draft.vocab}, the model one of "
               f"{run.arch.vocab}; they must be the same")  # fmt: skip


def _choices(given: Mapping[str, Any]) -> Iterator[str]:
    """What does not go together, as generation/configuration_utils.py validate has it."""
    if given["cache_implementation"] not in CACHES:
        yield (f"inference.cache_implementation={given['cache_implementation']!r} is not modelled; "
               "use 'dynamic' or 'static'")  # fmt: skip
    if given["num_beams"] > 1 and given["do_sample"]:
        yield "inference.do_sample with num_beams > 1 is not modelled; leave one of them out"
    many, beams = given["num_return_sequences"], given["num_beams"]
    if many > beams > 1 or (many > 1 and beams == 1 and not given["do_sample"]):
        yield (f"inference.num_return_sequences={many} is more than one search finds: set "
               "num_beams to as many at least, or do_sample")  # fmt: skip
    usual = {"cache_implementation": "dynamic", "num_beams": 1, "do_sample": False}
    for key, only in usual.items() if not given["new_tokens"] else ():
        if given[key] != only:
            yield f"inference.{key} acts on tokens that are generated; set new_tokens, or leave it"
    for key in ("top_k", "top_p"):
        if given[key] is not None and not given["do_sample"]:
            yield f"inference.{key} acts on sampling alone; set do_sample, or leave it out"
