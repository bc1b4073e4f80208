"""Commands of text-generation-launcher.

text-generation-inference 3.3.7 launcher/src/main.rs: each option is also an environment variable,
in upper case.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...ledger.frameworks import TGI
from ...runfile.text.errors import InputError, quoted
from ..reading.command import Command
from ..reading.keys import sort_keys
from ..reading.option_values import translated, whole_value
from ..reading.options import option_syntax, parse_options
from ..reading.reading import Limit, Reading, Section
from ..translation.arguments import argument_table, tables

TABLES = tables(__file__)
FOLDER = Path(__file__).parent
DEFAULT_MODEL = "bigscience/bloom-560m"
# Options whose value has the same meaning in a run file.
SAME: dict[str, str] = TABLES["same"]
QUANTIZATION: dict[str, str] = TABLES["quantization"]  # empty: as the checkpoint says
SIMILAR: dict[str, str] = TABLES["similar"]
DTYPES = {"float16": "fp16", "bfloat16": "bf16"}
CACHES = {"fp8_e4m3fn": "fp8", "fp8_e5m2": "fp8"}


def read_command(command: Command) -> Reading:
    """What a command of text-generation-launcher means."""
    reading = Reading(tool="text-generation-launcher", version=TGI.version)
    table, syntax = argument_table("arguments", FOLDER), option_syntax("arguments", FOLDER)
    parsed = parse_options(reading.tool, command.words[1:], table, syntax)
    reading.problems += parsed.problems
    reading.problems += [f"{word!r} is no option of {reading.tool}" for word in parsed.strays]
    given = _variables(command.environment, table, syntax.flags) | parsed.values
    values = sort_keys(reading, table, given, "--")
    reading.run["model"] = {"name": str(values.get("model-id") or DEFAULT_MODEL)}
    if "model-id" not in values:
        reading.assumed.append(f"{DEFAULT_MODEL} (--model-id)")
    if values.get("revision") is not None:
        reading.run["model"]["revision"] = str(values["revision"])
    reading.run["inference"] = {"engine": "tgi", **_inference(reading, values)}
    shards = _shards(reading, values, command.num_gpus)
    if shards is not None:
        reading.run["inference"]["tensor_parallel_size"] = shards
        reading.run["hardware"] = {"num_gpus": shards}
    return reading


def _variables(
    environment: Mapping[str, str], table: Mapping[str, Any], flags: frozenset[str]
) -> dict[str, Any]:
    """The options that environment variables set; an option of the command wins over them."""
    texts = {name: environment.get(name.upper().replace("-", "_")) for name in table}
    return {
        name: text.lower() in ("true", "1", "yes", "on") if name in flags else _number(text)
        for name, text in texts.items()
        if text
    }


def _inference(reading: Reading, values: Mapping[str, Any]) -> Section:
    """The keys of the `inference` section."""
    section: Section = {
        key: values[name] for name, key in SAME.items() if values.get(name) is not None
    }
    if values.get("dtype") is not None:
        section["dtype"] = translated("--dtype", values["dtype"], DTYPES)
    if values.get("kv-cache-dtype") is not None:
        section["kv_cache_dtype"] = translated("--kv-cache-dtype", values["kv-cache-dtype"], CACHES)
    if values.get("quantize") is not None:
        kind = translated("--quantize", values["quantize"], QUANTIZATION)
        section |= {"quantization": kind} if kind else {}
        similar = SIMILAR.get(str(values["quantize"]))
        if similar:
            reading.limits.append(Limit(key=f"--quantize={values['quantize']}", why=similar))
    if values.get("speculate"):
        section |= {"speculative_method": "ngram", "num_speculative_tokens": values["speculate"]}
        reading.assumed.append("drafts from n-grams; a model with Medusa heads uses those")
    if values.get("cuda-graphs") is not None:
        section["cuda_graphs"] = _sizes(values["cuda-graphs"])
    return section


def _shards(reading: Reading, values: Mapping[str, Any], num_gpus: int | None) -> int | None:
    """The GPUs of the server (launcher/src/main.rs find_num_shards); None where nobody says it."""
    given, sharded = values.get("num-shard"), values.get("sharded")
    if sharded is False:
        return 1
    if given is None:
        reading.assumed.append("a shard for each GPU (--num-shard)")
        return num_gpus
    return whole_value("--num-shard", given, least=1)


def _sizes(value: Any) -> list[int]:
    try:
        return [int(part) for part in str(value).split(",")]
    except ValueError:
        raise InputError(f"--cuda-graphs={quoted(value)} must be sizes such as 1,2,4") from None


def _number(text: str) -> Any:
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return {"true": True, "false": False}.get(text.lower(), text)
