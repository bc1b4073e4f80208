"""What the recorder writes down, and what it leaves to CUDA's ways."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpu_mem_calculator.lab.trace.recorder import Recorder, sums_in_place  # noqa: E402
from gpu_mem_calculator.lab.trace.workspaces import workspaces  # noqa: E402
from gpu_mem_calculator.ledger.units import MIB  # noqa: E402

aten = torch.ops.aten


def recorded(program: Any) -> Recorder:
    """The recording of a program on fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    recorder = Recorder(32 * MIB)
    with torch.autograd.set_multithreading_enabled(False), FakeTensorMode(), recorder.recording():
        program()
    return recorder


def test_tensors_are_made_and_freed_in_order() -> None:
    """One event for each storage that is made, one for each that goes, none for a view."""

    def program() -> None:
        a = torch.zeros(1000)
        b = a.view(10, 100) * 2
        del a
        b.t()

    found = recorded(program)
    assert found.sizes == [4000, 4000]
    assert found.events == [0, 1, ~0, ~1]


def test_operations_in_place_make_nothing() -> None:
    """`mul_`, and a foreach over many tensors, take no memory."""

    def program() -> None:
        many = [torch.zeros(8) for _ in range(3)]
        torch._foreach_add_(many, 1.0)
        many[0].mul_(2)

    assert len(recorded(program).sizes) == 3


def test_a_sum_of_gradients_takes_the_memory_of_its_first_term() -> None:
    """The sum 2 of 0 and 1 is written over 0; whoever frees it later frees 0."""
    events, before = sums_in_place([0, 1, 2, ~0, ~1, 3, ~2, ~3], {2: 0})
    assert events == [0, 1, ~1, 3, ~0, ~3]
    assert [before[5], before[8]] == [3, 6]  # where marks go


def test_a_term_that_someone_else_holds_is_kept() -> None:
    """Where the first term is not freed at once, the sum has memory of its own."""
    events, _ = sums_in_place([0, 1, 2, 3, ~0, ~1, ~2, ~3], {2: 0})
    assert events == [0, 1, 2, 3, ~0, ~1, ~2, ~3]


def test_a_sum_of_a_sum_keeps_the_first_memory() -> None:
    """Three gradients of one tensor end up where the first was."""
    events, _ = sums_in_place([0, 1, 2, ~0, ~1, 3, 4, ~2, ~3, ~4], {2: 0, 4: 2})
    assert events == [0, 1, ~1, 3, ~3, ~0]


def test_checks_of_a_model_pass() -> None:
    """Masks are full and numbers finite, so a model takes its usual way."""

    def program() -> None:
        mask = torch.ones(4, dtype=torch.bool)
        assert bool(mask.all())
        assert not bool(mask.any())
        assert not torch.rand(()).item() < 0.5

    recorded(program)


def test_each_thread_has_a_cublas_workspace() -> None:
    """One for forward, one for backward, and one of 1 MiB for matmuls that add a bias."""

    def program() -> None:
        layer = torch.nn.Linear(8, 8)
        layer(torch.zeros(4, 8, requires_grad=True)).sum().backward()

    found = recorded(program)
    sizes = sorted(
        size
        for size, who in zip(found.sizes, found.makers, strict=True)
        if who.op.startswith("cuBLAS")
    )
    assert sizes == [MIB, 32 * MIB, 32 * MIB]


def test_backward_is_named_after_the_line_that_went_forward() -> None:
    """A gradient's maker is the forward's module line, not the call of backward."""

    def program() -> None:
        x = torch.zeros(4, 8, requires_grad=True)
        y = x.exp()  # this line
        y.sum().backward()

    makers = recorded(program).makers
    lines = {who.line for who in makers if who.backward and who.op == "aten::mul"}
    assert len(lines) == 1
    assert next(iter(lines)).split(":")[0] == __file__


@pytest.mark.parametrize(
    ("count", "bytes_"), [(3072, 0), (4096, 5 * 8 * 4096 + 4505 * 8 + 4505 * 2048 * 4)]
)
def test_the_embedding_sorts_from_3073_tokens_on(count: int, bytes_: int) -> None:
    """As an H200 did with 4,096 tokens of Llama 3.2 1B."""
    with torch.device("meta"):
        grad, ids = torch.empty(count, 2048), torch.empty(count, dtype=torch.long)
    args = (grad, ids, 128256, -1, False)
    assert sum(workspaces(aten.embedding_dense_backward.default, args)) == bytes_


def test_cudnn_holds_grouped_gradients_for_every_head() -> None:
    """The backward's workspace as measured: an fp32 dq, a row sum, and dk and dv spread out."""
    with torch.device("meta"):
        q = torch.empty(2, 32, 128, 64, dtype=torch.bfloat16)
        k = torch.empty(2, 8, 128, 64, dtype=torch.bfloat16)
    found = workspaces(aten._scaled_dot_product_cudnn_attention_backward.default, (q, q, k, k))
    rows = 2 * 32 * 128
    assert list(found) == [rows * (4 * 64 + 4) + 256 + 2 * rows * 64 * 2]
