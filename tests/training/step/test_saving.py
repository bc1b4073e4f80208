"""A whole state dict that is saved between steps."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.node import STEADY
from gpu_mem_calculator.runfile.text.errors import InputError

HIDDEN, VOCAB, GPUS = 256, 2000, 4
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": HIDDEN,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": VOCAB,
    "tie_word_embeddings": False,
}
TABLE = 4 * HIDDEN * VOCAB  # bytes of the embedding or the head
LAYER = 4 * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * 512 + 2 * HIDDEN)
MODEL = 2 * (TABLE + LAYER) + 4 * HIDDEN


def saved(engine: dict[str, Any], saving: str = "full_state_dict") -> Any:
    """The estimate of a tiny run that saves its model."""
    return full_estimate(
        {
            "model": {"name": "tiny", "config": CONFIG},
            "training": {"seq_len": 64, "saving": saving},
            "engine": engine,
            "hardware": {"gpu": "h200", "num_gpus": GPUS},
        }
    )


@pytest.mark.parametrize(
    ("engine", "gathered", "host"),
    [
        ({"type": "fsdp"}, TABLE, MODEL),
        (
            {"type": "fsdp", "fsdp_version": 1},
            2 * TABLE + 4 * HIDDEN,
            MODEL + 2 * TABLE + 4 * HIDDEN,
        ),
        ({"type": "pytorch_ddp"}, 0, MODEL),
    ],
    ids=str,
)
def test_what_is_whole_on_the_gpu_and_on_the_host(
    engine: dict[str, Any], gathered: int, host: int
) -> None:
    """One parameter, one unit or nothing on the GPU; all of the model on rank 0's host alone."""
    ledger = saved(engine).ledger
    entries = {e.place: int(e.at("saving")) for e in ledger.entries if e.name.startswith("saving")}
    assert entries == {"gpu": gathered, "rank 0": host}


def test_the_host_of_a_node_has_one_state_dict() -> None:
    """Not one for each of its GPUs; then the optimizer's, which is twice as large."""
    found = saved({"type": "fsdp"}).result
    steps = next(one for one in found.phases if one.name == STEADY)
    assert found.host_bytes_per_node - steps.host_bytes == 2 * MODEL


def test_a_save_is_a_phase_of_a_step() -> None:
    """After the optimizer step, and below its peak."""
    steps = saved({"type": "fsdp"}).result.steps
    assert [one.phase for one in steps[1].phases][-2:] == ["optimizer", "saving"]


def test_other_engines_are_refused() -> None:
    """With a sentence."""
    with pytest.raises(InputError, match="is modelled for DDP, FSDP, ZeRO-3 and Megatron"):
        saved({"type": "deepspeed"})
