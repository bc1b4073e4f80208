"""A quantized base as transformers loads it: outliers of int8, nf4's compute dtype, start-up."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest

from gpu_mem_calculator import estimate
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.models.arch.blocks import Mlp
from gpu_mem_calculator.pytorch.autograd.events import BlockEvents, EventRecorder
from gpu_mem_calculator.pytorch.autograd.tape import Tape
from gpu_mem_calculator.pytorch.modelling.huggingface.layer import (
    layer_walk,
    residual_bits,
    run_layer,
)
from gpu_mem_calculator.pytorch.modelling.huggingface.setting import BlockSetting
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.training.engines.pytorch_ddp.options import PRECISIONS
from gpu_mem_calculator.training.step.activations import setting as block_setting
from gpu_mem_calculator.training.step.loading import natural_key, pretrained_events
from gpu_mem_calculator.training.step.outliers import outlier_chance, outlier_share
from tests.conftest import small_run

CHECKPOINT = {"activation_checkpointing": "full"}


def base(kind: str, **training: Any) -> dict[str, Any]:
    """A small run with adapters on a quantized base."""
    return small_run(
        gpus=1,
        training={
            "precision": "bf16_pure",
            "autocast": True,
            "lora": {"r": 8},
            "quantization": kind,
            **training,
        },
    )


def pinned(**training: Any) -> int:
    """Bytes that a layer's int8 projections keep for backward."""
    ledger = full_estimate(base("int8", **CHECKPOINT, **training), replay=False).ledger
    return int(next(e.bytes for e in ledger.entries if "held by the graph" in e.name))


def test_columns_with_outliers_are_kept_for_backward() -> None:
    """Those of the down projection's input, in its dtype, beside the input itself."""
    run = full_estimate(base("int8"), replay=False).resolved.run
    inner = int(run.batch * run.seq) * run.arch.layers[0].mlp.output.ins[1]
    none, all_of_them = (pinned(int8_threshold=6.0, int8_outliers=n) for n in (0.0, 1.0))
    assert all_of_them - none == 2 * inner
    assert none == pinned()
    wide = {"upcast_unquantized": True, "int8_threshold": 6.0}
    kept = [pinned(**wide, int8_outliers=share) for share in (0.0, 0.5)]
    assert kept[1] - kept[0] == 4 * inner // 2


@pytest.mark.parametrize(
    ("gated", "hidden", "low", "high"),
    [(True, 4096, 3.3e-3, 3.5e-3), (True, 896, 1e-10, 1e-8), (False, 4096, 1.2e-6, 1.4e-6)],
)
def test_the_chance_of_an_outlier_follows_from_the_width(
    gated: bool, hidden: int, low: float, high: float
) -> None:
    """The integral over a normal distribution; 4,096 gated columns were all outliers when measured,
    and without a gate it is the chance of one tail: 4.69 standard deviations.
    """
    block: Any = Mlp(inputs=(), output=None, ffn=1, gated=gated, activation="silu")  # type: ignore[arg-type]
    assert low < outlier_chance(block, 0.02 * hidden**0.5, 6.0) < high


def test_more_tokens_have_more_columns_with_outliers() -> None:
    """The share grows with tokens and falls with the threshold; 0 is no search."""
    arch = full_estimate(small_run(), replay=False).resolved.run.arch
    shares = [outlier_share(arch, 0.5, tokens) for tokens in (10, 1000)]
    assert 0 < shares[0] < shares[1] <= 1
    assert outlier_share(arch, 1.0, 1000) < shares[1]
    assert outlier_share(arch, 0.0, 1000) == 0


def test_the_assumed_share_is_said() -> None:
    """It is computed where the run file does not give it."""
    result = estimate(base("int8", int8_threshold=6.0))
    assert any("training.int8_outliers=" in one for one in result.assumed)


@pytest.mark.parametrize(
    ("kind", "training", "sentence"),
    [
        ("nf4", {"int8_threshold": 6.0}, "applies to quantization 'int8' only"),
        ("int8", {"int8_outliers": 0.5}, "needs int8_threshold above 0"),
        ("int8", {"nf4_compute_dtype": "fp32"}, "applies to quantization 'nf4' only"),
    ],
)
def test_keys_without_effect_are_refused(
    kind: str, training: dict[str, Any], sentence: str
) -> None:
    """With one sentence each."""
    with pytest.raises(InputError, match=sentence):
        estimate(base(kind, **training))


def test_a_wide_matmul_unpacks_twice_the_bytes() -> None:
    """With transformers' default compute dtype the weight is unpacked to fp32, and cast again."""
    layer = full_estimate(small_run(), replay=False).resolved.run.arch.layers[0]
    sizes = {"batch": 1, "seq": 600, "hidden": 256, "bits": 16, "matmul_bits": 16}
    rest = {"weight_bits": 16, "autocast": True, "frozen": True, "quantization": "nf4"}
    narrow, wide = (
        layer_walk(BlockSetting(**sizes, **rest, nf4_bits=bits), layer) for bits in (16, 32)
    )
    weight, operand = 256 * 688, 600 * 688
    more = wide.forward.total - narrow.forward.total
    assert 2 * weight <= more <= 4 * weight + 8 * operand


