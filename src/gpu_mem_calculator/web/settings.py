"""The operator's settings, each an environment variable `GPU_MEM_CALC_<NAME>`.

The defaults are safe: this machine alone can reach the service, and a client can make it read
neither a file nor an address.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta, Struct, field

from ..ledger.extras import install
from ..ledger.units import GIB, MIB
from ..runfile.text.errors import InputError

PREFIX = "GPU_MEM_CALC_"
Port = Annotated[int, Meta(ge=0, le=65535, description="a port, 0 to 65535")]
Few = Annotated[int, Meta(ge=1, le=256, description="a whole number from 1 to 256")]
Many = Annotated[int, Meta(ge=1, le=2**30, description="a whole number from 1 to 2**30")]
Seconds = Annotated[float, Meta(gt=0, le=3600, description="seconds, above 0 and up to 3600")]


class ServiceSettings(Struct, frozen=True, kw_only=True):
    """The settings of the service; `tables.toml` says what each one is."""

    host: str = "127.0.0.1"
    port: Port = 8000
    workers: Few = 1
    hub: bool = False
    hub_hosts: list[str] = field(default_factory=lambda: [".hf.co"])
    allowed_hosts: list[str] = field(default_factory=list)
    body_bytes: Many = MIB
    snapshot_bytes: Many = 64 * MIB
    body_seconds: Seconds = 10.0
    quick_processes: Few = 2
    quick_seconds: Seconds = 5.0
    slow_processes: Few = 2
    slow_seconds: Seconds = 30.0
    plan_processes: Few = 2
    plan_seconds: Seconds = 120.0
    waiting: Few = 64
    client_requests: Few = 32
    known_bytes: Annotated[int, Meta(ge=0, le=2**34)] = 16 * MIB
    process_bytes: Annotated[int, Meta(ge=2**28, le=2**40)] = 4 * GIB
    log_level: Literal["debug", "info", "warning", "error"] = "info"


LISTS = ("hub_hosts", "allowed_hosts")


def from_environment(environment: Mapping[str, str] = os.environ) -> ServiceSettings:
    """The settings of an environment; every problem is raised at once."""
    values: dict[str, Any] = {}
    types, problems = get_type_hints(ServiceSettings, include_extras=True), []
    for name in ServiceSettings.__struct_fields__:
        text = environment.get(PREFIX + name.upper())
        if text is None or text == "":
            continue
        value: Any = text.split(",") if name in LISTS else text
        try:
            values[name] = msgspec.convert(value, types[name], strict=False)
        except msgspec.ValidationError as error:
            problems.append(f"{PREFIX}{name.upper()}={text!r}: {str(error).lower()}")
    if problems:
        raise InputError(problems)
    return ServiceSettings(**values)


def from_options(
    options: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> ServiceSettings:
    """The settings of an environment, over which options of the same names win."""
    given = {name: options.get(name) for name in ServiceSettings.__struct_fields__}
    named = {PREFIX + k.upper(): str(v) for k, v in given.items() if v is not None}
    return from_environment({**environment, **named})


def environment(settings: ServiceSettings) -> dict[str, str]:
    """The settings as environment variables, for the processes that answer."""
    values: dict[str, Any] = msgspec.to_builtins(settings)
    return {
        PREFIX + name.upper(): ",".join(value) if isinstance(value, list) else str(value)
        for name, value in values.items()
    }


def limit_memory(settings: ServiceSettings) -> None:
    """Limit this process's address space to `process_bytes`; not on Windows."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (settings.process_bytes, settings.process_bytes))


def allowed_hosts(settings: ServiceSettings, endpoint: str) -> frozenset[str]:
    """The hosts that models may be looked up on, the hub's own among them; none without `hub`."""
    from urllib.parse import urlsplit

    if not settings.hub:
        return frozenset()
    hub = urlsplit(endpoint).hostname
    return frozenset(filter(None, [hub, *settings.hub_hosts]))


def import_service(module: str, extra: str, what: str) -> ModuleType:
    """A module of the service; raises a sentence that says how to install what it lacks."""
    try:
        return import_module(f".{module}", __package__)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("gpu_mem_calculator"):
            raise
        raise InputError(f"{what} needs more packages: {install(extra)}") from None
