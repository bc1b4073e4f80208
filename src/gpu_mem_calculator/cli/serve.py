"""Start the web page and its API; they listen on this machine only by default."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from .. import catalog
from ..ledger.extras import install
from ..runfile.text.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..web.settings import ServiceSettings

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
    serve(service_settings(args, os.environ))
    return 0


def service_settings(args: argparse.Namespace, environment: Mapping[str, str]) -> ServiceSettings:
    """The settings of an environment, over which the options win."""
    from ..web.settings import PREFIX, ServiceSettings, from_environment

    catalog.names("gpus")  # a mistake in the user's own cards stops it here
    options = {name: getattr(args, name, None) for name in ServiceSettings.__struct_fields__}
    variables = {PREFIX + k.upper(): str(v) for k, v in options.items() if v is not None}
    return from_environment({**environment, **variables})
