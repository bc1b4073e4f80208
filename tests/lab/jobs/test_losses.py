"""Jobs with other losses: what runs on a CPU, and what is refused."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator.lab.jobs import losses
from gpu_mem_calculator.lab.jobs.job import Job, World, run
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from tests.lab.trace.conftest import tiny_run

torch = pytest.importorskip("torch")


def job(**training: Any) -> Job:
    """One step of a tiny run."""
    file = read(tiny_run(precision="fp32", seq_len=16, **training)).file
    world = World(device="cpu", mark=lambda name: None, steps=1)
    return Job(file=file, resolved=resolve(file), world=world)


@pytest.mark.parametrize(
    ("training", "package"),
    [
        ({"liger": True}, "liger-kernel==0.8.5"),
        ({"loss": "liger_fused"}, "liger-kernel==0.8.5"),
        ({"loss": "flash_fused"}, "flash-attn==2.8.3"),
        ({"loss": "chunked"}, "trl==1.16.0"),
    ],
)
def test_a_package_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, training: dict[str, Any], package: str
) -> None:
    """With the command that installs it."""

    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError(name=name.partition(".")[0])

    monkeypatch.setattr(losses, "import_module", missing)
    with pytest.raises(InputError, match=f"needs {package}, which is not installed: pip install"):
        run(job(**training))


def test_smoothed_labels_give_transformers_own_loss() -> None:
    """The same number as LabelSmoother's formula: (1 - e) nll + e mean."""
    logits = torch.randn(2, 5, 7)
    labels = torch.randint(0, 7, (2, 5))
    one = job(label_smoothing=0.1)
    found = losses.step_loss(
        one,
        lambda input_ids: {"logits": logits},
        {"input_ids": labels, "labels": labels},
        torch.no_grad(),
    )
    probabilities = torch.log_softmax(logits[:, :-1], -1)
    nll = -probabilities.gather(-1, labels[:, 1:, None]).mean()
    assert found == pytest.approx(float(0.9 * nll - 0.1 * probabilities.mean()), rel=1e-5)


def test_labels_are_the_next_tokens() -> None:
    """The last token has none."""
    shifted = losses.next_labels(torch.tensor([[1, 2, 3], [4, 5, 6]]))
    assert shifted.tolist() == [2, 3, -100, 5, 6, -100]


def test_a_users_module_keeps_its_loss() -> None:
    """Another one is refused, not ignored."""
    one = job(label_smoothing=0.1)
    mine = Job(file=one.file, resolved=one.resolved, world=one.world, build=lambda: (None, None))
    with pytest.raises(InputError, match="a user's module has its own loss"):
        run(mine)


def test_a_job_with_another_loss_runs() -> None:
    """On a CPU, with torch alone."""
    run(job(label_smoothing=0.1))


def test_a_reward_compares_the_first_half_with_the_second() -> None:
    """Chosen sequences come first."""
    scores = torch.tensor([[3.0], [1.0], [2.0], [5.0]])
    model = SimpleNamespace(forward=lambda **_: SimpleNamespace(logits=scores))
    losses.reward_loss(model, job().resolved.run)
    expected = -torch.nn.functional.logsigmoid(torch.tensor([1.0, -4.0])).mean()
    assert model.forward()["loss"] == expected
