"""torch's memory snapshots: what they say, and that their pickle can do nothing."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.snapshot import write
from gpu_mem_calculator.advice.diagnosis.diagnose import diagnose
from gpu_mem_calculator.ledger.units import GIB, MIB
from gpu_mem_calculator.tools.logs import pickled
from gpu_mem_calculator.tools.logs.pickled import SnapshotError, SnapshotReader
from gpu_mem_calculator.tools.logs.read import read_log
from gpu_mem_calculator.tools.logs.snapshot import snapshot_text
from tests.conftest import ROOT

LOGITS = 4 * 1024 * 151_936 * 4  # bytes
SITE = "/venv/lib/python3.12/site-packages"


def _frame(filename: str, line: int, name: str) -> dict[str, Any]:
    return {"name": name, "filename": filename, "line": line}


C10, TRAIN = _frame("??", 0, "c10::cuda::malloc(void**)"), _frame("/app/train.py", 9, "<module>")
LOSS = [
    *(C10, _frame("??", 0, "at::native::to(at::Tensor const&)")),
    _frame(f"{SITE}/transformers/loss/loss_utils.py", 42, "ForCausalLMLoss"),
    TRAIN,
]
STATES = [C10, _frame(f"{SITE}/torch/optim/adamw.py", 150, "_init_group"), TRAIN]
BACKWARD = [C10, _frame("??", 0, "torch::autograd::Engine::thread_main(Queue const&)")]


def _event(action: str, size: int, time_us: int, frames: list[Any] | None = None) -> dict[str, Any]:
    place = {"device_free": GIB} if action == "oom" else {"addr": 0x7F0000000000}
    more = {"time_us": time_us, "compile_context": "N/A", "frames": frames or STATES}
    return {"action": action, **place, "size": size, "stream": 0, **more}


def _block(state: str, size: int, requested: int, frames: list[Any]) -> dict[str, Any]:
    sizes = {"address": 0, "size": size, "requested_size": requested}
    return {**sizes, "state": state, "frames": frames}


def _snapshot(oom_frames: list[Any]) -> dict[str, Any]:
    """Two blocks of states and one of backward live; 3 GiB are free, in blocks of 2 and 1."""
    live = [_block("active_allocated", 2 * GIB, 2 * GIB - 100, STATES) for _ in range(2)]
    blocks = [*live, _block("inactive", 2 * GIB, 0, []), _block("inactive", GIB, 0, [])]
    graph = [_block("active_allocated", MIB, MIB, BACKWARD)]
    segments = [_segment(7 * GIB, 4 * GIB, blocks, (0, 0)), _segment(2 * MIB, MIB, graph, (0, 1))]
    trace = [
        *(_event("segment_alloc", 7 * GIB, 1_000_000), _event("alloc", 2 * GIB - 100, 1_000_001)),
        *(_event("alloc", 2 * GIB - 100, 1_000_002), _event("alloc", GIB, 1_500_000)),
        *(_event("free_requested", GIB, 1_600_000), _event("free_completed", GIB, 1_600_001)),
        _event("oom", LOGITS, 2_000_000, oom_frames),
        _event("alloc", MIB, 2_500_000),
    ]
    return {
        "segments": segments,
        "device_traces": [trace, []],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "garbage_collection_threshold": 0.5},
        "external_annotations": [],
    }


def _segment(
    total: int, allocated: int, blocks: list[Any], pool: tuple[int, int]
) -> dict[str, Any]:
    sizes = {"total_size": total, "allocated_size": allocated, "active_size": allocated}
    return {"device": 0, **sizes, "stream": 0, "segment_pool_id": pool, "blocks": blocks}


GOLDEN = """\
GPU 0 in torch's memory snapshot: allocated 4296015872 bytes, active 4296015872 bytes, reserved \
7518289920 bytes, unallocated 3222274048 bytes, largest free block 2147483648 bytes, private pools \
2097152 bytes; highest 5368708920 bytes, as asked for, at event 4 of 8, 1.000 seconds before the \
last
GPU 0 in torch's memory snapshot: live 4294967296 bytes in 2 allocations made in _init_group \
(optim/adamw.py:150), called in <module> (app/train.py:9)
GPU 0 in torch's memory snapshot: live 1048576 bytes in 1 allocations made in \
torch::autograd::Engine::thread_main(Queue const&) (??:0)
Traceback (most recent call last):
  File "/app/train.py", line 9, in <module>
  File "/venv/lib/python3.12/site-packages/transformers/loss/loss_utils.py", line 42, in \
