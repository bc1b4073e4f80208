"""How long a memory snapshot takes, and how much memory, by the size of its file.

    python -m benchmarks.snapshot [megabytes] [frames]

It is written as pickle does with protocol 4, an entry as torch 2.13 has it: with that many
references to frames; with 0 all entries share one stack.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

WORDS = (
    *("device_traces", "action", "alloc", "free_requested", "free_completed", "addr", "size"),
    *("stream", "time_us", "compile_context", "user_metadata", "", "frames", "segments"),
    *("filename", "line", "name", "allocator_settings", "expandable_segments"),
)
NUM_FRAMES, BATCH = 5000, 1000
LIST = 3 + len(
    WORDS
)  # in the memo: the whole, two for the words, each word, and the list of frames
MOST_SECONDS, MOST_MIB = 60, 1024


def _text(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode() + b"\x94"


def _word(text: str) -> bytes:
    return b"h" + bytes([3 + WORDS.index(text)])


def _whole(number: int) -> bytes:
    return b"\x8a\x07" + number.to_bytes(7, "little")


def _frame(number: int) -> bytes:
    """A frame: three objects of the memo."""
    file = f"/lib/python3.12/site-packages/torch/nn/modules/module{number % 300}.py"
    line = b"M" + number.to_bytes(2, "little")
    values = (_word("filename"), _text(file), _word("line"), line, _word("name"), _text("forward"))
    return b"}\x94(" + b"".join(values) + b"u"


def _entry(pick: random.Random, frames: int) -> bytes:
    """An entry of a trace."""
    action = pick.choice(("alloc", "free_requested", "free_completed"))
    stack = [LIST + 1 + 3 * pick.randrange(NUM_FRAMES) for _ in range(frames)]
    references = b"".join(b"j" + one.to_bytes(4, "little") for one in stack)
    values = (
        *(_word("action"), _word(action)),
        *(_word("addr"), _whole(0x7F0000000000 + pick.randrange(2**36) * 512)),
        *(_word("size"), b"J" + (512 * pick.randrange(2**21)).to_bytes(4, "little")),
        *(_word("stream"), b"K\0", _word("time_us"), _whole(17 * 10**14)),
        *(_word("compile_context"), _text("N/A"), _word("user_metadata"), _word("")),
        *(_word("frames"), b"]\x94(" + references + b"e" if frames else b"h" + bytes([LIST])),
    )
    return b"}\x94(" + b"".join(values) + b"u"


def pieces(num_bytes: int, frames: int) -> Iterator[bytes]:
    """A snapshot of a size, piece by piece."""
    shared = b"".join(map(_frame, range(NUM_FRAMES)))
    yield b"\x80\x04}\x94(" + _text("words") + b"]\x94(" + b"".join(map(_text, WORDS)) + b"e"
    yield _word("frames") + b"]\x94(" + shared + b"e" + _word("segments") + b"]\x94"
    yield _word("device_traces") + b"]\x94]\x94"
    pick, written = random.Random(1), 0
    batch = b"(" + b"".join(_entry(pick, frames) for _ in range(BATCH)) + b"e"
    while written < num_bytes:
        yield batch
        written += len(batch)
    yield b"au."


def write(path: Path, num_bytes: int, frames: int) -> None:
    """Write a snapshot of a size."""
    with path.open("wb") as file:
        file.writelines(pieces(num_bytes, frames))


def main() -> None:
    """Read one, in a process of its own."""
    megabytes, frames = (*map(int, sys.argv[1:3]), *(300, 20)[len(sys.argv) - 1 :])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        write(path, megabytes * 10**6, frames)
        command = [sys.executable, "-m", "gpu_mem_calculator", "diagnose", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, mebibytes = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    print(f"{megabytes} MB, {frames} frames: {seconds:.1f} s of CPU, {mebibytes:,.0f} MiB")
    print(done.stdout or done.stderr)
    if seconds > MOST_SECONDS or mebibytes > MOST_MIB:
        sys.exit(f"the aims are {MOST_SECONDS} s and {MOST_MIB:,} MiB")


if __name__ == "__main__":
    main()
