"""The `infer` command line that describes a server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...serving import USUAL

# Options of `infer` that set one key of the run file each.
FLAGS = {
    "inference.engine": "--engine",
    "hardware.gpu": "--gpu",
    "hardware.gpu_memory_gb": "--gpu-mem",
    "hardware.num_gpus": "--gpus",
    "inference.tensor_parallel_size": "--tp",
    "inference.pipeline_parallel_size": "--pp",
    "inference.data_parallel_size": "--dp",
    "inference.expert_parallel_size": "--ep",
    "inference.max_seq_len": "--max-model-len",
    "inference.dtype": "--dtype",
    "inference.quantization": "--quantization",
    "inference.kv_cache_dtype": "--kv-cache-dtype",
    "inference.gpu_memory_utilization": "--gpu-memory-utilization",
    "inference.max_num_seqs": "--max-num-seqs",
    "inference.max_num_batched_tokens": "--max-num-batched-tokens",
    "inference.batch_size": "--users",
    "inference.prompt_len": "--prompt-len",
    "inference.new_tokens": "--new-tokens",
}
EAGER, RELEASE = "inference.enforce_eager", "releases"
RUN_FILE = "run.json"  # where the model is more than a name


class InferCommand:
    """The words of a command: its model or its file, and the keys that it sets."""

    def __init__(self, source: Sequence[str], keys: Mapping[str, str]) -> None:
        self.source, self.keys = tuple(source), dict(keys)

    def words(self, settings: Sequence[str] = ()) -> list[str]:
        """The words with `section.key=value` settings; a value of null leaves a key out."""
        keys = self.keys | dict(_pair(setting) for setting in settings)
        if self.source[:1] != ("--config",):  # nothing to remove from a file
            keys = {key: value for key, value in keys.items() if value != "null"}
        return ["gpu-mem-calc", "infer", *self.source, *_options(keys)]


def infer_command(run: Mapping[str, Any]) -> InferCommand:
    """The command that describes a run file's data."""
    model = dict(run.get("model", {}))
    name = model.pop("name", None)
    plain = name is not None and not any(isinstance(v, Mapping) for v in model.values())
    sections = ({"model": model} if plain else {}) | {
        section: run[section] for section in ("inference", "hardware") if section in run
    }
    keys = {
        f"{section}.{key}": value_text(value)
        for section, values in sections.items()
        for key, value in values.items()
        if value is not None
        and key != "node_memory_read_from"
        and (section, key, value) != ("inference", "engine", USUAL)
    }
    if "inference.engine_version" not in keys:
        keys |= release_keys(run)
    return InferCommand([name] if plain else ["--config", RUN_FILE], keys if plain else {})


def release_keys(run: Mapping[str, Any]) -> dict[str, str]:
    """The release of a server that stands beside the sections of its run file, as --at names it."""
    named = [f"{name}={one['release']}" for name, one in (run.get(RELEASE) or {}).items()]
    return {RELEASE: ",".join(named)} if named else {}


def value_text(value: Any) -> str:
    """A value as `--set` reads it."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


def _pair(setting: str) -> tuple[str, str]:
    key, _, value = setting.partition("=")
    return key, value


def _options(keys: Mapping[str, str]) -> Iterator[str]:
    order = {key: place for place, key in enumerate(FLAGS)}
    for key in sorted(keys, key=lambda one: order.get(one, len(order))):
        value = keys[key]
        if key == RELEASE:
            yield from ("--at", value)
        elif key == EAGER and value == "true":
            yield "--enforce-eager"
        elif key in FLAGS and value != "null":
            yield from (FLAGS[key], value)
        else:
            yield from ("--set", f"{key}={value}")
