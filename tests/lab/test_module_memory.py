"""What a module takes, against the trace of a run file, torch's own tracker, and sums by hand."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from gpu_mem_calculator import InputError, estimate_memory
from gpu_mem_calculator.lab.jobs.function import STAND_IN
from gpu_mem_calculator.lab.trace.run import trace
from gpu_mem_calculator.ledger.units import MIB

BLOCK = 512  # torch rounds every request up to this


class Net(nn.Module):
    """Four blocks; with `returns_loss`, the mean of the output."""

    def __init__(self, width: int = 256, *, returns_loss: bool = True) -> None:
        super().__init__()
        pairs = (
            (nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in "1234"
        )
        self.blocks = nn.ModuleList(nn.Sequential(*one) for one in pairs)
        self.returns_loss = returns_loss

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        """The loss or the output."""
        for block in self.blocks:
            x = x + block(x) * scale
        return x.mean() if self.returns_loss else x


def size(module: Any) -> int:
    """Bytes of the parameters."""
    return sum(one.nbytes for one in module.parameters())


def test_it_is_what_the_trace_of_a_run_file_says() -> None:
    """The same steps with the same optimizer, but for the counters of steps: torch's are on the
    host, and that trace has a block for each.
    """
    count = sum(1 for _ in Net().parameters()) + 1
    rows = torch.randn(512, 256)
    training = {"precision": "fp32", "optimizer": "adamw", "gradient_clipping": 0}
    run = {"model": dict(STAND_IN), "training": training, "hardware": {"gpu": "h100-80gb-sxm"}}
    traced = trace(run, build=lambda: (Net(), (torch.randn(512, 256),)))
    found = estimate_memory(Net(), rows, "adamw")
    assert 0 <= traced.allocated_bytes - found.allocated_bytes <= count * BLOCK
    assert found.needs_bytes == pytest.approx(traced.needs_bytes, rel=0.001)
    assert found.reserved_bytes == traced.reserved_bytes


def test_torchs_own_tracker_counts_the_same_tensors() -> None:
    """MemTracker on the same two steps, without CUDA's workspaces: within 0.1 %."""
    with FakeTensorMode():
        model, rows = Net(), torch.randn(4096, 256)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
        tracker = MemTracker()
        tracker.track_external(model, optimizer, rows)
        with tracker as watched:
            for _ in range(2):
                tracker.reset_mod_stats()
                model(rows).backward()
                optimizer.step()
                optimizer.zero_grad()
        peak = watched.get_tracker_snapshot("peak")
    counted = max(sum(v for k, v in one.items() if k != "Total") for one in peak.values())
    made = Net()
    given = torch.optim.SGD(made.parameters(), lr=0.1, momentum=0.9, foreach=False)
    found = estimate_memory(made, torch.randn(4096, 256), given)
    traced = found.trace()
    entries = (one for one in traced.ledger.entries if "workspace" in one.name)
    workspaces = sum(int(one.at(traced.peak_phase)) for one in entries)
    assert workspaces > 64 * MIB
    assert found.allocated_bytes - workspaces == pytest.approx(counted, rel=0.001)


@pytest.mark.parametrize(
    ("optimizer", "copies"),
    [("adamw", 2), (torch.optim.Adam, 2), ("sgd", 0), (torch.optim.Adagrad, 1)],
)
def test_states_are_those_of_the_optimizer(optimizer: Any, copies: int) -> None:
    """Parameters as they are, states by the optimizer; small blocks are rounded up."""
    found = estimate_memory(Net(), torch.randn(512, 256), optimizer)
    assert found.parameter_bytes == pytest.approx(size(Net()), rel=0.2)
    assert found.optimizer_bytes == pytest.approx(copies * size(Net()), rel=0.001)


def test_an_instance_is_copied_with_its_groups_and_nothing_of_it_changes() -> None:
    """Frozen parameters take no gradient; the model and the optimizer stay as they were."""
    model = Net()
    model.blocks[0].requires_grad_(False)
    trained = [one for one in model.parameters() if one.requires_grad]
    groups = [{"params": trained[:2], "weight_decay": 0.0}, {"params": trained[2:]}]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    before = [one.clone() for one in model.parameters()]
    found = estimate_memory(model, (torch.randn(512, 256), 2.0), optimizer)
    assert found.optimizer_bytes == pytest.approx(2 * sum(p.nbytes for p in trained), rel=0.001)
    assert not optimizer.state
    assert all(torch.equal(one, two) for one, two in zip(before, model.parameters(), strict=True))
    assert all(one.grad is None for one in model.parameters())
    assert torch.cuda.is_available() is False


