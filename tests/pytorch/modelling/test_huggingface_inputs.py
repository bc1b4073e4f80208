"""Masks, rotary tables and the embedding's output, by their rules."""

from __future__ import annotations

from gpu_mem_calculator.models.arch.blocks import Mixer
from gpu_mem_calculator.models.families import read_config
from gpu_mem_calculator.pytorch.autograd.events import BlockEvents
from gpu_mem_calculator.pytorch.modelling.huggingface.inputs import (
    embedding_bytes,
    mask_bytes,
    mask_events,
    needs_mask,
    rotary_width,
    runs_eager,
    table_bytes,
    table_events,
)
from gpu_mem_calculator.pytorch.modelling.huggingface.quirks import LLAMA, Quirks
from gpu_mem_calculator.pytorch.modelling.huggingface.setting import BlockSetting
from tests.serving.conftest import FAMILIES


def setting(attention: str = "sdpa", quirks: Quirks = LLAMA) -> BlockSetting:
    """Three sequences of a small model in 16 bits."""
    return BlockSetting(
        batch=3,
        seq=10,
        hidden=8,
        bits=16,
        matmul_bits=16,
        weight_bits=16,
        attention=attention,
        quirks=quirks,
    )


def left(events: BlockEvents) -> int:
    """Bytes of the tensors that stay, which are all that is not freed."""
    total = sum(int(events.sizes[e]) if e >= 0 else -int(events.sizes[~e]) for e in events.forward)
    assert total == sum(int(events.sizes[tensor]) for tensor in events.left)
    return total


def test_masks_and_tables_leave_themselves() -> None:
    """Boolean maps from which a mask is made are freed, and so are fp32 tables that are cast."""
    assert left(mask_events(100, 4, 800, slides=True)) == 800
    assert left(mask_events(100, 4, None, slides=False)) == 400
    assert left(mask_events(100, None, None, slides=False)) == 100
    assert left(table_events(64, 16)) == 2 * 128
    assert left(table_events(64, 32)) == 2 * 256


def test_an_eager_mask_is_made_for_every_sequence_in_the_activations_dtype() -> None:
    """SDPA's is boolean, and sequences without padding share it."""
    assert mask_bytes(setting(), 100, 1, eager=True) == 3 * 100 * 2
    assert mask_bytes(setting(), 100, 3, eager=False) == 3 * 100
    assert mask_bytes(setting(), 100, 1, eager=False) == 100


def test_tables_have_the_activations_dtype_unless_the_family_keeps_fp32() -> None:
    """OLMo's tables are as large as two of Llama's."""
    llama, olmo = setting(), setting(quirks=Quirks(fp32_rotary_tables=True))
    assert table_bytes(llama, 10, 64) == 2 * 10 * 64 * 2
    assert table_bytes(olmo, 10, 64) == 2 * table_bytes(llama, 10, 64)


def test_learnt_positions_are_a_second_tensor() -> None:
    """One row of them where all sequences share it."""
    assert embedding_bytes(setting(), 10, 1, position_rows=1) == (3 * 10 * 8 * 2,)
    assert embedding_bytes(setting(), 10, 2, position_rows=1) == (3 * 10 * 8 * 2, 10 * 8 * 2)


def mixer(family: str) -> Mixer | None:
    """The first layer's mixer of a small model."""
    return read_config(FAMILIES[family]).layers[0].mixer


def test_a_mask_is_made_where_the_kernel_needs_one() -> None:
    """Eager attention always, SDPA for a window that slides, Falcon's code in any case."""
    llama, falcon = mixer("llama"), mixer("falcon")
    assert needs_mask(setting(), llama, eager=True, slides=False)
    assert needs_mask(setting(), llama, eager=False, slides=True)
    assert not needs_mask(setting(), llama, eager=False, slides=False)
    assert not needs_mask(setting("flash_attention_2"), llama, eager=False, slides=True)
    assert needs_mask(setting(), falcon, eager=False, slides=False)


def test_attention_is_eager_where_a_family_has_no_other() -> None:
    """BLOOM has no SDPA in transformers."""
    assert runs_eager("sdpa", [mixer("bloom")])
    assert not runs_eager("sdpa", [mixer("llama")])
    assert runs_eager("eager", [mixer("llama")])


def test_latent_attention_turns_the_rotary_part_of_a_head() -> None:
    """16 of DeepSeek's 48 elements; all of Llama's; none of GPT-2's."""
    assert rotary_width([mixer("deepseek_v3")], latent=True) == 16
    assert rotary_width([mixer("llama"), mixer("gpt2")], latent=True) == 32
    assert rotary_width([mixer("gpt2")], latent=True) == 0
