"""Whether the weights of a checkpoint match the architecture that its config.json describes.

The parameters in the headers are counted and compared with those of the architecture. Headers may
have fewer (no head, as embedding models are stored) or more (a tied head stored twice, the vision
tower, multi-token prediction, buffers). Packed integers have 1 to 8 bits per parameter.
"""

from __future__ import annotations

from math import prod

from ...catalog.hub.bounds import HubError
from ...catalog.hub.checkpoint import Checkpoint
from ...models.arch.arch import Arch

NOTED, REFUSED = 1.1, 1.5  # a factor between the counts: a warning above the first, then an error
ALONE = "give the path of the config.json itself to leave the weights out"


def mismatch_warning(checkpoint: Checkpoint, arch: Arch) -> str | None:
    """A warning where the parameter counts differ by more than 10 %, else None.

    Raises HubError where they differ by more than a factor of 1.5.
    """
    if not checkpoint.tensors:
        return None
    least = sum(one.elements[0] for one in checkpoint.tensors)
    most = sum(one.elements[1] for one in checkpoint.tensors)
    fewest, largest = _parameter_bounds(arch)
    if largest is not None and least > largest:
        factor, count = least / largest, f"{'' if least == most else 'at least '}{least:,}"
    else:
        factor, count = fewest / max(most, 1), f"{'' if least == most else 'at most '}{most:,}"
    if factor <= NOTED:
        return None
    described = "its header describes" if checkpoint.form == "gguf" else "its config.json describes"
    sentence = (
        f"the weights of {checkpoint.title} have {count} parameters, but {described} "
        f"{arch.num_parameters:,}"
    )
    if factor > REFUSED:
        fix = (
            "check the file"
            if checkpoint.form == "gguf"
            else (f"put the config.json beside them that they came with, or {ALONE}")
        )
        raise HubError(f"{sentence}; {fix}")
    return f"{sentence}: check that they belong together"


def _parameter_bounds(arch: Arch) -> tuple[int, int | None]:
    """The fewest and most parameters that headers of the architecture may have; None: no limit."""
    head = sum(weight.numel for weight in arch.head.weights()) if arch.head else 0
    total = arch.num_parameters
    if arch.left_out:
        return total - head, None
    tied = arch.vocab * arch.hidden if arch.tied else 0
    buffers = sum(prod(buffer.shape) for buffer in arch.buffers)
    return total - head, total + tied + arch.tower_parameters + arch.mtp_parameters + buffers
