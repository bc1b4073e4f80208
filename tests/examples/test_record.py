"""A module's record: the estimate that comes from it is what a trace of the same run finds."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import classifier  # noqa: E402
import gptlite  # noqa: E402
from msgspec import to_builtins  # noqa: E402

from gpu_mem_calculator.estimates.calculator import Estimate, full_estimate  # noqa: E402
from gpu_mem_calculator.lab.jobs.function import run_without_model  # noqa: E402
from gpu_mem_calculator.lab.trace.record import record  # noqa: E402
from gpu_mem_calculator.lab.trace.run import RunTrace, trace  # noqa: E402
from gpu_mem_calculator.runfile.resolve.resolve import resolve  # noqa: E402
from gpu_mem_calculator.tools.read import read  # noqa: E402
from tests.corpus import sampled  # noqa: E402

SIZES = {"n_layer": 3, "n_embd": 96, "n_head": 3, "block_size": 256}
TINY = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "use_cache": False,
}
STEPS_BYTES = 512  # a trace counts Adam's step counters, which are on the host


def gpt() -> Any:
    """GPT-lite, small."""
    return gptlite.model_and_batch(**SIZES)


def pictures() -> Any:
    """A ResNet: stages of several widths, blocks that keep their own output."""
    return classifier.model_and_batch(batch_size=8)


def llama() -> Any:
    """A model of transformers, as if nothing were known of it."""
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(**TINY)
    ids = torch.randint(0, 256, (2, 128))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return model, {"input_ids": ids, "labels": ids}


class Skips(torch.nn.Module):
    """A U: the first half's outputs are read again by the second half."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(6))

    def forward(self, x: Any) -> Any:
        """Down and up again."""
        kept = []
        for number, layer in enumerate(self.layers):
            x = torch.relu(layer(x + kept.pop() if number > 2 else x))
            kept.append(x)
        return x.square().mean()


def skips() -> Any:
    """Layers that read what others have made."""
    return Skips(), (torch.randn(512, 256),)


def run_file(engine: dict[str, Any], gpus: int = 1, **training: Any) -> dict[str, Any]:
    """A run without a model."""
    return {"engine": engine, "training": training, "hardware": {"gpu": "h200", "num_gpus": gpus}}


def recorded(build: Callable[[], Any], data: dict[str, Any]) -> dict[str, Any]:
    """The run with the module's record."""
    given, _ = run_without_model(data)
    found = record(build, resolve(read(given).file), "module")
    return {**data, "model": {"recorded": to_builtins(found)}}


def both(build: Callable[[], Any], data: dict[str, Any]) -> tuple[Estimate, RunTrace]:
    """The estimate from a record, and a trace."""
    given, _ = run_without_model(data)
    return full_estimate(recorded(build, data)), trace(given, build=build)


RUNS = {
    "fp32": run_file({"type": "pytorch_ddp"}, precision="fp32"),
    "autocast": run_file({"type": "pytorch_ddp"}, precision="bf16_mixed"),
    "ddp": run_file({"type": "pytorch_ddp"}, 8, precision="fp32", gradient_accumulation_steps=2),
    "fsdp": run_file({"type": "fsdp"}, 8, precision="bf16_mixed"),
}


@cache
def _recorded_in_fp32() -> dict[str, Any]:
    return recorded(gpt, RUNS["fp32"])


def recorded_in_fp32() -> dict[str, Any]:
    """GPT-lite's record, made once; each test changes a copy."""
    return deepcopy(_recorded_in_fp32())


@pytest.mark.parametrize(
    ("name", "build"), sampled([(name, build) for build in (gpt, llama) for name in RUNS], keep=1)
)
def test_the_estimate_is_the_trace(name: str, build: Callable[[], Any]) -> None:
    """To a tenth of a percent, allocated and reserved, whatever the engine."""
    estimate, traced = both(build, RUNS[name])
    steps = STEPS_BYTES * len(list(build()[0].parameters()))
    assert estimate.result.allocated_bytes == pytest.approx(
        traced.allocated_bytes - steps, rel=1e-3
    )
    assert estimate.result.reserved_bytes == pytest.approx(traced.reserved_bytes, rel=0.01)


@pytest.mark.parametrize("build", [pictures, skips])
def test_parts_that_share_tensors(build: Callable[[], Any]) -> None:
    """Blocks that keep their own output, and skip connections: within 2 %."""
    estimate, traced = both(build, RUNS["fp32"])
    assert estimate.result.allocated_bytes == pytest.approx(traced.allocated_bytes, rel=0.02)


class Encoder(torch.nn.Module):
    """nn.TransformerEncoderLayer, whose attention reads the weights of an out_proj that is never
    called; `unused` and `frozen` add a layer that nothing calls, and freeze the first norms.
    """

    def __init__(self, *, unused: bool = False, frozen: bool = False) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(1000, 256)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(3)
        )
        self.head = torch.nn.Linear(256, 1000)
        if unused:
            self.extra = torch.nn.Linear(256, 1024)
        for layer in self.layers if frozen else ():
            layer.linear1.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        """The head's weight is read here, not by the head."""
        x = self.table(x)
        for layer in self.layers:
            x = layer(x)
        return torch.nn.functional.linear(x, self.head.weight, self.head.bias).square().mean()


