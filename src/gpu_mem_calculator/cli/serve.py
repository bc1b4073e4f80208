"""Start the web page and its API; they listen on this machine only by default."""

from __future__ import annotations

import argparse
from typing import Any

from .. import catalog
from ..ledger.extras import install
from ..runfile.text.errors import InputError

MISSING = f"the web page needs more packages: {install('web')}"


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted; options override the environment."""
    if args.model is not None:
        start = "serve starts the web page; to estimate a server use"
        raise InputError(f"{start} gpu-mem-calc infer {args.model}")
    try:
        from ..web.run import run as serve
    except ModuleNotFoundError as error:
        if str(error.name).startswith("gpu_mem_calculator"):
            raise
        raise InputError(MISSING) from None
    from ..web.settings import PREFIX, from_environment

    catalog.names("gpus")  # a mistake in the user's own cards stops it here
    options: dict[str, Any] = {k: getattr(args, k) for k in ("host", "port", "workers", "hub")}
    variables = {PREFIX + k.upper(): str(v) for k, v in options.items() if v is not None}
    import os

    serve(from_environment({**os.environ, **variables}))
    return 0
