"""The command that starts llama-server."""

from __future__ import annotations

from collections.abc import Iterator

from ...run.run import Run
from ...run.served import PLACEHOLDER, checkpoint_word
from .layout import ServerLayout
from .options import SLOT_KEYS
from .versions import FLASH_AUTO
from .weights import ALL


def command(run: Run, layout: ServerLayout) -> Iterator[str]:
    """The words of the command; options that have llama-server's default are left out."""
    options = run.options
    fitted = options["n_gpu_layers"] is None and layout.gpu_layers < ALL
    layers = "all" if layout.gpu_layers >= ALL else str(layout.gpu_layers)
    file = PLACEHOLDER if layout.file.stored else f"{checkpoint_word(run)}.gguf"
    yield from ("llama-server", "-m", file, "-c", str(layout.context))
    if not fitted:  # llama-server finds the number by itself
        yield from ("-ngl", layers)
    if any(options[key] is not None for key in (*SLOT_KEYS, "ollama_version")):
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
    if layout.shares and not fitted:
        yield from ("-ts", ",".join(f"{share:g}" for share in layout.shares))
    if options["n_cpu_moe"]:
        experts = min(int(options["n_cpu_moe"]), len(layout.devices.layers))
        yield from ("--n-cpu-moe", str(experts))
    if options["override_tensor"]:
        yield from ("-ot", str(options["override_tensor"]))
    if options["fit"] is False:
        yield from ("--fit", "off")
    flags = (("no_kv_offload", "-nkvo"), ("swa_full", "--swa-full"))
    yield from (word for key, word in flags if options[key])
