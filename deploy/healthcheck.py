"""Whether the `serve` that a container runs answers; one that runs another command passes.

The first process's command line says which it is and where it listens, as `serve` itself reads it:
its options win over the environment.
"""

from __future__ import annotations

import http.client
import os
import sys
from collections.abc import Mapping, Sequence

SECONDS = 4.0
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def option(words: Sequence[str], name: str, default: str) -> str:
    """The last value of an option, given as `--name value` or `--name=value`."""
    found = default
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == name:
            found = following
        elif word.startswith(f"{name}="):
            found = word.partition("=")[2]
    return found


def asked(words: Sequence[str], environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Where the service listens; None where the command is no service."""
    if "serve" not in words:
        return None
    host = option(words, "--host", environment.get("GPU_MEM_CALC_HOST") or "127.0.0.1")
    port = option(words, "--port", environment.get("GPU_MEM_CALC_PORT") or "8000")
    return ANYWHERE.get(host, host), int(port)


def answers(host: str, port: int) -> bool:
    """Whether the service there says that it runs; `docker inspect` shows what is printed."""
    connection = http.client.HTTPConnection(host, port, timeout=SECONDS)
    try:
        connection.request("GET", "/healthz")
        said: object = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        said = error
    finally:
        connection.close()
    print(f"{host} port {port}: {said}")
    return said == http.client.OK


def main() -> int:
    """0: it answers, or there is nothing to ask; 1: it does not."""
    with open("/proc/1/cmdline", encoding="utf-8") as file:
        place = asked(file.read().split("\0"), os.environ)
    return 0 if place is None or answers(*place) else 1


if __name__ == "__main__":
    sys.exit(main())
