"""Where a KV connector keeps copies of the cache, as keys of `inference`.

LMCache reads variables of its environment, or a file (LMCache 000620e3 integration/vllm/utils.py
lmcache_get_or_create_config); its connector's extra config wins. Each rank pins a buffer of its
size, without rounding (v1/memory_management.py _allocate_cpu_memory, v1/storage_backend/
local_cpu_backend.py initialize_allocator).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...ledger.units import GIB
from ...ledger.words import words
from ...runfile.text.errors import InputError, quoted
from ..reading.command import Command
from ..reading.option_values import add_limit, option, real_number
from ..reading.options import parsed_value
from ..reading.reading import Limit, Reading, Section
from .translate import CONNECTOR

EXTRA = "kv_transfer_config.kv_connector_extra_config"
NATIVE, LMCACHE = "OffloadingConnector", "LMCacheConnectorV1"
PREFIX, FILE = "LMCACHE_", "LMCACHE_CONFIG_FILE"
SIZE, CHUNK = "max_local_cpu_size", "chunk_size"
DEFAULT_GIB, DEFAULT_CHUNK = 5.0, 256  # v1/config.py
BUFFERS = (
    "sends keys and values to other processes or the host, through buffers that are not modelled"
)
# What changes neither the buffer on the host nor that of a chunk on the GPU (v1/config.py).
FREE = words("""
    local_cpu local_disk max_local_disk_size remote_url remote_serde use_experimental log_level
    lmcache_instance_id instance_id cache_policy save_decode_cache save_unfull_chunk track_usage
    reserve_local_cpu_size numa_mode lookup_timeout_ms enable_controller controller_url
    lmcache_worker_port distributed_url error_handling min_retrieve_tokens priority_limit
    pre_caching_hash_algorithm weight_files internal_api_server_enabled
    internal_api_server_port_start
""")


def connector_keys(reading: Reading, kept: Mapping[str, Any], command: Command) -> Section:
    """The keys for a connector; one that is not modelled becomes a limit."""
    name = kept.get(CONNECTOR)
    extra = kept.get(EXTRA) or {}
    if not isinstance(extra, Mapping):
        raise InputError(f"{option(EXTRA)}={quoted(extra)} must be an object")
    if name == NATIVE and extra.get("cpu_bytes_to_use"):
        size = real_number(f"{EXTRA}.cpu_bytes_to_use", extra["cpu_bytes_to_use"])
        return {"kv_offloading_size": size / GIB}
    if name == LMCACHE:
        return {"lmcache_size": _lmcache(reading, extra, command)}
    if name is not None:
        add_limit(reading, CONNECTOR, name, BUFFERS, "more")
    return {}


def _lmcache(reading: Reading, extra: Mapping[str, Any], command: Command) -> float:
    """GiB of host RAM of each rank; what changes LMCache's buffers becomes a limit."""
    size = DEFAULT_GIB
    for key, value, written in _settings(extra, command):
        if key == SIZE:
            size = real_number(written, value)
        elif key not in FREE and not (key == CHUNK and _number(value) <= DEFAULT_CHUNK):
            why = "changes LMCache's buffers, which is not modelled"
            reading.limits.append(Limit(key=f"{written}={quoted(value)}", why=why, could="more"))
    return size


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else DEFAULT_CHUNK + 1.0


def _settings(extra: Mapping[str, Any], command: Command) -> Iterator[tuple[str, Any, str]]:
    """LMCache's keys with their values, and how they are written; a later one wins."""
    given = command.environment
    if FILE in given:
        data = command.files.data(given[FILE], FILE)
        if not isinstance(data, Mapping):
            raise InputError(f"{FILE} {given[FILE]}: must be keys and values")
        yield from ((str(key), value, str(key)) for key, value in data.items())
    for name, text in given.items():
        if name.startswith(PREFIX) and name != FILE:
            yield name.removeprefix(PREFIX).lower(), parsed_value(text), name
    for key, value in extra.items():
        if str(key).startswith("lmcache."):
            yield str(key).removeprefix("lmcache."), value, str(key)
