"""What kernels hold while they run, by the shapes of their inputs, and frames of a snapshot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpu_mem_calculator.lab.jobs.recompute import recompute  # noqa: E402
from gpu_mem_calculator.lab.trace import cuda, recorder, workspaces  # noqa: E402
from gpu_mem_calculator.lab.trace.device_names import DeviceNames  # noqa: E402
from gpu_mem_calculator.lab.trace.snapshot import frames  # noqa: E402
from gpu_mem_calculator.lab.trace.storages import HostStorages  # noqa: E402
from gpu_mem_calculator.run.recompute import EVERYTHING  # noqa: E402

BF16, FP32 = torch.bfloat16, torch.float32


def meta(*shape: int, dtype: Any = BF16) -> Any:
    """A tensor without memory."""
    return torch.empty(*shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("kernel", "kv_heads", "dtype", "sizes"),
    [
        # batch 2, 4 heads, 100 tokens, heads of 64; dq and a row sum in fp32, and 256 bytes
        ("cudnn_backward", 4, BF16, [2 * 4 * 100 * (4 * 64 + 4) + 256]),
        ("cudnn_backward", 2, BF16, [2 * 4 * 100 * (4 * 64 + 4) + 256 + 2 * 2 * 51200]),
        # 100 tokens are padded to 128
        ("flash_backward", 4, BF16, [2 * 128 * 4 * 4, 2 * 128 * 4 * 4 * 64]),
        ("flash_backward", 2, BF16, [4096, 4096 * 64, 2 * 51200, 2 * 51200]),
        ("efficient_backward", 4, BF16, [2 * 128 * 4 * 4]),
        ("efficient_backward", 4, FP32, [4096, 4096, 51200 * 4]),
    ],
)
def test_attention_holds_sums_of_its_rows(
    kernel: str, kv_heads: int, dtype: Any, sizes: list[int]
) -> None:
    """And, where key-value heads are shared, the gradients of every head."""
    q, k = meta(2, 4, 100, 64, dtype=dtype), meta(2, kv_heads, 100, 64, dtype=dtype)
    assert list(getattr(workspaces, kernel)(q, q, k, k)) == sizes


@pytest.mark.parametrize(
    ("shape", "dims", "sizes"),
    [
        # 4096 rows of 128 columns: 4 threads take 1024 rows each, so 64 blocks of 16 rows a thread
        ((4096, 128), [0], [128 * 128 * 64 * 4]),
        ((2, 2048, 128), [0, 1], [128 * 128 * 64 * 4]),
        ((2, 2048, 128), [0, -2], [128 * 128 * 64 * 4]),
        ((4096, 128), [1], []),
        ((4096, 128), None, []),
        ((4096,), [0], []),
        ((512, 128), [0], [0]),
    ],
)
def test_a_sum_over_many_rows_leaves_partial_sums(
    shape: tuple[int, ...], dims: list[int] | None, sizes: list[int]
) -> None:
    """Over all dimensions but the last."""
    assert list(workspaces.row_sums(meta(*shape), dims)) == sizes


@pytest.mark.parametrize(
    ("line", "module", "backward", "expected"),
    [
        ("a.py:7", "", False, [("a.py", 7, "mul")]),
        ("", "", True, [("torch", 0, "mul (backward)")]),
        ("a.py:7", "layers.0", False, [("a.py", 7, "mul"), ("module", 0, "layers.0")]),
    ],
)
def test_an_allocation_has_its_line_and_its_module(
    line: str, module: str, backward: bool, expected: list[tuple[str, int, str]]
) -> None:
    """As frames of torch's snapshot."""
    maker: Any = SimpleNamespace(op="mul", line=line, module=module, backward=backward)
    stack = [(one["filename"], one["line"], one["name"]) for one in frames(maker)]
    assert stack == expected


