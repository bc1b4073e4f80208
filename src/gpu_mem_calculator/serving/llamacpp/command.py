"""The command that starts llama-server."""

from __future__ import annotations

from collections.abc import Iterator

from ...run.run import Run
from .layout import ServerLayout
from .options import SLOT_KEYS
from .versions import FLASH_AUTO
from .weights import ALL


def command(run: Run, layout: ServerLayout) -> Iterator[str]:
    """The words of the command; options that have llama-server's default are left out."""
    options = run.options
    layers = "all" if layout.gpu_layers >= ALL else str(layout.gpu_layers)
    file = "MODEL" if layout.file.stored else "MODEL.gguf"
    yield from ("llama-server", "-m", file, "-c", str(layout.context), "-ngl", layers)
    if any(options[key] is not None for key in SLOT_KEYS):
        yield from ("-np", str(layout.slots))
    if options["kv_unified"]:
        yield "-kvu"
    yield from ("-b", str(layout.batch), "-ub", str(layout.ubatch))
    if (layout.keys, layout.values) != ("F16", "F16"):
        yield from ("-ctk", layout.keys.lower(), "-ctv", layout.values.lower())
    if options["flash_attn"] is not None:
        yield "-fa"
        if layout.build >= FLASH_AUTO:
            yield "on" if layout.flash else "off"
    if options["split_mode"] == "none":
        yield from ("-sm", "none", "-mg", str(options["main_gpu"] or 0))
    if layout.shares:
        yield from ("-ts", ",".join(f"{share:g}" for share in layout.shares))
    if layout.host_experts:
        yield from ("--n-cpu-moe", str(layout.host_experts))
    flags = (("no_kv_offload", "-nkvo"), ("swa_full", "--swa-full"))
    yield from (word for key, word in flags if options[key])
