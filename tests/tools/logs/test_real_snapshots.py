"""Snapshots of runs that died on an H200, as torch 2.11 wrote them.

`tests/advice/diagnosis/died_programs/record.py` made them; only the name of its folder is replaced.
`PRINTED` is what torch's message said, in which sizes have two digits.
"""

from __future__ import annotations

import lzma
import pickle
from pathlib import Path

import pytest

from gpu_mem_calculator.ledger.units import GIB, MIB
from gpu_mem_calculator.tools.logs.read import read_log
from gpu_mem_calculator.tools.logs.snapshot import snapshot_text

HERE = Path(__file__).parent / "snapshots"
# Asked for (bytes), and of the message: MiB allocated, MiB unallocated, GiB free on the card.
PRINTED = {
    "forward": (512 * 32_000 * 4, 132.52, 3.48, 137.86),
    "backward": (512 * 32_000 * 4, 256.52, 7.48, 86.30),
    "step": (32_000 * 256 * 4, 202.51, 1.49, 135.37),
}


def _text(name: str) -> str:
    return snapshot_text(lzma.decompress((HERE / f"{name}.pickle.xz").read_bytes()))


@pytest.mark.parametrize("name", PRINTED)
def test_it_says_what_torch_printed(name: str) -> None:
    """Of the moment at which there was no room, not of the dump."""
    asked, allocated, unallocated, free = PRINTED[name]
    line = read_log(_text(name)).lines[-1]
    assert line.what == "snapshot_oom"
    assert line.bytes_of("tried") == asked
    assert round(line.bytes_of("free") / GIB, 2) == free
    assert round(line.bytes_of("allocated") / MIB, 2) == allocated
    assert round(line.bytes_of("unallocated") / MIB, 2) == unallocated


@pytest.mark.parametrize(
    ("name", "last"),
    [("forward", "forward"), ("backward", "_log_softmax_backward_data"), ("step", "_init_group")],
)
def test_its_stack_ends_where_the_run_died(name: str, last: str) -> None:
    """Frames that each allocation has are left out, in C++ as in Python."""
    frames = read_log(_text(name)).tracebacks[0].frames
    assert last in frames[-1].name
    if name == "backward":
        assert any("generated::LogSoftmaxBackward0::apply" in one.name for one in frames)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_other_protocols_say_the_same(protocol: int) -> None:
    """explain_oom writes what torch returns in another one than torch's file has."""
    data = lzma.decompress((HERE / "step.pickle.xz").read_bytes())
    assert snapshot_text(pickle.dumps(pickle.loads(data), protocol)) == _text("step")


def test_gradients_are_made_by_their_operators() -> None:
    """The backward threads have no Python; who gathered the stack made nothing."""
    live = [line for line in _text("step").split("\n") if ": live " in line]
    assert "VariableType::(anonymous namespace)::mm(" in live[0] + live[1]
    assert not any("gather" in line for line in live)
