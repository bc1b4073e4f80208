"""torch on a CPU, made to choose as on a GPU."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpu_mem_calculator.lab.trace.attention import AttentionKernels, choose_kernel  # noqa: E402
from gpu_mem_calculator.lab.trace.cuda import _cross_entropy, _dropout, as_on_cuda  # noqa: E402

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def heads(count: int, size: int, dtype: Any) -> Any:
    """Queries, keys or values without memory."""
    return torch.empty(1, count, 64, size, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("dtype", "kv", "size", "mask", "card", "kernel"),
    [
        (BF16, 8, 64, False, "9.0", "cudnn"),
        (BF16, 2, 64, False, "9.0", "cudnn"),
        (BF16, 8, 64, True, "9.0", "cudnn"),
        (BF16, 2, 64, False, "8.0", "flash"),
        (BF16, 8, 64, True, "8.0", "efficient"),
        (BF16, 8, 320, False, "9.0", "efficient"),
        (FP32, 8, 64, False, "9.0", "efficient"),
        (FP32, 2, 64, False, "9.0", "math"),
        (BF16, 2, 320, False, "8.0", "math"),
        (FP16, 8, 64, False, "7.5", "efficient"),
        (FP16, 2, 64, False, "7.5", "math"),
        (BF16, 8, 64, False, "7.5", "math"),
    ],
)
def test_the_kernel_that_a_gpu_takes(
    dtype: Any, kv: int, size: int, mask: bool, card: str, kernel: str
) -> None:
    """By dtype, grouped heads, head size, mask and card."""
    q, k = heads(8, size, dtype), heads(kv, size, dtype)
    given = torch.empty(1, 1, 64, 64, device="meta") if mask else None
    assert choose_kernel(q, k, k, given, gqa=kv != 8, compute_capability=card) == kernel


def fake(program: Any, kernels: AttentionKernels | None = None) -> Any:
    """Run on fake tensors with a GPU's choices."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), as_on_cuda("9.0", kernels or AttentionKernels()):
        return program()


def test_users_are_told_of_the_math_path() -> None:
    """fp32 with grouped heads holds every s × s map, and torch does not say so."""
    kernels = AttentionKernels()

    def program() -> None:
        q, k = torch.zeros(1, 8, 64, 32), torch.zeros(1, 2, 64, 32)
        torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)

    fake(program, kernels)
    (note,) = kernels.notes()
    assert "math path" in note
    assert "float32" in note


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.softmax(x, -1),
        lambda x: x.pow(2),
        lambda x: torch.nn.functional.layer_norm(x, (8,)),
        lambda x: x.sum(-1),
        lambda x: torch.nn.functional.cross_entropy(x, torch.zeros(4, dtype=torch.long)),
    ],
)
def test_autocast_widens_what_cuda_widens(function: Any) -> None:
    """Also inside functions of C++, such as the loss."""

    def program() -> Any:
        with torch.autocast("cpu", dtype=BF16):
            return function(torch.zeros(4, 8, dtype=BF16)).dtype

    assert fake(program) == FP32


def test_autocast_narrows_matmuls() -> None:
    """As on every device."""

    def program() -> Any:
        with torch.autocast("cpu", dtype=BF16):
            return (torch.zeros(4, 8) @ torch.zeros(8, 4)).dtype

    assert fake(program) == BF16


def test_dropout_keeps_a_mask_of_bytes() -> None:
    """One fused kernel, as on a GPU."""

    def program() -> Any:
        x = torch.zeros(4, 8, requires_grad=True)
        return torch.nn.functional.dropout(x, 0.5).grad_fn.name()

    assert fake(program) == "NativeDropoutBackward0"


def test_nothing_stays_behind() -> None:
    """After a trace, torch on the CPU is as it was."""
    fake(lambda: None)
    x = torch.zeros(4, 8, requires_grad=True)
    assert torch.nn.functional.dropout(x, 0.5).grad_fn.name() != "NativeDropoutBackward0"
    with torch.autocast("cpu", dtype=BF16):
        assert torch.zeros(4, 8, dtype=BF16).pow(2).dtype == BF16


def test_a_rms_norm_is_one_kernel() -> None:
    """It saves its 16-bit input and one number per row, and no fp32 copy."""
    saved: list[Any] = []

    def program() -> None:
        x = torch.empty(4, 64, dtype=BF16, requires_grad=True)
        weight = torch.ones(64, dtype=BF16, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: saved.append((tuple(t.shape), t.dtype)) or t, lambda t: t
        ):
            y = torch.nn.functional.rms_norm(x, (64,), weight)
        y.sum().backward()
        assert x.grad.shape == x.shape
        assert weight.grad.shape == weight.shape

    fake(program)
    assert saved == [((4, 64), BF16), ((64,), BF16), ((4,), FP32)]


@pytest.mark.parametrize(("elements", "made"), [(0, False), (1, True), (8, True)])
def test_dropout_makes_a_tensor_unless_there_is_nothing_to_drop(elements: int, made: bool) -> None:
    """An empty input is its own result."""
    x = torch.ones(elements)
    assert (_dropout(x, 0.5, True) is not x) == made
    assert _dropout(x, 0.5, False) is x


@pytest.mark.parametrize(
    ("logits", "target"), [((5,), ()), ((3, 5), (3,)), ((2, 5, 4), (2, 4))], ids=str
)
def test_the_loss_is_torchs(logits: tuple[int, ...], target: tuple[int, ...]) -> None:
    """Classes are the first dimension of one, else the second."""
    x = torch.arange(torch.Size(logits).numel(), dtype=FP32).reshape(logits).sin()
    labels = torch.ones(target, dtype=torch.long)
    expected = torch.nn.functional.cross_entropy(x, labels)
    assert torch.allclose(_cross_entropy(x, labels), expected)
