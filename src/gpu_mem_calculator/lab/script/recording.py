"""What a script's process is given, and what it hands back: every allocation, or why there is none,
in one sentence or by the script's own traceback.
"""

from __future__ import annotations

import traceback
from array import array
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ...pytorch.replay.stream import AllocationStream
from ...runfile.text.errors import InputError
from ..jobs.function import user_traceback
from ..trace.card import Card
from ..trace.storages import StorageMaker
from .network import NetworkError

VALUES = (
    *("DataDependentOutputException", "DynamicOutputShapeException"),
    *("UnsupportedFakeTensorException", "UnsupportedOperatorException"),
)
NO_CARD = (
    *("Cannot access accelerator device", "not compiled with CUDA", "not linked with support for"),
    *("Found no NVIDIA driver", "libcuda.so", "CUDA driver"),
)


class Recording(Struct, kw_only=True):
    """The recording of a script.

    - `makers`, `kinds`: what allocated each tensor, and its kind of memory
    - `steps`: optimizer steps that were made
    - `words`: dtypes and optimizers, for the headline
    - `engine`: the key of the engine that was used
    - `notes`: sentences for the report
    """

    stream: AllocationStream
    makers: list[StorageMaker]
    kinds: list[str]
    steps: int
    num_parameters: int
    num_trained: int
    words: list[str]
    engine: str
    notes: list[str]


class Failure(Struct, kw_only=True):
    """Why a script could not be traced: a sentence, and its own traceback where it has one."""

    sentence: str
    traceback: str = ""


class ScriptInput(Struct, kw_only=True):
    """The input of the script's process.

    - `target`: the script, or the module after -m
    - `steps`: optimizer steps after which it ends; 0 for a program, which ends by itself
    - `shapes`: the values of --shapes
    - `program`: the run file of a program, which takes the place of a script
    """

    target: str
    module: bool
    arguments: list[str]
    environment: dict[str, str]
    ranks: int
    steps: int
    card: Card
    cublas_bytes: int
    shapes: dict[str, int | str]
    result: str
    program: str = ""


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


def encoded(outcome: Recording | Failure) -> bytes:
    """An outcome for another process; arrays are written as lists."""
    kind = "recording" if isinstance(outcome, Recording) else "failure"
    return msgspec.msgpack.encode((kind, outcome), enc_hook=array.tolist)


def decoded(data: bytes) -> Recording | Failure:
    """What `encoded` wrote."""
    kind, outcome = msgspec.msgpack.decode(data)
    wanted: Any = Recording if kind == "recording" else Failure
    found: Recording | Failure = msgspec.convert(outcome, wanted, dec_hook=_as_array)
    return found


def _as_array(_: type, values: list[int]) -> array[int]:
    return array("q", values)
