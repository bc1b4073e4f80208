"""Start the web page and its API; they listen on this machine only by default."""

from __future__ import annotations

import argparse
import os

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
    from ..web.settings import from_options

    catalog.names("gpus")  # a mistake in the user's own cards stops it here
    serve(from_options(vars(args), os.environ))
    return 0