@pytest.mark.parametrize(
    ("given", "dtype", "converted"),
    [
        (torch.float16, torch.float32, True),
        (torch.float16, None, False),
        (torch.float16, torch.float16, False),
        (torch.bfloat16, torch.float32, False),
        (torch.float32, torch.float32, False),
    ],
)
def test_softmax_from_fp16_to_fp32_is_one_kernel(given: Any, dtype: Any, converted: bool) -> None:
    """Other conversions make a copy first."""
    calls = []
    cuda._softmax(lambda *args: calls.append(args), torch.ones(2, dtype=given), 0, dtype)
    ((x, dim, flag),) = calls
    assert (dim, flag) == (0, converted)
    assert x.dtype == (given if converted or dtype is None else dtype)


@pytest.mark.parametrize(("name", "overload"), [("add.Tensor", "Tensor"), ("relu", "default")])
def test_an_operator_without_an_overload_is_the_default_one(name: str, overload: str) -> None:
    """As torch names it."""
    assert cuda._operator(name)._overloadname == overload


@pytest.mark.parametrize(("quarters", "on"), [(1, 2), (2, 4), (3, 6), (4, 8)])
def test_a_share_of_the_layers_is_recomputed(quarters: int, on: int) -> None:
    """The first of eight layers, by quarters."""
    model = torch.nn.Module()
    model.stack = torch.nn.ModuleList(torch.nn.Identity() for _ in range(8))
    for layer in model.stack:
        layer.gradient_checkpointing = True
    model.gradient_checkpointing_enable = lambda *_, **__: None
    run: Any = SimpleNamespace(
        recompute="full",
        reentrant=False,
        recompute_quarters=quarters,
        rule=EVERYTHING,
        arch=SimpleNamespace(layers=range(8)),
    )
    recompute(run, model, list(model.stack))
    assert [layer.gradient_checkpointing for layer in model.stack] == [n < on for n in range(8)]


@pytest.mark.parametrize(("dtype", "result"), [(None, BF16), (FP32, FP32)])
@pytest.mark.parametrize("place", ["meta", "cpu"])
def test_a_tensor_keeps_its_dtype_unless_another_is_named(
    place: str, dtype: Any, result: Any
) -> None:
    """Wherever it is moved."""
    names = DeviceNames(HostStorages())
    moved = names._to(torch.ones(2, dtype=BF16), torch.device(place), dtype)
    assert (moved.dtype, moved.device.type) == (result, place)


def test_integers_are_counted_as_on_a_gpu() -> None:
    """torch's own function refuses them on the CPU; floats go through it."""
    whole = recorder.shaped_result(recorder.COUNTS, (torch.ones(10, dtype=torch.int64), 5), {})
    assert (tuple(whole.shape), whole.dtype) == ((5,), torch.int64)
    floats = recorder.shaped_result(recorder.COUNTS, (torch.ones(10), 5), {})
    assert tuple(floats.shape) == (5,)


@pytest.mark.parametrize(
    ("left", "right", "groups", "shape"),
    [
        ((10, 4), (3, 4, 6), None, (10, 6)),
        ((4, 10), (10, 6), 3, (3, 4, 6)),  # the gradient of the weights, a matrix for each group
    ],
)
def test_grouped_matmuls_have_a_row_or_a_matrix_for_each_group(
    left: tuple[int, ...], right: tuple[int, ...], groups: int | None, shape: tuple[int, ...]
) -> None:
    """In dtypes that torch's own shape function refuses."""
    ends = None if groups is None else meta(groups, dtype=torch.int32)
    product = recorder.shaped_result(
        recorder.GROUPED, (meta(*left, dtype=FP32), meta(*right, dtype=FP32), ends), {}
    )
    assert tuple(product.shape) == shape


def test_a_tensor_says_that_it_is_on_the_gpu() -> None:
    """On the machine that traces, it is on the CPU."""
    x = torch.ones(2)
    assert (x.is_cuda, x.is_cpu, x.get_device()) == (False, True, -1)
    with DeviceNames(HostStorages()):
        assert (x.is_cuda, x.is_cpu, x.get_device()) == (True, False, 0)
