"""Start the web page and its API; they listen on this machine only by default."""

from __future__ import annotations

import argparse
from typing import Any

from .. import catalog
from ..ledger.extras import install
from ..runfile.text.errors import InputError
from .parser import Parser, whole

MOST_PORTS = 65535
MISSING = f"the web page needs more packages: {install('web')}"


def arguments(parser: Parser) -> None:
    """Add the options of `serve`; a model is accepted, and answered with `infer`."""
    parser.add_argument("model", nargs="?", help=argparse.SUPPRESS)
    parser.option("--host", "NAME", "address to listen on (default: 127.0.0.1)")
    parser.option("--port", "N", "port to listen on (default: 8000)", port)
    parser.option("--workers", "N", "number of processes that answer (default: 1)", whole)
    parser.flag("--hub", "let visitors look up models on the Hugging Face hub", default=None)


def port(text: str) -> int:
    """A port's number."""
    if not (text.isdecimal() and len(text) <= 5 and int(text) <= MOST_PORTS):
        raise argparse.ArgumentTypeError(f"{text!r} must be a port from 0 to {MOST_PORTS}")
    return int(text)


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
