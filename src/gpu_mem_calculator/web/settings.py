"""What an operator may set, each by an environment variable `GPU_MEM_CALC_<NAME>`.

The defaults are safe: this machine alone can reach the service, and a client can make it read
neither a file nor an address.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from ..core.errors import InputError

PREFIX = "GPU_MEM_CALC_"
Port = Annotated[int, Meta(ge=0, le=65535, description="a port, 0 to 65535")]
Few = Annotated[int, Meta(ge=1, le=256, description="a whole number from 1 to 256")]
Many = Annotated[int, Meta(ge=1, le=2**30, description="a whole number from 1 to 2**30")]
Seconds = Annotated[float, Meta(gt=0, le=3600, description="seconds, above 0 and up to 3600")]


class Settings(Struct, frozen=True, kw_only=True):
    """How the service is run. Times are seconds; every process of the service has its own lanes."""

    host: str = "127.0.0.1"
    port: Port = 8000
    workers: Few = 1  # processes that answer
    hub: bool = False  # may a client have a model looked up on the hub?
    hub_hosts: list[str] = field(default_factory=list)  # beside the hub's own, for its redirects
    body_bytes: Many = 2**20  # the largest request
    body_seconds: Seconds = 10.0  # for a request's body to arrive
    quick_processes: Few = 1  # that answer from the ledger
    quick_seconds: Seconds = 5.0
    slow_processes: Few = 1  # that replay
    slow_seconds: Seconds = 30.0
    waiting: Few = 64  # requests that may wait for a lane; the next is told to come back
    known_bytes: Annotated[int, Meta(ge=0, le=2**34)] = 16 * 2**20  # of answers to give again
    process_bytes: Annotated[int, Meta(ge=2**28)] = 4 * 2**30  # what a calculation may take
    log_level: str = "info"


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings that an environment gives; every problem at once."""
    given: dict[str, Any] = {}
    problems = []
    for name in Settings.__struct_fields__:
        text = environment.get(PREFIX + name.upper())
        if text is None or text == "":
            continue
        value: Any = text.split(",") if name == "hub_hosts" else text
        try:
            given[name] = msgspec.convert(value, _type(name), strict=False)
        except msgspec.ValidationError as error:
            problems.append(f"{PREFIX}{name.upper()}={text!r}: {str(error).lower()}")
    if problems:
        raise InputError(problems)
    return Settings(**given)


def environment(settings: Settings) -> dict[str, str]:
    """The same as variables, for the processes that answer."""
    plain: dict[str, Any] = msgspec.to_builtins(settings)
    return {
        PREFIX + name.upper(): ",".join(value) if isinstance(value, list) else str(value)
        for name, value in plain.items()
    }


def _type(name: str) -> Any:
    from typing import get_type_hints

    return get_type_hints(Settings, include_extras=True)[name]
