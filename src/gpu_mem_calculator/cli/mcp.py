"""Answer agents by the Model Context Protocol, on standard input and output.

Six tools: check, estimate, serve, plan, diagnose, compare. With --http they are
served on this machine's address, and open no files.
"""

from __future__ import annotations

import argparse
import os

from .. import catalog
from ..runfile.text.errors import InputError

HTTP_ALONE = ("host", "port", "hub")  # options of --http


def run(args: argparse.Namespace) -> int:
    """Serve one client on standard input and output, or with --http several."""
    given = [name for name in HTTP_ALONE if getattr(args, name) is not None]
    if given and not args.http:
        raise InputError(f"--{given[0]} is for --http; add it, or leave --{given[0]} out")
    from ..web.settings import PREFIX, from_options, import_service

    server = import_service("agents.server", "mcp", "mcp")
    catalog.names("gpus")  # a mistake in the user's own cards stops it here
    if args.http:
        server.run_on_http(from_options(vars(args), os.environ))
    else:  # a user's own process looks models up, as the other commands do
        server.run_on_stdio(from_options({}, {f"{PREFIX}HUB": "true", **os.environ}))
    return 0
