"""The diagnosis inside the program that dies: it prints what the error and torch's counters say.

torch and Lightning are those that the program has imported; nothing here imports them.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..tools.read import Anything

OUT_OF_MEMORY = "OutOfMemoryError"  # torch's class, in torch and torch.cuda
WORDS = ("out of memory", "_STATUS_ALLOC_FAILED", "DefaultCPUAllocator")
LIGHTNING = ("lightning.pytorch", "pytorch_lightning")


@contextmanager
def explain_oom(run: Anything | None = None) -> Iterator[None]:
    """Print the diagnosis of an out-of-memory error that is raised inside, and raise it again.

    run: the run file, command or tool's file of the program, which makes the answer exact
    """
    try:
        yield
    except BaseException as error:
        if is_out_of_memory(error):
            print(explanation(error, run), file=sys.stderr, flush=True)
        raise


def oom_callback(run: Anything | None = None) -> Any:
    """A callback for Lightning's Trainer that does the same in `on_exception`."""
    module = next((sys.modules[name] for name in LIGHTNING if name in sys.modules), None)
    if module is None:
        raise ImportError("import lightning.pytorch or pytorch_lightning before oom_callback()")
    base: Any = module.Callback

    class OomCallback(base):  # type: ignore[misc]
        """Prints why it died."""

        def on_exception(self, _trainer: Any, _module: Any, error: BaseException) -> None:
            """Lightning raises it again."""
            if is_out_of_memory(error):
                print(explanation(error, run), file=sys.stderr, flush=True)

    return OomCallback()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was full: torch's own class, or its words."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return OUT_OF_MEMORY in names or any(words in str(error) for words in WORDS)


def explanation(error: BaseException, run: Anything | None = None) -> str:
    """The diagnosis of an error as text; a fault of ours is a sentence, so that the error is not
    lost.
    """
    try:
        from ..advice.diagnosis.diagnose import diagnose
        from .diagnosis import diagnosis_lines
        from .lines import plain

        text = "".join(traceback.format_exception(error))
        return plain(diagnosis_lines(diagnose(text + _summary(), run)))
    except Exception as fault:
        return f"gpu-mem-calc could not explain the error: {type(fault).__name__}: {fault}"


def _summary() -> str:
    """torch's own counters, of the torch that the program has imported."""
    torch = sys.modules.get("torch")
    try:
        ready = torch is not None and torch.cuda.is_initialized()
        return str(torch.cuda.memory_summary()) if ready and torch is not None else ""
    except Exception:  # what torch raises after a driver's error
        return ""
