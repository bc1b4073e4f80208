"""What a script's process hands back: every allocation, and what was seen of the run."""

from __future__ import annotations

from msgspec import Struct

from ...pytorch.replay.stream import AllocationStream
from ..trace.card import Card
from ..trace.storages import StorageMaker


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
