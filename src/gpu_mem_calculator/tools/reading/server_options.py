"""What vLLM and SGLang share: the YAML file of options that --config names, as the words of a
command; dtypes and formats of weights; and the GPUs of a server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...runfile.resolve.serving_split import server_gpus
from ...runfile.text.errors import InputError, quoted
from .command import Command
from .named_files import NamedFiles
from .option_values import DTYPES, add_limit, chosen
from .options import OptionSyntax
from .reading import Limit, Reading, Section

CONFIG = "--config"
AUTO = "auto"  # as the model has it
SERVER_DTYPES = {AUTO: None, "half": "fp16", "float": "fp32", **DTYPES}
NOT_READ = "changes the model's config.json, which is not read"
QUANTIZES = "quantizes weights while they are loaded, which is not modelled"
# What names of quantized checkpoints contain.
HINTS = re.compile(
    r"awq|gptq|fp8|fp4|int4|int8|w4a|w8a|quant|[48]-?bit|gguf|bnb|mxfp|auto-?round|gpt-oss", re.I
)


def with_config(words: Sequence[str], files: NamedFiles, syntax: OptionSyntax) -> list[str]:
    """The words with those of the file that --config names in front: the command wins."""
    rest, names = _without_config(words)
    if len(names) > 1:
        raise InputError(f"{CONFIG} is given {len(names)} times; give one file")
    if not names:
        return rest
    data = files.data(names[0], CONFIG)
    if not isinstance(data, Mapping):
        raise InputError(f"{CONFIG} {names[0]}: must be options and their values, one a line")
    positional = rest[:1] if rest and not rest[0].startswith("-") else []
    return [*positional, *config_words(data, syntax), *rest[len(positional) :]]


def config_words(data: Mapping[str, Any], syntax: OptionSyntax) -> list[str]:
    """The words of a file's options."""
    return [word for key, value in data.items() for word in _words(str(key), value, syntax)]


def _words(key: str, value: Any, syntax: OptionSyntax) -> Iterator[str]:
    name = key.replace("-", "_")
    if isinstance(value, bool) and name.removeprefix("no_") in syntax.flags:
        if value or name in syntax.flags:
            yield f"--{key}" if value else f"--no-{key}"
    elif isinstance(value, list):
        yield from (f"--{key}", *map(_text, value)) if value else ()
    elif value is not None:
        yield from (f"--{key}", _text(value))


def _text(value: Any) -> str:
    if isinstance(value, Mapping | list):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _without_config(words: Sequence[str]) -> tuple[list[str], list[str]]:
    rest: list[str] = []
    names: list[str] = []
    pending = iter(words)
    for word in pending:
        name, sign, value = word.partition("=")
        if name != CONFIG:
            rest.append(word)
        elif sign:
            names.append(value)
        elif (following := next(pending, None)) is None:
            raise InputError(f"{CONFIG} needs the name of a YAML file after it")
        else:
            names.append(following)
    return rest, names


def plain_keys(
    given: Mapping[str, Any], keys: Mapping[str, str], convert: Callable[[str, Any], Any]
) -> Section:
    """Keys whose value is that of an option; `keys` has the key of each option."""
    said = {name: given[name] for name in keys if given.get(name) is not None}
    return {keys[name]: convert(name, value) for name, value in said.items()}


def dtype_keys(
    reading: Reading, given: Mapping[str, Any], caches: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Keys for the dtypes of weights and cache; `caches` has the words of --kv-cache-dtype."""
    dtype = SERVER_DTYPES[chosen("dtype", given.get("dtype", AUTO), SERVER_DTYPES)]
    if dtype:
        yield "dtype", dtype
    cache = str(given.get("kv_cache_dtype", AUTO))
    if cache in caches:
        yield "kv_cache_dtype", caches[cache]
    elif cache != AUTO:
        add_limit(reading, "kv_cache_dtype", cache, "is a cache that is not modelled", "less")


def quantization_key(
    reading: Reading, method: str, formats: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """The key for a format that weights are quantized to; its name is empty where it is not
    modelled, and missing where it is the checkpoint's own.
    """
    if formats.get(method):
        yield "quantization", formats[method]
    elif method in formats:
        add_limit(reading, "quantization", method, QUANTIZES, "less")


def name_device(reading: Reading, device: Any) -> None:
    """Add a limit for a device that is no NVIDIA GPU."""
    if device is not None and str(device).partition(":")[0] not in ("auto", "cuda"):
        why = "is no NVIDIA GPU; the estimate is made for one"
        add_limit(reading, "device", device, why, "either")


def server_hardware(
    reading: Reading, section: Section, nodes: int, command: Command, name: str
) -> Section:
    """The `hardware` section for the GPUs of all ranks; fewer visible GPUs than a node needs are a
    problem, which the option `name` can solve.
    """
    gpus, visible = server_gpus(section), command.num_gpus
    if visible is not None and nodes == 1 and visible < gpus:
        few = f"{command.given_by} gives {visible} of the {gpus} GPUs that the command needs"
        reading.problems.append(f"{few}; give more, or lower {name}")
    return {"num_gpus": gpus, **({"num_nodes": nodes} if nodes > 1 else {})}


def add_checkpoint_limit(reading: Reading, method: Any, model: str) -> None:
    """A limit where --quantization names a checkpoint's format, and the model's name does not."""
    if method is not None and not HINTS.search(model):
        why = "says that the checkpoint is quantized; weights are counted as config.json has them"
        key = f"--quantization={quoted(method)}"
        reading.limits.append(Limit(key=key, why=why, could="less"))
