"""DeepSpeed's engine on fake tensors: what is on the GPU, what is not, and what is left behind."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import Any

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from tests.corpus import sampled
from tests.lab.trace.conftest import tiny_run

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("deepspeed")

from gpu_mem_calculator.lab.trace.run import RunTrace, trace  # noqa: E402

GPUS = 4
PARAMETERS = 106_816  # of the tiny Llama


def run_of(stage: int, *, precision: str = "bf16_mixed", **engine: Any) -> dict[str, Any]:
    """A tiny run under ZeRO."""
    return {
        **tiny_run(precision=precision),
        "hardware": {"gpu": "h200", "num_gpus": GPUS},
        "engine": {"type": "deepspeed", "zero_stage": stage, **engine},
    }


def held(found: RunTrace, kind: str) -> int:
    """Bytes of one kind that are there when the run ends."""
    alive: set[int] = set()
    for event in found.stream.events[: found.stream.marks[-1][0]]:
        alive.add(event) if event >= 0 else alive.discard(~event)
    return sum(found.stream.sizes[one] for one in alive if found.kinds[one] == kind)


@pytest.mark.parametrize("stage", sampled([3, 0, 2, 1], keep=1))
def test_masters_and_states_are_cut_from_stage_1_on(stage: int) -> None:
    """Adam in mixed precision: 12 bytes for every parameter that a rank keeps them of."""
    found = trace(run_of(stage, stage3_param_persistence_threshold=0))
    kept = PARAMETERS / (GPUS if stage else 1)
    assert held(found, "optim") == pytest.approx(12 * kept, rel=0.01)
    weights = PARAMETERS / (GPUS if stage == 3 else 1)
    assert held(found, "param") == pytest.approx(2 * weights, rel=0.02)


@pytest.mark.parametrize("precision", ["fp32", "fp16_mixed"])
def test_the_engine_casts_the_users_own_model(precision: str) -> None:
    """A function makes fp32 weights; the engine trains them in the run's precision."""

    def build() -> tuple[Any, Any]:
        model = torch.nn.Sequential(torch.nn.Linear(256, 256, device="cuda"), Mean())
        dtype = torch.float32 if precision == "fp32" else torch.float16
        return model, (torch.randn(8, 256, device="cuda", dtype=dtype),)

    class Mean(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.mean()

    found = trace(run_of(2, precision=precision), build=build)
    count = 256 * 257
    width = 4 if precision == "fp32" else 2
    assert held(found, "param") == pytest.approx(count * width, rel=0.01)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("stage", "engine"),
    sampled(
        [
            (3, {"offload_optimizer": "cpu", "offload_param": "cpu"}),
            (3, {"offload_optimizer": "cpu"}),
            (2, {"offload_optimizer": "cpu", "pin_memory": False}),
            (1, {"offload_optimizer": "cpu"}),
        ],
        keep=1,
    ),
)
def test_what_is_offloaded_is_not_on_the_gpu(stage: int, engine: dict[str, Any]) -> None:
    """Masters and states are the host's, and in stage 3 the shards of the weights where asked."""
    found = trace(run_of(stage, stage3_param_persistence_threshold=0, **engine))
    assert held(found, "optim") == 0
    weights = PARAMETERS / (GPUS if stage == 3 else 1)
    wanted = 0 if "offload_param" in engine else 2 * weights
    assert held(found, "param") == pytest.approx(wanted, rel=0.02, abs=2048)


