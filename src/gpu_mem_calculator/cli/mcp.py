"""Answer agents by the Model Context Protocol, on standard input and output.

Six tools: check, estimate, serve, plan, diagnose, compare. With --http they are
served on this machine's address, and open no files.
"""

from __future__ import annotations

import argparse
import os

from .. import catalog
from ..ledger.extras import install
from ..runfile.text.errors import InputError

MISSING = f"mcp needs more packages: {install('mcp')}"
HTTP_ALONE = ("host", "port", "hub")  # options of --http


def run(args: argparse.Namespace) -> int:
    """Serve one client on standard input and output, or with --http several."""
    given = [name for name in HTTP_ALONE if getattr(args, name) is not None]
    if given and not args.http:
        raise InputError(f"--{given[0]} is for --http; add it, or leave --{given[0]} out")
    try:
        from ..web.agents.server import run_on_http, run_on_stdio
    except ModuleNotFoundError as error:
        if str(error.name).startswith("gpu_mem_calculator"):
            raise
        raise InputError(MISSING) from None
    from ..web.settings import PREFIX, from_options

    catalog.names("gpus")  # a mistake in the user's own cards stops it here
    if args.http:
        run_on_http(from_options(vars(args), os.environ))
    else:  # a user's own process looks models up, as the other commands do
        run_on_stdio(from_options({}, {f"{PREFIX}HUB": "true", **os.environ}))
    return 0
