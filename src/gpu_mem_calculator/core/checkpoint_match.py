"""Whether the weights of a checkpoint belong to the architecture that its config.json describes.

Parameters are counted in the headers and compared with the architecture's. Headers may hold fewer
(no head, as models of embeddings are stored) and more (a tied head stored twice, the tower for
pictures, multi-token prediction, buffers). Packed integers are 1 to 8 bits a parameter.
"""

from __future__ import annotations

from math import prod

from ..hub.bounds import HubError
from ..hub.checkpoint import Checkpoint
from ..model.arch import Arch

NOTED, REFUSED = 1.1, 1.5  # a factor between the counts: a warning above the first, then an error
ALONE = "give the path of the config.json itself to leave the weights out"


def misfit(found: Checkpoint, arch: Arch) -> str | None:
    """A warning where weights and architecture differ, None where they agree; a HubError where
    they cannot be one model's.
    """
    if not found.tensors:
        return None
    least = sum(one.elements[0] for one in found.tensors)
    most = sum(one.elements[1] for one in found.tensors)
    fewest, largest = _expected(arch)
    if largest is not None and least > largest:
        factor, count = least / largest, f"{'' if least == most else 'at least '}{least:,}"
    else:
        factor, count = fewest / max(most, 1), f"{'' if least == most else 'at most '}{most:,}"
    if factor <= NOTED:
        return None
    described = "its header describes" if found.form == "gguf" else "its config.json describes"
    said = (f"the weights of {found.title} have {count} parameters, but {described} "
            f"{arch.num_parameters:,}")  # fmt: skip
    if factor > REFUSED:
        own = "check the file" if found.form == "gguf" else (
            f"put the config.json beside them that they came with, or {ALONE}"
        )  # fmt: skip
        raise HubError(f"{said}; {own}")
    return f"{said}: check that they belong together"


def _expected(arch: Arch) -> tuple[int, int | None]:
    """Fewest and most parameters that headers of the architecture may have; None: any number."""
    head = sum(weight.numel for weight in arch.head.weights()) if arch.head else 0
    own = arch.num_parameters
    if arch.left_out:
        return own - head, None
    again = arch.vocab * arch.hidden if arch.tied else 0
    buffers = sum(prod(buffer.shape) for buffer in arch.buffers)
    return own - head, own + again + arch.tower_parameters + arch.mtp_parameters + buffers