def test_a_model_on_the_meta_device_says_the_same() -> None:
    """Nothing is allocated for it: also not for one of 100 GB."""
    rows = torch.randn(64, 256)
    with torch.device("meta"):
        made, large = Net(), Net(width=30_000)
    kept = {"x": torch.empty(64, 256, device="meta")}
    assert estimate_memory(made, kept, "adamw").needs_bytes == (
        estimate_memory(Net(), rows, "adamw").needs_bytes
    )
    whole = estimate_memory(large, torch.empty(8, 30_000, device="meta"), "adamw")
    assert whole.parameter_bytes > 10**11
    assert not whole.fits("h200")


def test_tied_weights_count_once() -> None:
    """As torch has them."""
    model = Net()
    alone = estimate_memory(model, torch.randn(512, 256), "sgd").parameter_bytes
    model.blocks[1][0].weight = model.blocks[0][0].weight
    tied = estimate_memory(model, torch.randn(512, 256), "sgd").parameter_bytes
    assert alone - tied == model.blocks[0][0].weight.nbytes


def test_it_fits_or_not_by_the_card() -> None:
    """The verdict is that of a replay under the card's memory less what is outside torch."""
    found = estimate_memory(Net(width=2048), torch.randn(8192, 2048), "adamw")
    assert found.fits("h100")
    assert found.fits({"gpu": "h100", "gpu_memory_gb": 80})
    assert not found.fits({"gpu_memory_gb": 4})
    assert found.verdict({"gpu_memory_gb": 4}) == "does_not_fit"
    assert found.trace("h100-80gb-sxm") is found.trace()
    small = found.trace("4090")  # its cuBLAS has a smaller workspace
    assert small.allocated_bytes < found.allocated_bytes
    assert "allocated" in repr(found)
    assert "torch needs" in found._repr_html_()


def test_without_an_optimizer_it_runs_forward() -> None:
    """No gradients, and no graph."""
    found = estimate_memory(Net(), torch.randn(512, 256))
    assert found.gradient_bytes == found.optimizer_bytes == 0
    assert found.peak_phase == "step 1: forward"


def test_the_sum_of_an_output_is_the_loss_where_there_is_none() -> None:
    """And is said; a function may make another."""
    model, rows = Net(returns_loss=False), torch.randn(512, 256)
    assert "the sum of its first output" in estimate_memory(model, rows, "sgd").notes[0]
    squared = estimate_memory(model, rows, "sgd", loss=lambda output: output.square().mean())
    assert squared.notes == ()


class Reads(nn.Module):
    """A module whose path depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        """Some rows."""
        return self.linear(x[x[:, 0].nonzero()])


@pytest.mark.parametrize(
    ("model", "sample", "optimizer", "more", "words"),
    [
        ("gpt2", None, None, {}, "the model is a str; give a torch.nn.Module"),
        (Net(), torch.randn(8, 256), "adamm", {}, "did you mean 'adam'"),
        (Net(), torch.randn(8, 256), dict, {}, "the optimizer is a dict"),
        (Net(), torch.randn(8, 256), "sgd", {"gpu": "nope"}, "'nope' is not a known card"),
        (Net(), torch.randn(8, 256), "sgd", {"loss": lambda x: [x]}, "loss returns a list"),
        (Net().requires_grad_(False), torch.randn(8, 256), "sgd", {}, "no parameter of the model"),
        (
            Net(),
            torch.randn(8, 256),
            torch.optim.SGD(Net().parameters()),
            {},
            "are not the model's",
        ),
        (Reads(), torch.randn(8, 8), "sgd", {}, "reads the values of a tensor"),
    ],
)
def test_bad_input_is_one_sentence(
    model: Any, sample: Any, optimizer: Any, more: dict[str, Any], words: str
) -> None:
    """What is wrong, and what to give."""
    with pytest.raises(InputError, match=words):
        estimate_memory(model, sample, optimizer, **more)


def test_a_device_is_a_card() -> None:
    """An index names none."""
    with pytest.raises(InputError, match="device=0 is no card"):
        estimate_memory(Net(), torch.randn(8, 256)).fits(0)


def test_torch_is_imported_when_it_is_called() -> None:
    """And asked for in a sentence where it is not installed."""
    code = (
        "import sys; from gpu_mem_calculator import estimate_memory, InputError\n"
        "assert 'torch' not in sys.modules; sys.modules['torch'] = None\n"
        "try: estimate_memory(1, 2)\nexcept InputError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "estimate_memory needs torch, which is not installed" in done.stdout


def test_an_error_of_the_model_is_printed_once(capfd: pytest.CaptureFixture[str]) -> None:
    """It is raised, and torch's log of it is not shown."""
    with pytest.raises(RuntimeError, match="reduction dim"):
        estimate_memory(torch.nn.Linear(8, 8), torch.randn(4, 7), "sgd").allocated_bytes  # noqa: B018
    assert "Traceback" not in capfd.readouterr().err
