"""The command with which Ollama starts a server as it was estimated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...catalog.model_names import spelled
from ...run.run import Run
from ...run.served import checkpoint_word
from ...serving.llamacpp.options import SLOT_KEYS, cache_types, file_type
from ..translation.arguments import argument_data
from ..translation.at_release import at_release
from .read import FOLDER, LENGTH, TARGET, read_name

SAID = {  # by the variables and the model's name; others only a Modelfile or llama-server says
    *("engine", "engine_version", "ollama_version", "dtype", "quantization", "max_seq_len"),
    *("prompt_len", "new_tokens", "kv_cache_dtype", "cache_type_k", "cache_type_v"),
    *("flash_attn", "fit", "fit_target", "tensor_parallel_size", *SLOT_KEYS),
}
CACHES = ("f16", "q8_0", "q4_0")


def start_words(run: Run, given: Mapping[str, Any], model: str) -> tuple[str, ...]:
    """`ollama run` behind the variables of its server; empty where Ollama does not start it, or
    where they cannot say what is `given`, the keys of the run file.
    """
    options, slots = run.options, next((given[key] for key in SLOT_KEYS if given.get(key)), 0)
    keys, values = cache_types(run)
    tokens, rest = divmod(options["max_seq_len"] or 0, slots or 1)
    unsaid = given.keys() - SAID or rest or tokens > run.arch.max_seq_len
    if not options["ollama_version"] or unsaid or keys != values or keys not in CACHES:
        return ()
    kind = file_type(run) or ""
    name = library_name(model, kind) or checkpoint_word(run)
    if run.stored_form == "gguf":
        name = f"hf.co/{model}:{kind}"
    words = (f"{LENGTH}={tokens}", *_variables(options, slots, keys))
    there = at_release("ollama/variables", str(options["ollama_version"]), {})
    if there and any(one.partition("=")[0] not in there.names for one in words):
        return ()
    return (*words, "ollama", "run", name)


def _variables(options: Mapping[str, Any], slots: int, cache: str) -> Iterator[str]:
    """The variables that have other than Ollama's defaults."""
    if slots:
        yield f"OLLAMA_NUM_PARALLEL={slots}"
    if cache != CACHES[0]:
        yield f"OLLAMA_KV_CACHE_TYPE={cache}"
    if options["flash_attn"] is not None:
        yield f"OLLAMA_FLASH_ATTENTION={int(options['flash_attn'])}"
    if options["fit"] is False:
        yield "LLAMA_ARG_FIT=off"
    if options["fit_target"] is not None:
        yield f"{TARGET}={options['fit_target']}"


def library_name(model: str, kind: str) -> str:
    """The name that a model has in Ollama's library with weights of a type; empty for none."""
    row, library = spelled(model), argument_data("library", FOLDER)
    if row is None:
        return ""
    others = [one for one, name in library["models"].items() if spelled(name) is row]
    tail = {"F16": "fp16", "F32": "fp32"}.get(kind, f"{kind[:1].lower()}{kind[1:]}")
    for title in (row["name"], *others):
        parts = title.split("-")
        for i in range(1, len(parts)):
            family, tag = "-".join(parts[:i]), "-".join(parts[i:])
            for name in (f"{family}:{tag}", f"{family}:{tag}-{tail}"):
                found = read_name(name) if family in library["latest"] else None
                if found and found.quantization == kind and spelled(found.model) is row:
                    return name
    return ""