def test_a_program_hears_the_names_of_its_devices() -> None:
    """As on a GPU: what is moved to the host is copied there, and is no block of the card."""
    sizes = {"gpu": 12_345_600, "host": 23_456_700, "pinned": 34_567_800, "back": 45_678_900}
    heard = {}

    def build() -> tuple[Any, Any]:
        here = torch.empty(sizes["gpu"], dtype=torch.uint8, device="cuda")
        there = torch.empty(sizes["host"], dtype=torch.uint8, device="cpu")
        locked = torch.empty(sizes["pinned"], dtype=torch.uint8, device="cpu").pin_memory()
        back = torch.empty(sizes["back"], dtype=torch.uint8, device="cpu").to("cuda:0")
        for name, one in (
            ("here", here),
            ("there", there),
            ("locked", locked),
            ("back", back),
            ("copy", here.cpu()),
            ("half", here.to("cpu", torch.float16)),
            ("sum", there + there),
        ):
            heard[name] = (str(one.device), one.is_cuda, one.type().startswith("torch.cuda."))
        assert here.to("cuda") is here
        assert here.data_ptr() != back.data_ptr()
        return torch.nn.Sequential(torch.nn.Linear(8, 1, device="cuda"), Mean()), (
            torch.ones(4, 8, device="cuda"),
        )

    class Mean(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.mean()

    found = trace(run_of(1, precision="fp32"), build=build, steps=1)
    on_gpu = ("cuda:0", True, True)
    assert {name for name, what in heard.items() if what == on_gpu} == {"here", "back"}
    assert {what for what in heard.values() if what != on_gpu} == {("cpu", False, False)}
    assert {sizes["gpu"], sizes["back"]} <= set(found.stream.sizes)
    assert not {sizes["host"], sizes["pinned"]} & set(found.stream.sizes)


def test_overlap_has_a_stream_of_its_own() -> None:
    """ZeRO 2 copies its buckets on a second stream, and its blocks come from that one's pool."""
    with_overlap, without = (
        set(trace(run_of(2, overlap_comm=on, contiguous_gradients=False)).stream.streams)
        for on in (True, False)
    )
    assert len(with_overlap) > len(without) == 1


def test_accumulation_adds_up_before_the_step() -> None:
    """Two micro-batches: the second's backward ends with gradients of this rank's slice."""
    data = run_of(2)
    data["training"]["gradient_accumulation_steps"] = 2
    phases = trace(data, steps=1).phases
    assert list(phases)[2:] == [f"s0.a{n}.{w}" for n in (0, 1) for w in ("fwd", "bwd", "opt")]


@pytest.mark.proof
def test_it_leaves_nothing_behind(capfd: pytest.CaptureFixture[str]) -> None:
    """No word, no variable, no group, no patch; another engine's trace is what it was before."""
    names = "deepspeed.accelerator.real_accelerator", "deepspeed.utils.groups"
    before_it = trace(tiny_run())
    trace(run_of(1))  # imports it
    environment, loaded = dict(os.environ), [dict(vars(sys.modules[one])) for one in names]
    patched = (
        torch.Tensor.to,
        torch.nn.functional.linear,
        torch.empty,
        torch.nn.Module.__init__,
        logging.getLogger("DeepSpeed").disabled,
        list(warnings.filters),
    )
    capfd.readouterr()
    trace(run_of(3))
    assert capfd.readouterr() == ("", "")
    assert dict(os.environ) == environment
    assert [dict(vars(sys.modules[one])) for one in names] == loaded
    assert not torch.distributed.is_initialized()
    assert torch.zeros(1).device.type == "cpu"
    assert patched == (
        torch.Tensor.to,
        torch.nn.functional.linear,
        torch.empty,
        torch.nn.Module.__init__,
        logging.getLogger("DeepSpeed").disabled,
        list(warnings.filters),
    )
    after = trace(tiny_run())
    assert (after.stream.sizes, after.stream.events) == (
        before_it.stream.sizes,
        before_it.stream.events,
    )


def test_an_error_leaves_nothing_behind_either() -> None:
    """A function that fails inside zero.Init."""

    def build() -> tuple[Any, Any]:
        torch.nn.Linear(8, 8)
        raise RuntimeError("mine")

    linear = torch.nn.functional.linear
    with pytest.raises(RuntimeError, match="mine"):
        trace(run_of(3), build=build)
    assert torch.nn.functional.linear is linear
    assert torch.nn.Linear(4, 4).weight.shape == (4, 4)
    assert trace(run_of(3)).allocated_bytes > 0


@pytest.mark.parametrize(
    ("engine", "training", "word"),
    [
        ({"zero_stage": 3, "offload_optimizer": "nvme"}, {}, "nvme"),
        ({"zero_stage": 2}, {"attention": "flash_attention_2"}, "flash_attention_2"),
    ],
)
def test_what_is_not_traced_is_said(
    engine: dict[str, Any], training: dict[str, Any], word: str
) -> None:
    """One sentence each."""
    data = run_of(**{"stage": engine.pop("zero_stage"), **engine})
    data["training"] |= training
    with pytest.raises(InputError, match=f"{word}.*is not traced"):
        trace(data)
