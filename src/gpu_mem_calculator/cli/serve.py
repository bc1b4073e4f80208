"""The web page and its API, on this machine unless told otherwise."""

from __future__ import annotations

import argparse
from typing import Any

from ..core.errors import InputError
from .parser import Parser, natural, whole

EXAMPLES = """\
examples:
  gpu-mem-calc serve
  gpu-mem-calc serve --port 9000 --workers 2
  gpu-mem-calc serve --host 0.0.0.0 --hub

Everything else is an environment variable: docs/web.md."""
MISSING = "the web page needs more packages: pip install 'gpu-mem-calculator[web]'"


def arguments(parser: Parser) -> None:
    """Add the options of `serve`."""
    parser.option("--host", "NAME", "where to listen (127.0.0.1)")
    parser.option("--port", "N", "the port (8000)", natural)
    parser.option("--workers", "N", "processes that answer (1)", whole)
    parser.flag("--hub", "let visitors have models looked up on the hub", default=None)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted; options override the environment."""
    try:
        from ..web.run import run as serve
    except ModuleNotFoundError as error:
        if str(error.name).startswith("gpu_mem_calculator"):
            raise
        raise InputError(MISSING) from None
    from ..web.settings import PREFIX, from_environment

    options: dict[str, Any] = {k: getattr(args, k) for k in ("host", "port", "workers", "hub")}
    variables = {PREFIX + k.upper(): str(v) for k, v in options.items() if v is not None}
    import os

    serve(from_environment({**os.environ, **variables}))
    return 0
