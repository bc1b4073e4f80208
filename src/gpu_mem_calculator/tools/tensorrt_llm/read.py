"""Commands of trtllm-serve, and the YAML file of --extra_llm_api_options.

TensorRT-LLM 1.2.1 tensorrt_llm/commands/serve.py and llmapi/llm_args.py: the file's keys are those
of LlmArgs, and win over options.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...ledger.frameworks import TENSORRT_LLM
from ...runfile.text.errors import InputError, quoted
from ..reading.command import Command
from ..reading.keys import sort_keys
from ..reading.named_files import NamedFiles
from ..reading.option_values import DTYPES, translated
from ..reading.options import option_syntax, parse_options
from ..reading.reading import Limit, Reading, Section
from ..translation.arguments import argument_table, flat_arguments, tables

FOLDER = Path(__file__).parent
FILE = "extra_llm_api_options"
GRAPHS, ON_EACH_RANK = "cuda_graph_config", "enable_attention_dp="
# Options and keys whose value has the same meaning in a run file.
SAME: dict[str, str] = tables(__file__)["same"]
BACKENDS = {"pytorch": "pytorch", "tensorrt": "tensorrt", "trt": "tensorrt"}
CACHES = {"auto": "auto", "fp8": "fp8", "nvfp4": "nvfp4", "bfloat16": "bf16", "float16": "fp16"}
# decoding_type, and what the run file calls it.
METHODS = {"ngram": "ngram", "draft_target": "draft_target", "eagle": "eagle3", "eagle3": "eagle3"}


def read_command(command: Command) -> Reading:
    """What a command of trtllm-serve means."""
    reading = Reading(tool="trtllm-serve", version=TENSORRT_LLM.version)
    words = list(command.words[1:])
    words = words[1:] if words[:1] == ["serve"] else words
    table, syntax = argument_table("arguments", FOLDER), option_syntax("arguments", FOLDER)
    parsed = parse_options(reading.tool, words, table, syntax)
    reading.problems += parsed.problems
    if not parsed.positional:
        raise InputError("trtllm-serve names no model; write it after trtllm-serve")
    if parsed.positional[0] in ("mm_embedding_serve", "disaggregated", "disaggregated_mpi_worker"):
        raise InputError(f"trtllm-serve {parsed.positional[0]} is not read; use trtllm-serve MODEL")
    reading.problems += [f"{word!r} is a second model" for word in parsed.strays[1:]]
    values = sort_keys(reading, table, parsed.values, "--")
    values["model"] = parsed.positional[0]
    file = values.pop(FILE, None)
    if file is not None:
        values |= _file_values(reading, command.files.data(str(file), f"--{FILE}"))
    _add(reading, values)
    return reading


def read_data(data: Any, files: NamedFiles) -> Reading:
    """What a file of LlmArgs means; its model may be missing."""
    reading = Reading(tool="TensorRT-LLM's options", version=TENSORRT_LLM.version)
    _add(reading, _file_values(reading, data))
    return reading


def _file_values(reading: Reading, data: Any) -> dict[str, Any]:
    """The keys of a file of LlmArgs, with dots."""
    if not isinstance(data, Mapping):
        raise InputError(f"--{FILE} must name a file of keys and values, not {quoted(data)}")
    table = argument_table("llm_args", FOLDER)
    given = dict(data)
    off = GRAPHS in given and given[GRAPHS] is None
    sections = {name.partition(".")[0] for name in table if "." in name}
    for name in sections & given.keys():
        if given[name] is None or given[name] == {}:
            del given[name]
            reading.keys[name] = "memory"
        elif not isinstance(given[name], Mapping):
            raise InputError(f"{name}={quoted(given[name])} must have keys of its own")
    values = sort_keys(reading, table, flat_arguments(table, given))
    return values | ({GRAPHS: None} if off else {})


def _add(reading: Reading, values: Mapping[str, Any]) -> None:
    """Add the sections of the run file."""
    if values.get("model") is not None:
        reading.run["model"] = {"name": str(values["model"])}
        if values.get("revision") is not None:
            reading.run["model"]["revision"] = str(values["revision"])
    section: Section = {"engine": "tensorrt_llm"}
    section |= {key: values[name] for name, key in SAME.items() if values.get(name) is not None}
    backend = str(values.get("backend") or "pytorch").lower()
    if backend in BACKENDS:
        section["engine_generation"] = BACKENDS[backend]
    else:
        why = "another way of running the model; the pytorch backend is estimated"
        reading.limits.append(Limit(key=f"--backend={backend}", why=why))
    if str(values.get("dtype") or "auto") != "auto":
        section["dtype"] = translated("dtype", str(values["dtype"]).lower(), DTYPES)
    cache = values.get("kv_cache_config.dtype") or values.get("kv_cache_dtype")
    if cache is not None:
        section["kv_cache_dtype"] = translated("kv_cache_config.dtype", str(cache).lower(), CACHES)
    _add_graphs(section, values)
    _add_drafts(reading, section, values)
    reading.run["inference"] = section
    sizes = (values.get(f"{one}_parallel_size") or 1 for one in ("tensor", "pipeline"))
    first, second = (one if isinstance(one, int) else 1 for one in sizes)
    reading.run["hardware"] = {"num_gpus": first * second}
    if first == 1:  # one rank has all of attention anyway
        reading.limits = [one for one in reading.limits if not one.key.startswith(ON_EACH_RANK)]
    if "max_num_seqs" not in section:
        reading.assumed.append("max_batch_size=2048 and max_num_tokens=8192, unless given")


def _add_graphs(section: Section, values: Mapping[str, Any]) -> None:
    """CUDA graphs: off, up to a size, or for a list of sizes."""
    sizes = values.get("cuda_graph_config.batch_sizes")
    if GRAPHS in values:
        section["enforce_eager"] = True
    elif sizes:
        if not isinstance(sizes, list) or not all(isinstance(one, int) for one in sizes):
            raise InputError(f"cuda_graph_config.batch_sizes={quoted(sizes)} must be numbers")
        section["cuda_graph_max_bs"] = max(sizes)
    elif section.get("cuda_graph_max_bs") == 0:
        del section["cuda_graph_max_bs"]


def _add_drafts(reading: Reading, section: Section, values: Mapping[str, Any]) -> None:
    """Speculative decoding, where the way of drafting is modelled."""
    kind = values.get("speculative_config.decoding_type")
    if kind is None:
        return
    if str(kind).lower() not in METHODS:
        why = "this way of drafting is not modelled; the server without it is estimated"
        key = f"speculative_config.decoding_type={kind}"
        reading.limits.append(Limit(key=key, why=why, could="more"))
        return
    section["speculative_method"] = METHODS[str(kind).lower()]
    count = values.get("speculative_config.max_draft_len")
    if count is not None:
        section["num_speculative_tokens"] = count
    names = ("speculative_config.speculative_model_dir", "speculative_config.speculative_model")
    model = next((values[name] for name in names if values.get(name) is not None), None)
    if model is not None:
        section["speculative_model"] = str(model)
