"""LoRA, DoRA, quantized bases and bitsandbytes' optimizers: what each keeps, and where."""

from __future__ import annotations

import json
from typing import Any

import numpy
import pytest

from gpu_mem_calculator.estimates.calculator import STEP, full_estimate
from gpu_mem_calculator.ledger.ledger import GPU, OPTIM, UNIFIED, Ledger
from gpu_mem_calculator.models.arch.adapters import Adapter, linears
from gpu_mem_calculator.pytorch.autograd.walk import BlockWalk
from gpu_mem_calculator.pytorch.modelling.huggingface.layer import layer_walk
from gpu_mem_calculator.pytorch.modelling.huggingface.setting import BlockSetting
from gpu_mem_calculator.training.step.weights import quantized_bytes, trained_sizes
from tests.conftest import HERE, small_run

ROWS = 2 * 512
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]
PROJECTED = 256 + 128 + 128 + 256  # outputs of the four, in the small model


def ledger_of(**training: Any) -> Ledger:
    """One GPU, pure bf16 under autocast, adapters on the four attention projections."""
    lora = {"r": 8, "target_modules": TARGETS, **training.pop("lora", {})}
    base = {"precision": "bf16_pure", "autocast": True, "lora": lora}
    return full_estimate(small_run(gpus=1, training={**base, **training})).ledger


def kept(ledger: Ledger, name: str = "dense layers: kept for backward") -> int:
    """Bytes that one layer keeps."""
    return int(next(e.bytes for e in ledger.entries if e.name == name))


def test_dora_keeps_the_base_result_and_the_adapters() -> None:
    """Two 16-bit maps for every adapted projection, and three fp32 columns: norm, m, m - 1."""
    more = kept(ledger_of(lora={"dora": True})) - kept(ledger_of())
    maps, columns = 2 * 2 * ROWS * PROJECTED, 3 * 4 * PROJECTED
    assert more == maps + columns


def test_dora_with_dropout_keeps_a_copy_of_the_weight() -> None:
    """The base result is computed again from the dropped-out input, with another 16-bit weight."""
    plain = ledger_of(lora={"dora": True})
    dropped = ledger_of(lora={"dora": True, "dropout": 0.1})
    masks = 4 * ROWS * 256
    copies = 2 * 256 * PROJECTED
    assert kept(dropped) - kept(plain) == masks + copies


def test_the_first_layer_keeps_less_under_a_frozen_embedding() -> None:
    """Its input takes no gradient, so its norm keeps neither fp32 input nor scale."""
    ledger = ledger_of()
    name = "dense layers: kept for backward by the first, whose input takes no gradient"
    assert kept(ledger) - kept(ledger, name) == ROWS * 256 * 4 + ROWS * 4


def test_an_int8_projection_has_a_scale_for_every_output() -> None:
    """One byte for each element and four for each output row."""
    run = full_estimate(quantized("int8")).resolved.run
    gate = next(one for one in linears(run.arch.layers[0]) if one.name.endswith("gate_proj"))
    assert quantized_bytes(run, gate) == 256 * 688 + 4 * 688


@pytest.mark.parametrize(("double", "scales"), [(True, 2752 + 4 * 11 + 4), (False, 4 * 2752)])
def test_an_nf4_projection_has_a_scale_for_64_elements(double: bool, scales: int) -> None:
    """Half a byte for each element, a table of 16 values, and the scales, quantized or not."""
    run = full_estimate(quantized("nf4", double_quant=double)).resolved.run
    gate = next(one for one in linears(run.arch.layers[0]) if one.name.endswith("gate_proj"))
    assert quantized_bytes(run, gate) == 256 * 688 // 2 + 64 + scales


def quantized(kind: str, **training: Any) -> dict[str, Any]:
    """A run file with a quantized base."""
    lora = {"r": 8, "target_modules": TARGETS}
    base = {"precision": "bf16_pure", "autocast": True, "lora": lora, "quantization": kind}
    return small_run(gpus=1, training={**base, **training})


def test_int8_keeps_the_input_of_every_projection() -> None:
    """Inputs of q, k and v are one tensor, so are those of gate and up; o's is apart."""
    more = kept(ledger_of(quantization="int8")) - kept(ledger_of())
    assert more == 2 * ROWS * (256 + 256 + 688)


def test_a_checkpoint_does_not_free_the_inputs_of_int8_projections() -> None:
    """The graph holds them, layer by layer, until backward ends."""
    ledger = ledger_of(quantization="int8", activation_checkpointing="full")
    inputs = next(e for e in ledger.entries if "held by the graph" in e.name)
    assert inputs.bytes == 2 * ROWS * (256 + 256 + 256 + 688)
    assert (inputs.live["loss.backward"], inputs.live["embedding.backward"]) == (4, 4)


def test_int8_inputs_outlive_the_backward_of_their_layer() -> None:
    """At the first layer's backward the three above it still hold theirs."""
    ledger = ledger_of(quantization="int8")
    inputs = next(e for e in ledger.entries if "held by the graph" in e.name)
    assert (inputs.live["loss.backward"], inputs.live["backward.0.first"]) == (0, 3)


def test_a_reentrant_checkpoint_holds_nothing_for_int8() -> None:
    """Its forward runs without a graph."""
    ledger = ledger_of(
        quantization="int8", activation_checkpointing="full", checkpoint_reentrant=True
    )
    inputs = next(e for e in ledger.entries if "held by the graph" in e.name)
    assert not any(inputs.live.values())


def test_upcasting_widens_the_residual_stream() -> None:
    """A checkpoint's input is fp32, twice as wide."""
    training = {"quantization": "nf4", "activation_checkpointing": "full"}
    name = "dense layers: checkpointed inputs"
    plain, upcast = ledger_of(**training), ledger_of(**training, upcast_unquantized=True)
    assert (kept(plain, name), kept(upcast, name)) == (2 * ROWS * 256, 4 * ROWS * 256)


