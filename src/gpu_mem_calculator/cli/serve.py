"""Start the web page and its API; they listen on this machine only by default."""

from __future__ import annotations

import argparse
import os

from .. import catalog
from ..runfile.text.errors import InputError


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted; options override the environment."""
    if args.model is not None:
        start = "serve starts the web page; to estimate a server use"
        raise InputError(f"{start} gpu-mem-calc infer {args.model}")
    from ..web.settings import from_options, import_service

    service = import_service("run", "web", "the web page")
    catalog.names("gpus")  # a mistake in the user's own cards stops it here
    service.run(from_options(vars(args), os.environ))
    return 0