def encoder(**options: bool) -> Callable[[], Any]:
    """Makes an encoder and its batch."""
    return lambda: (Encoder(**options), (torch.zeros(2, 128, dtype=torch.long),))


def deepspeed_run(stage: int) -> dict[str, Any]:
    """A run under ZeRO."""
    return run_file(
        {"type": "deepspeed", "reduce_bucket_size": 50_000, "zero_stage": stage},
        8,
        precision="bf16_mixed",
    )


@pytest.mark.parametrize("name", sampled(RUNS.keys(), keep=1))
def test_weights_that_another_module_reads(name: str) -> None:
    """A child's weight that its parent reads is counted, whatever the engine."""
    estimate, traced = both(encoder(), RUNS[name])
    parameters = list(encoder()()[0].parameters())
    assert estimate.result.num_parameters == sum(p.numel() for p in parameters)
    assert estimate.result.allocated_bytes == pytest.approx(
        traced.allocated_bytes - STEPS_BYTES * len(parameters), rel=1e-3
    )


@pytest.mark.proof
@pytest.mark.parametrize(
    ("stage", "near"), sampled([(3, 0.02), (0, 1e-3), (1, 2e-3), (2, 1e-3)], keep=1)
)
def test_weights_that_another_module_reads_under_deepspeed(stage: int, near: float) -> None:
    """DeepSpeed, too; ZeRO 3 gathers them with the module that reads them."""
    pytest.importorskip("deepspeed")
    estimate, traced = both(encoder(), deepspeed_run(stage))
    assert estimate.result.allocated_bytes == pytest.approx(traced.allocated_bytes, rel=near)


@pytest.mark.proof
@pytest.mark.parametrize(("stage", "near"), [(2, 1e-3), (1, 2e-3), (3, 0.02)])
def test_an_unused_layer_under_zero(stage: int, near: float) -> None:
    """It is sharded with the rest, and has a master weight and a state."""
    pytest.importorskip("deepspeed")
    estimate, traced = both(encoder(unused=True), deepspeed_run(stage))
    assert estimate.result.allocated_bytes == pytest.approx(traced.allocated_bytes, rel=near)


@pytest.mark.parametrize(
    "data", sampled({"fp32": RUNS["fp32"], "ddp": RUNS["ddp"], "zero 2": deepspeed_run(2)}, keep=1)
)
def test_frozen_weights_are_held(data: dict[str, Any]) -> None:
    """Without a gradient and a state."""
    if data["engine"]["type"] == "deepspeed":
        pytest.importorskip("deepspeed")
    estimate, traced = both(encoder(frozen=True), data)
    assert estimate.result.allocated_bytes == pytest.approx(traced.allocated_bytes, rel=1e-3)


FULL = {"activation_checkpointing": "full", "checkpoint_reentrant": True}


@pytest.mark.proof
def test_checkpoints_are_the_runs() -> None:
    """A plain record serves a run with checkpoints; a trace puts them around the module's layers,
    which is what a module does that makes them itself.
    """
    data = run_file({"type": "pytorch_ddp"}, precision="fp32")
    estimate, traced = both(gpt, {**data, "training": {**data["training"], **FULL}})
    given, _ = run_without_model(data)
    own = trace(given, build=lambda: gptlite.model_and_batch(**SIZES, checkpoint=True))
    assert traced.allocated_bytes == own.allocated_bytes
    assert estimate.result.allocated_bytes == pytest.approx(traced.allocated_bytes, rel=1e-3)


ZERO: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "3": ({"zero_stage": 3}, {}),
    "0": ({"zero_stage": 0}, {}),
    "0, checkpoints": ({"zero_stage": 0}, FULL),
    "2": ({"zero_stage": 2}, {}),
    "2, checkpoints": ({"zero_stage": 2}, FULL),
    "3, checkpoints": ({"zero_stage": 3}, FULL),
    "2, offloaded": ({"zero_stage": 2, "offload_optimizer": "cpu"}, {}),
    "2, offloaded, checkpoints": ({"zero_stage": 2, "offload_optimizer": "cpu"}, FULL),
}


@pytest.mark.proof
@pytest.mark.parametrize(("engine", "more"), sampled(ZERO, keep=1))
def test_deepspeed_runs_the_module(engine: dict[str, Any], more: dict[str, Any]) -> None:
    """Its own engine on fake tensors allocates what the estimate says, checkpoints included."""
    pytest.importorskip("deepspeed")
    data = run_file(
        {"type": "deepspeed", "reduce_bucket_size": 50_000, **engine},
        8,
        precision="bf16_mixed",
        **more,
    )
    estimate, traced = both(gpt, data)
    assert estimate.result.allocated_bytes == pytest.approx(traced.allocated_bytes, rel=0.01)


def test_the_masks_are_counted() -> None:
    """Buffers that estimators of parameters forget."""
    data = recorded_in_fp32()
    found = full_estimate(data)
    entry = next(e for e in found.ledger.entries if e.name == "buffers")
    assert entry.bytes == 3 * 3 * 256 * 256 * 4
    assert found.result.num_parameters == sum(p.numel() for p in gpt()[0].parameters())


def test_equal_layers_are_one() -> None:
    """Twelve blocks alike are written down once."""
    assert len(recorded_in_fp32()["model"]["recorded"]["layers"]) == 1
