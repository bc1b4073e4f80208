"""A run file becomes a run: every default is filled in, every rule of the engine checked."""

from __future__ import annotations

from ..config import RunFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .resolved_run import ResolvedRun


def resolve(file: RunFile, *, headers: bool = True) -> ResolvedRun:
    """The run that a run file describes; raises all its problems at once.

    headers: whether to read the tensor headers of a served checkpoint, which give its weights'
    stored bytes. Training needs the config.json alone.
    """
    if file.inference is not None:
        from .resolve_inference import resolve_inference

        return resolve_inference(file, headers=headers)
    from .resolve_training import resolve_training

    return resolve_training(file)
