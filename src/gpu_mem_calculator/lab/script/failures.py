"""Why a script could not be traced, in one sentence, or by its own traceback."""

from __future__ import annotations

import traceback
from pathlib import Path

from ...runfile.text.errors import InputError
from ..jobs.function import user_traceback
from .network import NetworkError
from .recording import Failure, ScriptInput

VALUES = (
    *("DataDependentOutputException", "DynamicOutputShapeException"),
    *("UnsupportedFakeTensorException", "UnsupportedOperatorException"),
)
NO_CARD = (
    *("Cannot access accelerator device", "not compiled with CUDA", "not linked with support for"),
    *("Found no NVIDIA driver", "libcuda.so", "CUDA driver"),
)


def failure_of(plan: ScriptInput, error: BaseException) -> Failure:
    """The failure of an error that a script raised."""
    name = plan.target
    if isinstance(error, InputError):
        return Failure(sentence=f"{name}: {error}")
    if isinstance(error, SystemExit):
        return Failure(sentence=f"{name} ended with exit code {error.code}")
    if isinstance(error, ModuleNotFoundError) and error.name:
        return Failure(sentence=f"{name} needs {error.name}, which is not installed here")
    network = _caused_by(error, NetworkError)
    if network is not None:
        return Failure(sentence=f"{name}: {network}")
    missing = _missing(error)
    if missing:
        where = _script_line(error, plan)
        reason = (str(error).strip().splitlines() or [""])[0]
        return Failure(sentence=f"{name}: {where} needs {missing}: {reason}")
    return Failure(sentence=f"{name} failed with its own error", traceback=user_traceback(error))


def _missing(error: BaseException) -> str:
    """What a trace does not have and the script asked for; empty for the script's own errors."""
    if type(error).__name__ in VALUES:
        return "the values of a tensor, which fake ones do not have"
    if any(text in str(error) for text in NO_CARD):
        return "a real GPU"
    return ""


def _script_line(error: BaseException, plan: ScriptInput) -> str:
    """The last line of the script itself, or of a module in its folder, as file:line."""
    frames = traceback.extract_tb(error.__traceback__)
    folder = str(Path.cwd() if plan.module else Path(plan.target).resolve().parent)
    own = [one for one in frames if str(Path(one.filename).resolve()).startswith(folder)]
    last = (own or frames)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def _caused_by(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, kind):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None
