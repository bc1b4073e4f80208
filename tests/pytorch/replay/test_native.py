"""The replay in C is the one in Python, event by event."""

from __future__ import annotations

import ctypes
import os
import random
import runpy
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_mem_calculator.pytorch.replay import native, native_library, plan
from gpu_mem_calculator.pytorch.replay.footprint import Footprint
from gpu_mem_calculator.pytorch.replay.needs import needs_bytes
from gpu_mem_calculator.pytorch.replay.replays import history, replay, start_replay
from gpu_mem_calculator.pytorch.replay.settings import AllocatorSettings
from gpu_mem_calculator.pytorch.replay.slack import slack_bytes
from gpu_mem_calculator.pytorch.replay.stream import UNTIL_MARK, AllocationStream
from tests.conftest import ROOT
from tests.corpus import sampled
from tests.pytorch.replay.test_needs import CONFS, streams

BUILD = runpy.run_path(str(ROOT / "native" / "build.py"), run_name="build")
STEPS = list[tuple[int, int]]
LOAD = native_library.library.__wrapped__  # without what it remembers
FOUND = LOAD()
needs_library = pytest.mark.skipif(FOUND is None, reason="no library was built")


def both(
    stream: AllocationStream, conf: str, cap: int | None
) -> tuple[tuple[STEPS, Footprint], tuple[STEPS, Footprint]]:
    """What is allocated and reserved after each event, and the result: in C, and in Python."""
    settings = AllocatorSettings.parse(conf)
    found = []
    for in_c in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plan, "library", lambda in_c=in_c: FOUND if in_c else None)
            found.append((history(stream, settings, cap), replay(stream, settings, cap)))
    return found[0], found[1]


@needs_library
@given(streams(), st.sampled_from(CONFS), st.none() | st.integers(1, 400))
def test_c_and_python_agree_event_by_event(
    stream: AllocationStream, conf: str, mib: int | None
) -> None:
    """Under every setting, with and without a cap."""
    native_run, python_run = both(stream, conf, None if mib is None else mib << 20)
    assert native_run == python_run


@needs_library
@given(streams(), st.sampled_from(CONFS))
def test_c_and_python_need_the_same(stream: AllocationStream, conf: str) -> None:
    """The search goes on from copies of states."""
    settings, found = AllocatorSettings.parse(conf), set()
    for in_c in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plan, "library", lambda in_c=in_c: FOUND if in_c else None)
            found.add(needs_bytes(stream, settings))
    assert len(found) == 1


@needs_library
@given(streams(), st.sampled_from(CONFS), st.integers(0, 80))
def test_c_and_python_have_the_same_bound_of_slack(
    stream: AllocationStream, conf: str, begin: int
) -> None:
    """Of blocks beyond their tensors, from any event on."""
    settings, found = AllocatorSettings.parse(conf), set()
    stream.marks.insert(0, (min(begin, len(stream.events)), "startup"))
    for in_c in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plan, "library", lambda in_c=in_c: FOUND if in_c else None)
            found.add(slack_bytes(stream, plan.ReplayPlan(stream, settings)))
    assert len(found) == 1


def crowd(number: int) -> AllocationStream:
    """Thousands of tensors on two CUDA streams, freed in any order, which leaves many holes."""
    draw = random.Random(number)
    sizes, events, alive = [], [], []
    for tensor in range(3_000):
        sizes.append(draw.choice((draw.randrange(2**20), draw.randrange(2**25), 3 * 2**20)))
        events.append(tensor)
        alive.append(tensor)
        while alive and draw.random() < 0.48:
            events.append(~alive.pop(draw.randrange(len(alive))))
    stream = AllocationStream.of(sizes, events, streams=draw.choices((0, 7), (9, 1), k=3_000))
    ends = sorted(draw.sample(range(len(events)), 8))
    stream.marks.extend((end, f"phase {end}") for end in ends)
    stream.empties.extend(ends[1::3])
    stream.uses.extend((draw.randrange(3_000), 7, draw.choice((UNTIL_MARK, end))) for end in ends)
    return stream


@needs_library
@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("number", sampled(range(3), keep=1))
def test_c_and_python_agree_on_thousands_of_free_blocks(conf: str, number: int) -> None:
    """Without a cap, and under one that just suffices or does not."""
    stream = crowd(number)
    settings = AllocatorSettings.parse(conf)
    needed = replay(stream, settings).allocated_bytes
    for cap in (None, needed, needed * 21 // 20):
        native_run, python_run = both(stream, conf, cap)
        assert native_run == python_run


@needs_library
def test_replays_of_one_plan_run_in_several_threads() -> None:
    """Each has a state of its own."""
    whole = plan.ReplayPlan(crowd(1), AllocatorSettings())
    caps = [(9 + number) << 30 for number in range(8)]

    def outcome(cap: int) -> Footprint:
        run = start_replay(whole, cap)
        run.finish()
        return run.footprint()

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(outcome, caps)) == list(map(outcome, caps))


@needs_library
@pytest.mark.parametrize("events", [[0, 1], [~1], [5], [~0], [0, ~0, ~0]])
def test_a_stream_that_cannot_be_is_refused(events: list[int]) -> None:
    """No byte is read that is not a tensor's."""
    whole = plan.ReplayPlan(AllocationStream.of([512], events), AllocatorSettings())
    with pytest.raises(ValueError, match="tensor"):
        native.NativePlan(whole, FOUND).start(None).finish()


@needs_library
def test_the_library_is_of_this_source() -> None:
    """Else it is an old one: `python native/build.py`."""
    found = ctypes.CDLL(native_library.LIBRARY)
    found.gmc_source.restype = ctypes.c_char_p
    assert found.gmc_source().decode() == BUILD["source_hash"](), "run `python native/build.py`"


def test_a_variable_leaves_the_library_out() -> None:
    """Each process decides once."""
    code = "from gpu_mem_calculator.pytorch.replay.native_library import library; print(library())"
    env = {**os.environ, native_library.VARIABLE: native_library.PYTHON}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert run.stdout == "None\n"


def test_a_library_that_is_none_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another platform, cut off, or with other functions: the replay is Python's."""
    broken = tmp_path / "_replay.so"
    broken.write_bytes(b"\x7fELF")
    monkeypatch.setattr(native_library, "LIBRARY", str(broken))
    assert LOAD() is None


SANITIZED = """
import sys
sys.path.insert(0, {root!r})
from gpu_mem_calculator.pytorch.replay import native_library
native_library.LIBRARY = {library!r}
assert native_library.library() is not None
from hypothesis import given, settings, strategies as st
from tests.pytorch.replay.test_native import both, crowd
from tests.pytorch.replay.test_needs import CONFS, streams

@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(streams(), st.sampled_from(CONFS), st.none() | st.integers(1, 400))
def run(stream, conf, mib):
    one, two = both(stream, conf, None if mib is None else mib << 20)
    assert one == two

run()
for number in range(4):
    for conf in CONFS:
        for cap in (None, 2 << 30, 12 << 30):
            one, two = both(crowd(number), conf, cap)
            assert one == two
print("whole")
"""


@pytest.mark.proof
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_no_byte_is_read_or_written_out_of_place(tmp_path: Path) -> None:
    """Under the address and the undefined-behaviour sanitizer."""
    library = tmp_path / "_replay.so"
    flags = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    assert BUILD["compile_library"](library, flags)
    runtime = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    env = {**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
    code = SANITIZED.format(root=str(ROOT), library=str(library))
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert run.stdout == "whole\n", run.stderr[-2000:]
