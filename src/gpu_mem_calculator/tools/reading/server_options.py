"""What vLLM and SGLang share: dtypes, formats of weights, and the GPUs of a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .option_values import DTYPES, add_limit, chosen
from .reading import Reading, Section

SERVER_DTYPES = {"auto": None, "half": "fp16", "float": "fp32", **DTYPES}
NOT_READ = "changes the model's config.json, which is not read"
QUANTIZES = "quantizes weights while they are loaded, which is not modelled"


def dtype_keys(
    reading: Reading, given: Mapping[str, Any], caches: Mapping[str, str | None]
) -> Iterator[tuple[str, str]]:
    """Keys for the dtypes of weights and cache; `caches` has the words of --kv-cache-dtype."""
    dtype = SERVER_DTYPES[chosen("dtype", given.get("dtype", "auto"), SERVER_DTYPES)]
    if dtype:
        yield "dtype", dtype
    cache = str(given.get("kv_cache_dtype", "auto"))
    if cache not in caches:
        add_limit(reading, "kv_cache_dtype", cache, "is a cache that is not modelled", "less")
    elif caches[cache]:
        yield "kv_cache_dtype", str(caches[cache])


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
    reading: Reading, gpus: int, nodes: int, visible: int | None, name: str, given_by: str
) -> Section:
    """The `hardware` section; fewer visible GPUs than a node needs are a problem, which the option
    `name` can solve. `given_by` says where the number of visible ones stands.
    """
    if visible is not None and nodes == 1 and visible < gpus:
        few = f"{given_by} gives {visible} of the {gpus} GPUs that the command needs"
        reading.problems.append(f"{few}; give more, or lower {name}")
    return {"num_gpus": gpus, **({"num_nodes": nodes} if nodes > 1 else {})}