@pytest.mark.parametrize("model", ["llama3.2-1b", "gemma3-1b", "qwen3-0.6b", "phi-2"])
@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_hidden_states_have_the_same_bits_for_any_number_of_tokens(model: str, kind: str) -> None:
    """They are found with a single one."""
    lora = {"rank": 8, "target_modules": "all-linear"}
    training = {"lora": lora, "quantization": kind, "seq_len": 640, "batch_size": 3}
    found = full_estimate({"model": {"name": model}, "training": training}, replay=False)
    run = found.resolved.run
    setting = block_setting(run, PRECISIONS[run.precision])
    assert setting.autocast
    for layer in {*run.arch.layers}:
        tape = Tape()
        x = tape.value("layer.input", setting.tokens * setting.hidden, setting.bits)
        bits = run_layer(tape, setting, x, layer, masked=False).bits
        assert residual_bits(setting, layer) == max(bits, setting.bits)


def test_names_are_loaded_in_natural_order() -> None:
    """Numbers by value, words by letter, and the head first."""
    names = ["model.norm.weight", "model.layers.10.a", "model.layers.9.a", "lm_head.weight"]
    assert sorted(names, key=natural_key) == [names[3], names[2], names[1], names[0]]


def alive(events: BlockEvents) -> list[int]:
    """Bytes alive after each event."""
    changes = (events.sizes[e] if e >= 0 else -events.sizes[~e] for e in events.forward)
    return [int(size) for size in accumulate(changes)]


@pytest.mark.parametrize("kind", ["nf4", "int8"])
@pytest.mark.parametrize("upcast", [False, True])
def test_loading_leaves_the_weights_of_the_ledger(kind: str, upcast: bool) -> None:
    """What from_pretrained leaves is what the ledger has; 4-bit projections have a second code."""
    found = full_estimate(base(kind, from_pretrained=True, upcast_unquantized=upcast), replay=False)
    run = found.resolved.run
    left = alive(pretrained_events(run, PRECISIONS[run.precision]))[-1]
    entry = next(e for e in found.ledger.entries if e.name == "parameters")
    projections = 7 * len(run.arch.layers)
    codes = 1024 * (projections + 1) if kind == "nf4" else 0
    assert left == int(entry.bytes) + codes


def test_equal_projections_are_packed_alike() -> None:
    """Events that are repeated are those of the first, for tensors of their own."""
    recorder = EventRecorder()
    kept = recorder.weight(512)
    recorder.over(recorder.work((1024,)))
    alone = recorder.forward_only([kept])
    assert recorder.repeat(alone) == [2]
    assert recorder.events == [0, 1, ~1, 2, 3, ~3]
    assert recorder.sizes == [512, 1024, 512, 1024]


def test_layers_of_bitsandbytes_do_not_cast_the_input() -> None:
    """Under autocast PEFT's own layers for bitsandbytes leave a 16-bit input as it is."""
    plain, own = (
        estimate(base("nf4", from_pretrained=given)).allocated_bytes for given in (False, True)
    )
    assert own < plain


def test_a_tied_head_is_not_loaded() -> None:
    """A model that is made on the GPU has its head twice at first, one that is loaded has not."""
    run = {**small_run(gpus=1), "model": {"name": "gpt2"}}
    made, loaded = (
        estimate({**run, "training": {"seq_len": 64, "from_pretrained": given}}).startup_bytes
        for given in (False, True)
    )
    assert made is not None
    assert loaded is not None
    assert made - loaded >= 4 * 50_257 * 768


def test_other_engines_do_not_load_onto_the_gpu() -> None:
    """FSDP shards what is on the host or the meta device."""
    run = {**small_run(gpus=2), "engine": {"type": "fsdp"}}
    with pytest.raises(InputError, match=r"from_pretrained is for DDP"):
        estimate({**run, "training": {**run["training"], "from_pretrained": True}})


def test_weights_that_are_loaded_in_fp32_are_not_cast() -> None:
    """PEFT widens 16-bit weights alone, so start-up has no second copy."""
    wide = {"precision": "bf16_mixed", "autocast": False, "from_pretrained": True}
    kept, cast = (
        estimate(base("nf4", **wide, upcast_unquantized=up)).startup_bytes for up in (False, True)
    )
    assert kept == cast


@pytest.mark.parametrize("quantization", ["nf4", "none"])
def test_an_upcast_that_is_cast_back_is_of_start_up_alone(quantization: str) -> None:
    """Axolotl: embedding, head and norms have fp32 copies, and then 16 bits again."""
    training: dict[str, Any] = {
        **{"seq_len": 64, "precision": "bf16_pure", "from_pretrained": True, "lora": {"r": 8}},
        "quantization": quantization,
    }
    run = {
        "model": {"name": "llama3.2-1b"},
        "training": training,
        "engine": {"init_device": "cuda"},
    }
    plain = full_estimate(run)
    training["upcast_at_startup"] = True
    upcast = full_estimate(run)
    table = 128_256 * 2048  # embedding and head, which are one
    norms = (2 * 16 + 1) * 2048
    more = upcast.result.startup_bytes - plain.result.startup_bytes
    assert more == pytest.approx(2 * (table + norms) + 2 * table, rel=0.05)
    steps = plain.result.allocated_bytes  # blocks lie elsewhere
    assert upcast.result.allocated_bytes == pytest.approx(steps, rel=0.005)


def test_where_an_upcast_at_start_up_is_refused() -> None:
    """On the host it takes no GPU memory."""
    training = {"precision": "bf16_pure", "lora": {"r": 8}, "upcast_at_startup": True}
    with pytest.raises(InputError, match="loaded onto the GPU"):
        full_estimate({"model": {"name": "llama3.2-1b"}, "training": training})
