"""The diagnosis inside the program that dies: it prints what the error and torch's counters say,
and torch's history of allocations where the program records it.

torch and Lightning are those that the program has imported; nothing here imports them. Of the ranks
of a node the first that dies prints.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..tools.read import Anything

OUT_OF_MEMORY = "OutOfMemoryError"  # torch's class, in torch and torch.cuda
WORDS = ("out of memory", "_STATUS_ALLOC_FAILED", "DefaultCPUAllocator")
LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
# What launchers call a process's number among those of its node, and the job.
LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
JOB = (
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID"),
    *("MASTER_ADDR", "MASTER_PORT"),
)
SAME_DEATH = 600  # seconds in which the ranks of a node die of one cause
MOST_ENTRIES = 200_000  # of the history, the last, which are read in seconds


@contextmanager
def explain_oom(run: Anything | None = None) -> Iterator[None]:
    """Print the diagnosis of an out-of-memory error that is raised inside, and raise it again.

    Of several ranks the first that dies on a node prints it.

    run: the run file, command or tool's file of the program, which makes the answer exact
    """
    try:
        yield
    except BaseException as error:
        explain(error, run)
        raise


def explain(error: BaseException, run: Anything | None = None) -> None:
    """Print the diagnosis of an error, where it is of memory and no other rank has printed it; on
    lines of its own, as a progress bar ends no line.
    """
    if is_out_of_memory(error) and is_first():
        print(f"\n{explanation(error, run)}", file=sys.stderr, flush=True)


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
            explain(error, run)

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
        return plain(diagnosis_lines(diagnose(_history() + text + _summary(), run)))
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


def _history() -> str:
    """torch's snapshot with the stacks of what is live, where the program records them; in front of
    the error, as a stack is looked for at the end.
    """
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized() or not _records(torch):
            return ""
        from ..tools.logs.snapshot import snapshot_text

        snapshot = dict(torch.cuda.memory._snapshot())
        traces = snapshot.get("device_traces") or []
        snapshot["device_traces"] = [trace[-MOST_ENTRIES:] for trace in traces]
        return snapshot_text(pickle.dumps(snapshot, protocol=4)) + "\n"
    except Exception:  # of a release that has another form; the error and the counters are printed
        return ""


def _records(torch: Any) -> bool:
    """Whether the program has called torch.cuda.memory._record_memory_history."""
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return bool(enabled is None or enabled())


def is_first() -> bool:
    """Whether no other rank of this node has said of this job that it died.

    Ranks of a node have one parent; the first makes a file of its name. Where that is not possible,
    each rank prints.
    """
    if not any(name in os.environ for name in LOCAL_RANKS):
        return True
    job = "-".join(os.environ.get(name, "") for name in JOB)
    safe = "".join(one if one.isalnum() or one in "-." else "_" for one in job)[:150]
    user = os.getuid() if hasattr(os, "getuid") else 0
    name = f"gpu-mem-calc-oom-{user}-{os.getppid()}-{safe}"
    path = os.path.join(tempfile.gettempdir(), name)
    try:
        return _claims(path)
    except OSError:
        return True


def _claims(path: str) -> bool:
    """Whether this process makes the file, or has made it; one of an earlier death is replaced."""
    me = f"{os.getpid()}"
    for _ in range(2):
        try:
            with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
                file.write(me)
            return True
        except FileExistsError:
            if time.time() - os.stat(path).st_mtime <= SAME_DEATH:
                with open(path) as file:
                    return file.read() == me
            os.unlink(path)
    return True
