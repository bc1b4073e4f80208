"""No network: a traced script downloads and uploads nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "WANDB_MODE": "disabled",
    "WANDB_DISABLED": "true",
    "COMET_MODE": "DISABLED",
    "TOKENIZERS_PARALLELISM": "false",
    "HYDRA_FULL_ERROR": "1",  # a script's own traceback
}
LOCAL = ("127.0.0.1", "::1", "localhost", "0.0.0.0", "")


class NetworkError(OSError):
    """A traced script asked for another machine."""


@contextmanager
def offline() -> Iterator[None]:
    """Refuse connections to other machines."""
    connect, find = socket.socket.connect, socket.getaddrinfo

    def refuse(host: Any) -> NoReturn:
        raise NetworkError(f"the script asked for {host}, and a trace refuses the network")

    def connected(self: Any, address: Any) -> Any:
        if isinstance(address, tuple) and address[0] not in LOCAL:
            refuse(address[0])
        return connect(self, address)

    def found(host: Any, *args: Any, **kwargs: Any) -> Any:
        text = host.decode() if isinstance(host, bytes) else host
        if text is not None and text not in LOCAL and text != socket.gethostname():
            refuse(text)
        return find(host, *args, **kwargs)

    with (
        patch.dict(os.environ, SETTINGS),
        patch.object(socket.socket, "connect", connected),
        patch.object(socket, "getaddrinfo", found),
    ):
        yield