ForCausalLMLoss

GPU 0 in torch's memory snapshot: no room for 2489319424 bytes; free 1073741824 bytes, allocated \
4294967296 bytes, reserved 7518289920 bytes, unallocated 3223322624 bytes"""


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_snapshot_says_what_was_held_and_how_it_ran_out(protocol: int) -> None:
    """In the protocols of Python, and in that of torch's own pickler, 2."""
    assert snapshot_text(pickle.dumps(_snapshot(LOSS), protocol)) == GOLDEN


def test_its_lines_are_read_as_those_of_a_log() -> None:
    """With every figure in bytes."""
    log = read_log(GOLDEN)
    assert [one.what for one in log.lines] == [
        *("snapshot_memory", "snapshot_largest", "snapshot_largest", "snapshot_oom")
    ]
    assert log.lines[-1].bytes_of("tried") == LOGITS
    assert [one.name for one in log.tracebacks[0].frames] == ["<module>", "ForCausalLMLoss"]
    assert log.tracebacks[0].frames[-1].code == ""


def test_a_snapshot_is_diagnosed_by_its_stack_and_size() -> None:
    """4 x 1,024 tokens x 151,936 logits x 4 bytes."""
    run = {"model": {"name": "qwen2.5-1.5b"}, "training": {"batch_size": 4, "seq_length": 1024}}
    found = diagnose(pickle.dumps(_snapshot(LOSS)), run)
    assert found.cause is not None
    assert (found.cause.id, found.cause.certainty) == ("logits", "certain")
    assert "fragmented" in {one.id for one in found.others}
    assert any(
        "4.00 GiB was live at the dump: 2 allocations made in _init_group" in one
        for one in found.evidence
    )


def test_a_stack_of_the_backward_thread_has_frames_of_cpp_alone() -> None:
    """The engine's frames say that it was the backward pass."""
    found = diagnose(pickle.dumps(_snapshot(BACKWARD)))
    assert found.cause is not None
    assert found.cause.phase == "backward"


