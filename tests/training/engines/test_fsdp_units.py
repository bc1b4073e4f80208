"""FSDP2's units: padding, torch's order, what one rank alone copies."""

from __future__ import annotations

from msgspec.structs import replace

from gpu_mem_calculator.models.arch.adapters import Adapter
from gpu_mem_calculator.models.arch.blocks import Weight
from gpu_mem_calculator.models.families import read_config
from gpu_mem_calculator.pytorch.autograd.events import BlockEvents
from gpu_mem_calculator.training.engines.fsdp.units import (
    UnitBits,
    fsdp_unit,
    layer_parameters,
    shard_elements,
    single_rank_events,
)
from tests.training.engines.test_fsdp import make

MIXED, WHOLE = UnitBits(32, 16, 16), UnitBits(32, 32, 32)


def highest(events: BlockEvents) -> int:
    """The most bytes that are alive at once."""
    alive = peak = 0
    for event in events.forward:
        alive += int(events.sizes[event]) if event >= 0 else -int(events.sizes[~event])
        peak = max(peak, alive)
    return peak


def test_short_tensors_are_padded() -> None:
    """Sixteen rows on 64 ranks are a row on each of them, padding included."""
    assert shard_elements(Weight("lora_A", (("lora", 16), ("embed", 4096))), 64) == 4096
    assert shard_elements(Weight("q", (("heads", 4096), ("embed", 4096))), 64) == 64 * 4096


def test_an_adapter_follows_its_projection() -> None:
    """PEFT's modules hold the base's weight, then A and B, where the projection was."""
    run = make(adapter=Adapter(16, frozenset({"q_proj", "down_proj"})))
    names = [p.weight.name for p in layer_parameters(run, run.arch.layers[0], WHOLE, WHOLE)]
    assert names[:4] == [
        "self_attn.q_proj.weight",
        "q_proj.lora_A",
        "q_proj.lora_B",
        "self_attn.k_proj.weight",
    ]
    down = names.index("mlp.down_proj.weight")
    assert names[down + 1 : down + 3] == ["down_proj.lora_A", "down_proj.lora_B"]


def test_projections_of_one_name_have_an_adapter_each() -> None:
    """GPT-2 has a c_proj in its attention and one in its MLP."""
    arch = read_config({"model_type": "gpt2", "n_layer": 1})
    run = replace(make(adapter=Adapter(16, frozenset({"c_proj"}))), arch=arch)
    names = [p.weight.name for p in layer_parameters(run, arch.layers[0], WHOLE, WHOLE)]
    assert names.count("c_proj.lora_A") == 2


def test_one_rank_alone_needs_what_its_events_need() -> None:
    """`staging` is the peak of the gather's events beyond the gathered parameters."""
    run = make()
    for bits in (MIXED, WHOLE):
        for offload in (False, True):
            parameters = layer_parameters(run, run.arch.layers[0], bits, bits)
            unit = fsdp_unit(run, parameters, 1, offload=offload)
            events = single_rank_events(unit, offload=offload)
            assert highest(events) == unit.gathered + unit.staging
            assert sum(events.sizes[t] for t in events.left) == unit.gathered


def test_shards_that_are_computed_with_need_no_copy() -> None:
    """There is nothing to stage where shards are neither cast nor on the host."""
    run = make()
    parameters = layer_parameters(run, run.arch.layers[0], WHOLE, WHOLE)
    assert fsdp_unit(run, parameters, 1).staging == 0
    assert fsdp_unit(run, parameters, 1, offload=True).staging > 0