def test_upcasting_doubles_what_is_not_quantized() -> None:
    """Embedding, head and norms; quantized weights stay."""
    plain, upcast = (
        full_estimate(quantized("nf4", upcast_unquantized=up)).ledger for up in (False, True)
    )
    sizes = [
        next(e.bytes for e in one.entries if e.name == "parameters") for one in (plain, upcast)
    ]
    assert sizes[1] - sizes[0] == 2 * (2 * 1024 * 256 + (2 * 4 + 1) * 256)


def test_a_frozen_fp32_weight_is_cast_at_every_use() -> None:
    """Autocast caches casts of trained weights only, so backward keeps one for each projection."""
    shape = {"batch": 2, "seq": 512, "hidden": 256, "matmul_bits": 16, "autocast": True}
    layer = full_estimate(small_run()).resolved.run.arch.layers[0]
    adapter = Adapter(8, frozenset(TARGETS))

    def saved(bits: int) -> dict[str, Any]:
        setting = BlockSetting(**shape, bits=bits, weight_bits=bits, frozen=True, adapter=adapter)  # type: ignore[arg-type]
        walk: BlockWalk = layer_walk(setting, layer)
        return {name: size for name, size in walk.saved if name.endswith("weight.to")}

    assert saved(16) == {}
    assert sum(saved(32).values()) == 2 * sum(one.ins[1] * one.outs[1] for one in linears(layer))


def states(ledger: Ledger, place: str) -> int:
    """Bytes of optimizer states in one place."""
    return sum(int(e.bytes) for e in ledger.entries if e.kind == OPTIM and e.place == place)


def test_paged_states_leave_the_gpu() -> None:
    """Those of tensors from 100,000 elements on are in unified memory; scales stay on the GPU."""
    plain, paged = (
        full_estimate(small_run(gpus=1, training={"optimizer": name})).ledger
        for name in ("adamw_8bit", "paged_adamw_8bit")
    )
    run = full_estimate(small_run(gpus=1)).resolved.run
    large = sum(n * size for size, n in trained_sizes(run) if size >= 100_000)
    assert states(paged, UNIFIED) == 2 * large
    assert states(paged, GPU) == states(plain, GPU) - 2 * large


def test_the_trained_sizes_are_the_whole_model() -> None:
    """Every parameter once."""
    run = full_estimate(small_run()).resolved.run
    assert sum(n * size for size, n in trained_sizes(run)) == run.arch.num_parameters


def test_positions_have_their_gradient_with_the_embedding() -> None:
    """A tied table's gradient is alive from the head on; that of learnt positions is not."""
    config = {
        "model_type": "gpt2",
        "n_layer": 2,
        "n_embd": 64,
        "n_head": 4,
        "vocab_size": 512,
        "n_positions": 1024,
    }
    ledger = full_estimate(small_run(gpus=1, model={"config": config})).ledger
    entries = {e.name: e for e in ledger.entries}
    assert entries["head: gradients"].bytes == 4 * (512 * 64 + 2 * 64)
    assert entries["embedding: gradients"].bytes == 4 * 1024 * 64
    assert not entries["embedding: gradients"].live.get("backward.0.last")


@pytest.mark.parametrize(
    "training",
    [
        {"lora": {"dora": True}},
        {"lora": {"dora": True, "dropout": 0.1}},
        {"quantization": "int8"},
        {"quantization": "nf4", "upcast_unquantized": True},
    ],
)
def test_many_batches_at_once_are_the_same_as_one_by_one(training: dict[str, Any]) -> None:
    """An array of batch sizes gives the peaks of each."""
    one, three, both = (_layer_walk(training, batch) for batch in (1, 3, numpy.array([1, 3])))
    assert [one.backward.total, three.backward.total] == both.backward.total.tolist()
    assert [one.forward.total, three.forward.total] == both.forward.total.tolist()


def _layer_walk(training: dict[str, Any], batch: Any) -> BlockWalk:
    lora = training.get("lora", {})
    adapter = Adapter(8, frozenset(TARGETS), 32, lora.get("dropout", 0.0), lora.get("dora", False))
    bits = 32 if training.get("upcast_unquantized") else 16
    setting = BlockSetting(
        batch=batch,
        seq=512,
        hidden=256,
        bits=bits,
        matmul_bits=16,
        weight_bits=bits,
        autocast=True,
        frozen=True,
        adapter=adapter,
        quantization=training.get("quantization"),
    )
    return layer_walk(setting, full_estimate(small_run()).resolved.run.arch.layers[0])


# The allocator rounds blocks from 10 MiB on to 2 MiB and does not split off 1 MiB or less: Qwen's
# feed-forward maps end on an odd MiB, which is all of these runs' error.
ODD_BLOCKS = {"peft-lora-qwen3b-r8-drop", "peft-lion8bit-qwen0.5b", "peft-paged-qwen0.5b"}


def measured() -> list[dict[str, Any]]:
    """The adapter and bitsandbytes runs measured on an H200."""
    lines = (HERE / "ground_truth" / "engines.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["id"].startswith("peft-")]


@pytest.mark.parametrize("row", measured(), ids=lambda row: row["id"])
def test_a_measured_run(row: dict[str, Any]) -> None:
    """Within 0.15 % of the allocated peak; within 1.4 % where blocks are of odd size."""
    peak = full_estimate(row["config"]).ledgers[0].peak(phases=STEP)
    limit = 0.014 if row["id"] in ODD_BLOCKS else 0.0015
    assert peak == pytest.approx(row["measured"]["allocated_bytes"], rel=limit)
