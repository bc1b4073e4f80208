"""One case in this process, with a torch that only counts."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator.lab.backtest.rows import rows_from
from gpu_mem_calculator.lab.jobs.job import World
from gpu_mem_calculator.lab.measure import worker
from gpu_mem_calculator.lab.measure import worker as environment
from gpu_mem_calculator.lab.measure.cases_file import MeasureCase
from gpu_mem_calculator.lab.measure.program import MeasuredProgram, program
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.conftest import small_run

from .conftest import TOTAL, FakeCuda

GIB = 2**30


@pytest.fixture
def worlds(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> list[World]:
    """The worlds that jobs ran in; the job marks a start-up and a step."""
    found: list[World] = []

    def start(world: World) -> None:
        found.append(world)
        cuda.use(GIB, 2 * GIB, 3 * GIB)
        world.mark("model")
        cuda.use(GIB, 4 * GIB, 5 * GIB)
        world.mark("s0.opt")

    def fake(*of_case: Any) -> MeasuredProgram:
        real = program(*of_case)
        return MeasuredProgram(
            start=start,
            group=real.group,
            num_ranks=real.num_ranks,
            process_group=real.process_group,
        )

    monkeypatch.setattr(worker, "program", fake)
    return found


def measured(**rest: Any) -> dict[str, Any]:
    """The row of a small run."""
    values: dict[str, Any] = {"id": "a", "config": small_run("fsdp"), **rest}
    return worker.measure_case(MeasureCase(**values), lambda message: None)


def test_a_row_of_megatron_states_what_the_job_was_given(worlds: list[World]) -> None:
    """megatron-core's own defaults are others, so the row does not leave these two open."""
    row = measured(config=small_run("megatron_lm", engine={"make_vocab_size_divisible_by": 64}))
    engine = row["config"]["engine"]
    assert engine["make_vocab_size_divisible_by"] == 64
    assert engine["deallocate_pipeline_outputs"] is True
    assert "make_vocab_size_divisible_by" not in measured()["config"]["engine"]


def test_the_row_is_complete_and_backtest_reads_it(worlds: list[World]) -> None:
    """Figures, phases, and where they were measured."""
    row = measured(rank=3)
    assert row["measured"]["allocated_bytes"] == 4 * GIB
    assert row["measured"]["startup_bytes"] == 2 * GIB
    assert list(row["phases"]) == ["model", "s0.opt"]
    assert row["rank"] == 3
    assert row["group"] == "fsdp"
    around = row["environment"]
    assert (around["gpu"], around["torch"], around["process_group"]) == ("Fake GPU", "9.9", "fake")
    assert around["host_pinned_bytes"] == 4096
    (found,) = rows_from([row])
    assert found.process_group == "fake"
    assert (worlds[0].rank, worlds[0].process_group, worlds[0].device) == (3, "fake", "cuda")


@pytest.mark.parametrize(
    ("kind", "gpus", "group", "said"),
    [
        ("pytorch_ddp", 1, "single", "none"),
        ("pytorch_ddp", 8, "ddp", "nccl, 1 rank"),
        ("deepspeed", 8, "deepspeed", "fake"),
        ("megatron_lm", 8, "megatron", "fake"),
        ("fsdp", 1, "fsdp", "fake"),
    ],
)
def test_each_engine_has_its_process_group(
    worlds: list[World], kind: str, gpus: int, group: str, said: str
) -> None:
    """Real NCCL for DDP, the fake group for what shards, none for one GPU."""
    row = measured(config=small_run(kind, gpus))
    assert (row["group"], row["environment"]["process_group"]) == (group, said)
    assert worlds[0].process_group == said.partition(",")[0]


def test_adapters_have_a_group_of_their_own() -> None:
    """LoRA rows are `peft`."""
    assert program(small_run("pytorch_ddp", 1, training={"lora": {"r": 8}})).group == "peft"


def test_the_cap_is_a_share_of_the_card(worlds: list[World], cuda: FakeCuda) -> None:
    """torch takes a fraction, and rounds its bytes down; the row keeps the bytes."""
    assert measured(cap_bytes=20 * GIB)["environment"]["cap_bytes"] == 20 * GIB
    assert int(cuda.fraction * TOTAL) == 20 * GIB
    with pytest.raises(InputError, match="more than this card has"):
        measured(cap_bytes=TOTAL + 1)


def test_allocator_settings_reach_torch(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the case, or from the shell; what torch refuses is a sentence."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    assert measured()["environment"]["alloc_conf"] == "max_split_size_mb:64"
    row = measured(alloc_conf="expandable_segments:True")
    assert row["environment"]["alloc_conf"] == "expandable_segments:True"
    assert sys.modules["torch"].settings == ["expandable_segments:True"]
    with pytest.raises(InputError, match="is not what torch takes: Unrecognized key 'nonsense'"):
        measured(alloc_conf="nonsense:1")


def test_a_snapshot_is_written_however_the_run_ends(cuda: FakeCuda, tmp_path: Path) -> None:
    """Also when it runs out of memory, where it is wanted most."""

    def fail() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        worker.run_with_snapshot(fail, str(tmp_path / "run.pickle"))
    assert cuda.history == ["recording"]
    assert pickle.loads((tmp_path / "run.pickle").read_bytes()) == cuda.memory._snapshot()


def test_a_rank_is_one_of_the_jobs(worlds: list[World]) -> None:
    """Rank 8 of 8 does not exist."""
    with pytest.raises(InputError, match="--rank 8: the job has 8 ranks; use 0 to 7"):
        measured(rank=8)
    with pytest.raises(InputError, match="the job has 1 rank; use 0"):
        measured(config=small_run("pytorch_ddp", 1), rank=1)


def test_inference_is_a_program_too(cuda: FakeCuda) -> None:
    """An inference section runs with transformers on one GPU."""
    config = {"model": {"name": "gpt2"}, "inference": {"batch_size": 2, "prompt_len": 8}}
    assert program(config).group == "inference"
    with pytest.raises(InputError, match="must be an object"):
        program({"model": {"name": "gpt2"}, "inference": 3})


def test_versions_are_those_that_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is not loaded cannot have changed anything."""
    for module in environment.PACKAGES.values():
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert environment.versions() == {}
    own = type(sys)("peft")
    own.__version__ = "1.2.3"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "peft", own)
    assert set(environment.versions()) == {"peft"}


def test_the_driver_is_what_the_kernel_shows(tmp_path: Path) -> None:
    """The number in NVIDIA's own line."""
    path = tmp_path / "version"
    path.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.82.07  Wed Aug 27\n")
    assert environment.driver(path) == "580.82.07"
    assert environment.driver(tmp_path / "none") == ""


def test_a_cap_may_be_the_whole_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte more is refused."""
    shares: list[float] = []
    cuda = SimpleNamespace(set_per_process_memory_fraction=shares.append)
    monkeypatch.setattr(worker, "import_module", lambda name: SimpleNamespace(cuda=cuda))
    total = 150_110_011_392
    for cap in (total, total // 2, total // 3, 12_736_004_096):
        worker.set_cap(cap, total)
        assert int(shares[-1] * total) == cap
    assert shares[0] == 1.0
    with pytest.raises(InputError, match="more than this card has"):
        worker.set_cap(total + 1, total)
