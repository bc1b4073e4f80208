"""A run file becomes a run: every default is filled in, every rule of the engine checked."""

from __future__ import annotations

from msgspec.structs import replace

from ..config import RunFile
from ..text.errors import InputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .resolved_run import ResolvedRun

MOST_PARAMETERS = 10**18  # 64 bits count no more than some bytes for each


def resolve(file: RunFile, notes: Sequence[str] = (), *, headers: bool = True) -> ResolvedRun:
    """The run that a run file describes; raises all its problems at once.

    - notes: what was assumed in reading it, which stands before what is assumed here
    - headers: whether to read the tensor headers of a served checkpoint, which give its weights'
    stored bytes. Training needs the config.json alone.
    """
    if file.inference is not None:
        from .resolve_inference import resolve_inference

        found = resolve_inference(file, headers=headers)
    else:
        from .resolve_training import resolve_training

        found = resolve_training(file)
    arch = found.run.arch
    if arch.num_parameters > MOST_PARAMETERS:
        raise InputError(
            f"the model has {arch.num_parameters:.3g} parameters, and at most"
            f" {MOST_PARAMETERS:.0g} are estimated; use fewer or smaller layers"
        )
    notes = (*notes, *(file.notes or ()))
    return replace(found, assumed=(*notes, *found.assumed)) if notes else found