def test_the_command_reads_snapshots_beside_logs(tmp_path: Path) -> None:
    """In any order, and from standard input."""
    data = pickle.dumps(_snapshot(LOSS))
    snapshot, log = tmp_path / "snapshot.pickle", tmp_path / "log.txt"
    snapshot.write_bytes(data)
    log.write_text("step 7: loss 2.1\n")
    command = [sys.executable, "-m", "gpu_mem_calculator"]
    for words, given in (
        (["diagnose", str(snapshot), str(log)], b""),
        (["diagnose"], data),
        (["-"], data),
    ):
        done = subprocess.run([*command, *words], input=given, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert b"snapshot memory" in done.stdout
        assert b"logits" in done.stdout


class _Runs:
    """What a pickle would run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def _hostile(path: Path) -> dict[str, bytes]:
    command = f"touch {path}".encode()
    text = b"\x8c" + bytes([len(command)]) + command
    return {
        "REDUCE": pickle.dumps({"segments": [_Runs(path)]}, 2),
        "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93" + text + b"\x85R.",
        "GLOBAL": b"\x80\x02cos\nsystem\n" + text + b"\x85R.",
        "INST": b"\x80\x02(" + text + b"ios\nsystem\n.",
        "OBJ": b"\x80\x02(cos\nsystem\n" + text + b"o.",
        "NEWOBJ": b"\x80\x02cos\nsystem\n" + text + b"\x85\x81.",
        "NEWOBJ_EX": b"\x80\x04\x8c\x02os\x8c\x06system" + text + b"\x85}\x92.",
        "BUILD": b"\x80\x02}}b.",
        **{name: b"\x80\x02" + code + b"." for name, code in OTHERS.items()},
    }


OTHERS = {
    "EXT1": b"\x82\x01",
    "EXT2": b"\x83\x01\0",
    "EXT4": b"\x84\x01\0\0\0",
    "PERSID": b"P1\n",
    "BINPERSID": b"K\1Q",
    "BYTEARRAY8": b"\x96" + bytes(8),
    "NEXT_BUFFER": b"\x97",
    "READONLY_BUFFER": b"N\x98",
    "POP": b"N0",
    "DUP": b"N2",
    "INT": b"I1\n",
    "UNICODE": b"Va\n",
    "GET": b"g0\n",
    "unknown": b"\xff",
}


@pytest.mark.parametrize("name", sorted(_hostile(Path("x"))))
def test_a_hostile_pickle_executes_nothing(name: str, tmp_path: Path) -> None:
    """It is refused at the opcode, with one sentence."""
    path = tmp_path / "made"
    with pytest.raises(SnapshotError, match=r"is the opcode 0x\w\w, .* nothing was executed"):
        diagnose(_hostile(path)[name])
    assert not path.exists()


VALUES: list[Any] = [
    *(0, 255, 256, 65535, 65536, -1, -(2**31), 2**31, 2**63, -(2**63), 2**100),
    *(None, True, False, 0.5, -1e300, "", "a", "ä" * 200, "x" * 70_000, b"", b"a", b"x" * 70_000),
    *([], [1], list(range(1001)), {}, {"a": 1}, {str(one): one for one in range(1001)}),
]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_each_opcode_of_plain_data_is_read(protocol: int) -> None:
    """As pickle writes it; bytes are plain from protocol 3 on."""
    values = [one for one in VALUES if protocol > 2 or not isinstance(one, bytes)]
    assert SnapshotReader(pickle.dumps(values, protocol)).read() == values


def test_tuples_and_sets_are_read_as_lists() -> None:
    """Of sets nothing is hashed."""
    given = [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {5}, frozenset([6]), set()]
    read = [[], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4], [5], [6], []]
    assert SnapshotReader(pickle.dumps(given, 4)).read() == read


LENGTHS = {
    "LONG4": b"\x8b\5\0\0\0\1\2\3\4\5",
    "BINUNICODE": b"X\1\0\0\0a",
    "BINUNICODE8": b"\x8d\1" + bytes(7) + b"a",
    "BINBYTES8": b"\x8e\1" + bytes(7) + b"a",
    "LONG_BINPUT": b"]r\0\0\0\0",
    "LONG_BINGET": b"]\x94j\0\0\0\0",
}


@pytest.mark.parametrize("name", LENGTHS)
def test_long_forms_are_read(name: str) -> None:
    """Forms that pickle writes for more than fits into the short ones."""
    data = b"\x80\x02" + LENGTHS[name] + b"."
    assert SnapshotReader(data).read() == pickle.loads(data)


def _list_in_itself() -> list[Any]:
    given: list[Any] = []
    given.append(given)
    return given


BROKEN = {
    "no segments": pickle.dumps({"a": 1}),
    "no dict": pickle.dumps(7),
    "a cut number": b"\x80\x04M\1",
    "a number that is too long": b"\x80\x04\x8a\xff" + bytes(255) + b".",
    "a text of 2^63 bytes": b"\x80\x04\x8d" + struct.pack("<Q", 2**63) + b"a.",
    "a text of 4 GiB": b"\x80\x04X\xff\xff\xff\xffa.",
    "bytes of 4 GiB": b"\x80\x04B\xff\xff\xff\xffa.",
    "a number of 2 GiB": b"\x80\x04\x8b\xff\xff\xff\x7f\1.",
    "no UTF-8": b"\x80\x04\x8c\1\xff.",
    "deep": b"\x80\x04" + b"](" * 70_000,
    "deep without marks": b"\x80\x04" + b"]" * 2_000_000,
    "a memo with holes": b"\x80\x02]r\xff\xff\xff\x7f.",
    "an unknown memo": b"\x80\x02h\7.",
    "an unknown mark": b"\x80\x02]e.",
    "an item of no list": b"\x80\x02K\1K\2a.",
    "a key of no dict": b"\x80\x02K\1(K\1K\2u.",
    "a key that is a number": b"\x80\x02}(K\1K\2u.",
    "a key that is a list": b"\x80\x02}(]K\2u.",
    "half an item": b"\x80\x02}(\x8c\1au.",
    "nothing": b"\x80\x02.",
    "no end": b"\x80\x04",
    "many texts": b"\x80\x04"
    + b"".join(b"X\3\0\0\0%03dN" % (one % 1000) for one in range(600_000)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_pickle_is_refused_in_a_sentence(name: str) -> None:
    """Damaged, nested and lying ones, at once."""
    start = time.process_time()
    with pytest.raises(SnapshotError, match="a pickle was given, and not read as") as error:
        diagnose(BROKEN[name])
    assert len(error.value.problems) == 1
    assert time.process_time() - start < 10


def test_every_cut_of_a_snapshot_is_refused() -> None:
    """A file that was not copied to its end."""
    data = pickle.dumps(_snapshot(LOSS))
    for end in range(2, len(data) - 1, 7):
        with pytest.raises(SnapshotError):
            snapshot_text(data[:end])


def test_a_snapshot_of_itself_ends() -> None:
    """Objects that refer to themselves, or many times to one."""
    whole: dict[str, Any] = {"segments": _list_in_itself()}
    whole["device_traces"] = [_list_in_itself()]
    assert "it is empty" in snapshot_text(pickle.dumps(whole))
    blocks = [_block("inactive", 1, 1, []) for _ in range(1001)]
    many = {"segments": [_segment(1, 1, blocks, (0, 0))] * 5000}
    with pytest.raises(SnapshotError, match="blocks"):
        snapshot_text(pickle.dumps(many))


def test_values_of_another_type_say_nothing() -> None:
    """A text for a size, a number for a stack, a negative size."""
    odd: list[Any] = [
        _block("active_allocated", -1, 1, []),
        {"state": [], "size": "a", "frames": 3},
        7,
    ]
    event = {"action": ["alloc"], "size": {}, "frames": 2**70}
    oom = {"action": "oom", "size": 5, "frames": 2**70, "device_free": None}
    segment = _segment(1, 1, [*odd, {**odd[0], "frames": 2**70}], (0, 0))
    text = snapshot_text(pickle.dumps({"segments": [segment], "device_traces": [[event, oom]]}))
    assert "no room for 5 bytes; free 0 bytes" in text


def test_names_cannot_begin_a_line() -> None:
    """A name of a frame may have any character."""
    stack = [_frame('/a\n"b\x1b[1m.py', 1, "f\n  File")]
    text = snapshot_text(pickle.dumps(_snapshot(stack)))
    assert '  File "/a??b?[1m.py", line 1, in f?  File' in text.split("\n")


def test_objects_beside_the_trace_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by what is kept."""
    monkeypatch.setattr(pickled, "ROOM", 10**6)
    monkeypatch.setattr(pickled, "CHECKED", 2**10)
    entries = {"segments": [], "device_traces": [[_event("alloc", 1, 1) for _ in range(5000)]]}
    assert "of 5000" in snapshot_text(pickle.dumps(entries))
    kept = [
        {"segments": [{"a": str(one)} for one in range(10_000)]},
        {"segments": [[one] for one in range(10_000)]},
        {"segments": [(one, one) for one in range(10_000)]},
        {"segments": [{} for _ in range(10_000)]},
        {"segments": "x" * 600_000},
    ]
    for one in kept:
        with pytest.raises(SnapshotError, match="more objects than are read"):
            snapshot_text(pickle.dumps(one) + bytes(10))


def test_a_file_above_the_limit_is_refused_with_its_size(tmp_path: Path) -> None:
    """Before it is read."""
    path = tmp_path / "snapshot.pickle"
    with path.open("wb") as file:
        file.write(b"\x80\x04}")
        file.truncate(10**12)
    command = [sys.executable, "-m", "gpu_mem_calculator", "diagnose", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "it has 1,000,000,000,000" in done.stderr


def test_a_large_snapshot_is_read_in_little_memory(tmp_path: Path) -> None:
    """A tenth of the largest, in a tenth of its time and memory beside the program's own."""
    path = tmp_path / "snapshot.pickle"
    write(path, 30 * 10**6, 20)
    command = [sys.executable, "-c", SHOWN_MEMORY, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT / "src")
    seconds, before, after = map(float, done.stdout.split())
    assert seconds < 6
    assert after - before < 100


SHOWN_MEMORY = """
import resource, sys, time
from gpu_mem_calculator.tools.logs.snapshot import text_of
used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, start = used(), time.process_time()
text_of(open(sys.argv[1], "rb").read())
print(time.process_time() - start, before, used())
"""
