"""The tables of measured speed follow from the data that they name."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from gpu_mem_calculator.catalog.curve_files import curve
from gpu_mem_calculator.timing.curves import elementwise, host, optimizers

CARD = "h200-141gb-sxm"
BANDWIDTH = 4.8e12
LARGE = 2**30
SHARES = {  # kernel -> the share, and the part of the bytes in the data that it moves
    "add_bf16": (elementwise.PLAIN, 1.0),
    "cast_fp32_bf16": (elementwise.PLAIN, 1.0),
    "cast_bf16_fp32": (elementwise.WIDENED, 1.0),
    "silu_bf16": (elementwise.ACTIVATION, 1.0),
    "dropout_bf16": (elementwise.DROPOUT, 1.0),
    "layer_norm_bf16": (elementwise.NORM, 1.0),
    "layer_norm_backward_bf16": (elementwise.NORM_BACKWARD, 1.0),
    "softmax_fp32": (elementwise.SOFTMAX[32], 1.0),
    "softmax_bf16": (elementwise.SOFTMAX[16], 1.0),
    "cross_entropy_128k": (elementwise.LOG_SOFTMAX, 8 / 12),
    "cross_entropy_backward_128k": (elementwise.LOG_SOFTMAX_BACKWARD, 16 / 12),
}


@pytest.mark.parametrize(("kernel", "share", "part"), [(k, *v) for k, v in SHARES.items()])
def test_shares_are_those_of_large_tensors(kernel: str, share: float, part: float) -> None:
    """Bytes over microseconds, over the bandwidth of the data sheet."""
    rows = curve("elementwise", CARD)["kernels"][kernel]
    rates = [part * moved / (1e-6 * us) / BANDWIDTH for moved, us, *_ in rows if moved > LARGE]
    assert median(rates) == pytest.approx(share, rel=0.1)


def test_a_kernel_without_work_has_a_time() -> None:
    """An addition of 64 KiB."""
    assert curve("elementwise", CARD)["kernels"]["add_bf16"][0][1] == pytest.approx(
        1e6 * elementwise.KERNEL_SECONDS, rel=0.1
    )


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["foreach", "fused"])
def test_bytes_of_adam_are_those_of_aligned_tensors(name: str, dtype: str) -> None:
    """0.1 billion parameters in 16 tensors, less what passes until the first kernel starts."""
    rows = curve("optimizers", CARD)["rows"]
    (found,) = (r for r in rows if r[:2] == ["adamw", name] and r[3:6] == [dtype, 10**8, 16])
    row = optimizers.CURVES["adamw", name]
    given = row.half if dtype == "bf16" else row.wide
    least, most = (1e-6 * (found[6] - wait) * BANDWIDTH / 10**8 for wait in (350, 50))
    assert least < given < most


def test_pinned_copies_reach_the_link() -> None:
    """1 GiB in each direction."""
    rows = [r for r in curve("transfers", CARD)["rows"] if r["what"] == "copy"]
    for direction, rates in (("to_gpu", host.TO_GPU), ("to_host", host.TO_HOST)):
        for pinned, rate in rates.items():
            found = [
                r["bytes"] / (1e-6 * r["seconds"])
                for r in rows
                if r["direction"] == direction and r["pinned"] == pinned and r["bytes"] >= 2**26
            ]
            assert median(found) == pytest.approx(rate, rel=0.1)


def test_adam_on_the_host() -> None:
    """Seconds of a parameter with eight threads."""
    rows = curve("transfers", CARD)["rows"]
    (found,) = (r for r in rows if r.get("how") == "deepspeed" and r["threads"] == 8)
    given = 1e6 * host.CPU_ADAM * found["parameters"]
    assert found["seconds"] == pytest.approx(given, rel=0.05)


def layer(data: dict[str, Any], name: str, phase: str) -> float:
    """Seconds of the host for one layer: of twelve, less those of four, over eight."""
    models = data["models"]
    return float(models[f"{name}-12"][phase] - models[f"{name}-4"][phase]) / 8e6


def test_hosts_of_small_models() -> None:
    """FSDP's hooks and checkpointing are what a layer takes more with them; a quarter is noise."""
    data = curve("host", CARD)
    families = ("llama", "qwen2", "gemma3_text", "gpt2", "gpt_neox", "opt", "mistral", "qwen3")
    more = [
        sum(layer(data, f"{f}-ckpt", phase) for phase in ("a0.fwd", "a0.bwd"))
        - sum(layer(data, f"{f}-pure", phase) for phase in ("a0.fwd", "a0.fwd", "a0.bwd"))
        for f in families
    ]
    assert median(more) == pytest.approx(host.CHECKPOINT, rel=0.25)
    plain, sharded = (
        sum(layer(data, f"llama-{kind}", phase) for phase in ("a0.fwd", "a0.bwd"))
        for kind in ("pure", "fsdp")
    )
    hooks = host.FSDP_UNIT + host.FSDP_BACK_UNIT
    assert sharded - plain == pytest.approx(hooks, rel=0.35)
