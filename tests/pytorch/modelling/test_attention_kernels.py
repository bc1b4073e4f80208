"""The attention kernel of each card, and its bytes, by hand from torch 2.11's source.

Every length is no multiple of 32 or 128, so that a rounded length differs from the length itself.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import estimate
from gpu_mem_calculator.models.arch.blocks import Attention
from gpu_mem_calculator.models.families import read_config
from gpu_mem_calculator.pytorch.autograd.tape import Op, Tape
from gpu_mem_calculator.pytorch.modelling.huggingface.attention import attention
from gpu_mem_calculator.pytorch.modelling.huggingface.attention_inputs import AttentionInputs
from gpu_mem_calculator.pytorch.modelling.huggingface.attention_kernels import attend, kernel
from gpu_mem_calculator.pytorch.modelling.huggingface.flash import has_flash, prefers_cudnn
from gpu_mem_calculator.pytorch.modelling.huggingface.setting import BlockSetting
from gpu_mem_calculator.run.cuda.chips import cublas_bytes
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines.pytorch_ddp.options import PRECISIONS
from gpu_mem_calculator.training.step.activations import setting as run_setting
from tests.conftest import SMALL_LLAMA, small_run

BATCH, SEQ, HEADS = 3, 1000, 8
CARDS = {"p100": "6.0", "t4": "7.5", "a100": "8.0", "l4": "8.9", "h100": "9.0", "b200": "10.0"}


def recorded(
    card: str,
    bits: int = 16,
    half: bool = False,
    seq: int = SEQ,
    attention: str = "sdpa",
    **sizes: Any,
) -> list[Op]:
    """The operations of one attention call in training."""
    given = {"heads": HEADS, "kv_heads": HEADS, "head_dim": 64, "value_dim": 64, **sizes}
    heads = AttentionInputs(**given)
    setting = BlockSetting(
        batch=BATCH,
        seq=seq,
        hidden=512,
        bits=bits,
        matmul_bits=bits,
        weight_bits=bits,
        half=half,
        attention=attention,
        cudnn=prefers_cudnn(CARDS[card]),
        flash=has_flash(CARDS[card]),
    )
    tape, tokens = Tape(), BATCH * seq
    q = tape.value("q", tokens * heads.heads * heads.head_dim, bits)
    k = tape.value("k", tokens * heads.kv_heads * heads.head_dim, bits)
    v = tape.value("v", tokens * heads.kv_heads * heads.value_dim, bits)
    attend(tape, setting, q, k, v, heads)
    return tape.ops


def fused(card: str, **sizes: Any) -> tuple[tuple[int, ...], dict[str, int]]:
    """Backward's workspaces of the fused kernel, and the bytes of each tensor that it saves."""
    (op,) = (op for op in recorded(card, **sizes) if op.name == "attn.out")
    return op.back_pieces, {value.name: value.bytes for value in op.saves}


def name(card: str, bits: int = 16, half: bool = False, **sizes: Any) -> str:
    """The kernel of a call."""
    given = {"heads": HEADS, "kv_heads": HEADS, "head_dim": 64, "value_dim": 64, **sizes}
    setting = BlockSetting(
        batch=1,
        seq=1,
        hidden=1,
        bits=bits,
        matmul_bits=bits,
        weight_bits=bits,
        half=half,
        cudnn=prefers_cudnn(CARDS[card]),
        flash=has_flash(CARDS[card]),
    )
    return kernel(setting, AttentionInputs(**given))


LATENT = {"head_dim": 192, "value_dim": 128}
WIDE = {"head_dim": 320, "value_dim": 320}


@pytest.mark.parametrize(
    ("card", "call", "expected"),
    [
        ("h100", {}, "cudnn"),
        ("b200", {}, "cudnn"),
        ("h100", {"masked": True}, "cudnn"),
        ("h100", {"kv_heads": 2}, "cudnn"),
        ("h100", LATENT, "cudnn"),
        ("h100", WIDE, "efficient"),
        ("h100", {"bits": 32}, "efficient"),
        ("h100", {"bits": 32, "kv_heads": 2}, "math"),
        ("h100", {"bits": 32, "kv_heads": 2, "masked": True}, "efficient"),
        ("a100", {}, "flash"),
        ("l4", {}, "flash"),
        ("a100", {"kv_heads": 2}, "flash"),
        ("a100", {"head_dim": 256, "value_dim": 256}, "flash"),
        ("a100", {"masked": True}, "efficient"),
        ("a100", {"masked": True, "kv_heads": 2}, "efficient"),
        ("a100", LATENT, "efficient"),
        ("l4", WIDE, "efficient"),
        ("l4", {"bits": 32}, "efficient"),
        ("l4", {"bits": 32, "kv_heads": 2}, "math"),
        ("l4", {"broadcast": True, "kv_heads": 1, "masked": True}, "math"),
        ("t4", {"half": True}, "efficient"),  # check_flash_attention_hardware_support: sm80
        ("p100", {"half": True}, "efficient"),
        ("t4", {"half": True, "masked": True}, "efficient"),
        ("t4", {"half": True, "kv_heads": 2}, "math"),
        ("t4", {}, "math"),  # less_than_sm80_mem_efficient_dtypes: half and float
        ("t4", {"bits": 32}, "efficient"),
    ],
)
def test_the_kernel_of_a_card(card: str, call: dict[str, Any], expected: str) -> None:
    """By card, dtype, mask, grouped heads and head size, as sdp_utils.cpp chooses."""
    assert name(card, **call) == expected


@pytest.mark.parametrize("card", ["a100", "l4"])
def test_flash_rounds_its_rows_up_to_128(card: str) -> None:
    """mha_bwd: dq_accum and softmax_d have 1,024 rows for 1,000 tokens; the log-sum-exp 1,000."""
    work, saved = fused(card)
    assert work == (3 * 1024 * 8 * 64 * 4, 3 * 1024 * 8 * 4)
    assert saved["attn.logsumexp"] == 3 * 1000 * 8 * 4
    assert saved["attn.out"] == 3 * 1000 * 8 * 64 * 2


def test_flash_makes_dk_and_dv_for_every_query_head() -> None:
    """mha_bwd: dk_expanded and dv_expanded, each with the tokens and heads of q, if grouped."""
    work, saved = fused("a100", kv_heads=2)
    expanded = 3 * 1000 * 8 * 64 * 2
    assert work == (3 * 1024 * 8 * 64 * 4, 3 * 1024 * 8 * 4, expanded, expanded)
    assert saved["k"] == saved["v"] == 3 * 1000 * 2 * 64 * 2


@pytest.mark.parametrize(
    ("head_dim", "rounded"), [(80, 96), (96, 96), (128, 128), (136, 192), (160, 192), (256, 256)]
)
def test_flash_rounds_a_head_up_to_32_and_above_128_to_64(head_dim: int, rounded: int) -> None:
    """mha_bwd: head_size_rounded = round_multiple(head_size, head_size <= 128 ? 32 : 64)."""
    work, _ = fused("a100", head_dim=head_dim, value_dim=head_dim)
    assert work[0] == 3 * 1024 * 8 * rounded * 4


@pytest.mark.parametrize("card", ["a100", "l4"])
def test_efficient_attention_rounds_its_rows_up_to_32(card: str) -> None:
    """attention_backward.cu: 1,024 rows for 1,000 tokens, one fp32 number each."""
    work, saved = fused(card, masked=True)
    assert work == (3 * 1024 * 8 * 4,)
    assert saved["attn.logsumexp"] == 3 * 1024 * 8 * 4


def test_efficient_attention_rounds_a_masks_rows_up_to_8() -> None:
    """attention.cpp pad_bias: 1,001 keys become 1,008; cuDNN takes the mask as it is."""
    for card, width in (("l4", 1008), ("h100", 1001)):
        _, saved = fused(card, masked=True, seq=1001)
        assert saved["attn.mask"] == 3 * 1001 * width * 2


def test_efficient_attention_copies_keys_and_values_of_grouped_heads() -> None:
    """repeat_kv runs before it where there is a mask: 8 heads are saved, not 2."""
    _, saved = fused("a100", masked=True, kv_heads=2)
    assert saved["attn.k_repeated"] == saved["attn.v_repeated"] == 3 * 1000 * 8 * 64 * 2
    assert "k" not in saved


def test_a_single_key_value_head_is_expanded_as_a_view() -> None:
    """Its reshape is a view: no repeated copy is recorded."""
    names = [op.name for op in recorded("a100", masked=True, kv_heads=1)]
    assert "attn.k_repeated" not in names
    assert "attn.k_expanded" in names


def test_efficient_attention_in_fp32_computes_delta_outside() -> None:
    """attention_backward.cu, kKernelComputesDelta: twice the row sums, and grad · out in fp32."""
    work, _ = fused("l4", bits=32)
    assert work == (3 * 1024 * 8 * 4, 3 * 1024 * 8 * 4, 3 * 1000 * 8 * 64 * 4)


def test_efficient_attention_of_latents_has_the_values_head_size() -> None:
    """DeepSeek on an A100: keys have 192 elements, outputs 128."""
    work, saved = fused("a100", **LATENT)
    assert work == (3 * 1024 * 8 * 4,)
    assert saved["q"] == 3 * 1000 * 8 * 192 * 2
    assert saved["attn.out"] == 3 * 1000 * 8 * 128 * 2


@pytest.mark.parametrize("card", ["h100", "b200"])
def test_cudnn_rounds_nothing(card: str) -> None:
    """One workspace: an fp32 dq and a row sum of each row, and 256 bytes; measured on an H200."""
    work, saved = fused(card)
    assert work == (3 * 1000 * 8 * (64 * 4 + 4) + 256,)
    assert saved["attn.logsumexp"] == 3 * 1000 * 8 * 4


def test_cudnn_makes_dk_and_dv_of_grouped_heads_in_the_same_workspace() -> None:
    """Without a mask; with one, keys and values were repeated before."""
    spread = 2 * 3 * 1000 * 8 * 64 * 2
    assert fused("h100", kv_heads=2)[0] == (3 * 1000 * 8 * (64 * 4 + 4) + 256 + spread,)
    work, saved = fused("h100", kv_heads=2, masked=True)
    assert work == (3 * 1000 * 8 * (64 * 4 + 4) + 256,)
    assert saved["attn.k_repeated"] == 3 * 1000 * 8 * 64 * 2


def test_a_head_by_head_query_is_copied_after_cudnn_and_flash_alone() -> None:
    """The efficient kernel stores its output token by token in any case."""
    copied = {
        card: "attn.contiguous" in [op.name for op in recorded(card, head_major=True, **call)]
        for card, call in (("h100", {}), ("a100", {}), ("t4", {"half": True}))
    }
    assert copied == {"h100": True, "a100": True, "t4": False}


def test_the_math_path_holds_every_map_in_fp32() -> None:
    """_scaled_dot_product_attention_math: 8 maps of 1,000 x 1,000 for each sequence."""
    scores, softmax = (
        next(op for op in recorded("t4", kv_heads=2, half=True) if op.name == wanted)
        for wanted in ("attn.scores", "attn.softmax")
    )
    area = 3 * 8 * 1000 * 1000
    assert scores.outs[0].bytes == softmax.outs[0].bytes == 4 * area
    assert softmax.temp == area  # one boolean map, of rows without a key


@pytest.mark.parametrize(
    ("gpu", "cudnn", "flash"),
    [
        ("t4", False, False),
        ("v100-32gb-sxm", False, False),
        ("a100-80gb-sxm", False, True),
        ("rtx-4090", False, True),
        ("h100-80gb-sxm", True, True),
        ("b200", True, True),
    ],
)
def test_a_run_takes_the_kernels_of_its_card(gpu: str, cudnn: bool, flash: bool) -> None:
    """The compute capability of the catalogue decides."""
    found = resolve(read(small_run(hardware={"gpu": gpu})).file)
    setting = run_setting(found.run, PRECISIONS["bf16_mixed"])
    assert (setting.cudnn, setting.flash) == (cudnn, flash)


def test_flash_attention_2_is_refused_before_ampere() -> None:
    """The package has no kernel for a T4."""
    run = small_run(hardware={"gpu": "t4"}, training={"attention": "flash_attention_2"})
    with pytest.raises(InputError, match=r"needs compute capability 8\.0 or newer.*has 7\.5"):
        estimate(run)


@pytest.mark.parametrize(
    ("capability", "kib"),
    [("7.5", 8320), ("8.0", 8320), ("8.9", 8320), ("9.0", 32 * 1024), ("10.0", 32 * 1024)],
)
def test_cublas_has_a_larger_workspace_from_hopper_on(capability: str, kib: int) -> None:
    """getChosenWorkspaceSize: 4096 x 2 + 16 x 8 KiB, and 32 MiB on sm90 and newer."""
    assert cublas_bytes(capability) == kib * 1024


@pytest.mark.parametrize(("kv_heads", "copied"), [(1, "q"), (2, "qk"), (8, "qk")])
def test_backward_copies_the_gradient_of_several_rotated_heads(kv_heads: int, copied: str) -> None:
    """Rotary's backward stores heads apart; of one head that is the projection's own order."""
    arch = read_config({**SMALL_LLAMA, "num_key_value_heads": kv_heads})
    mixer = arch.layers[0].mixer
    assert isinstance(mixer, Attention)
    sizes = {"batch": 1, "seq": 64, "hidden": 256}
    setting = BlockSetting(**sizes, bits=16, matmul_bits=16, weight_bits=16)
    tape = Tape()
    attention(tape, setting, tape.value("x", 64 * 256, 16), mixer)
    views = {op.name.removesuffix(".heads") for op in tape.ops if op.name.endswith(".heads")}
    assert views == {f"{name}_proj" for name in copied}


@pytest.mark.parametrize(
    ("head", "size", "rows", "key_rows"),
    [(64, 64, 1024, 1024), (80, 96, 1024, 1024), (128, 128, 1024, 1024), (256, 256, 1024, 1040)],
)
def test_flash_attention_3_rounds_rows_to_its_tiles(
    head: int, size: int, rows: int, key_rows: int
) -> None:
    """Two row sums and an fp32 dq; with grouped heads an fp32 dk and dv for key-value heads."""
    sizes = {"head_dim": head, "value_dim": head, "kv_heads": 2}
    work, saved = fused("h100", attention="flash_attention_3", **sizes)
    sums = BATCH * HEADS * rows * 4
    assert work == (sums, sums, sums * size, *[BATCH * 2 * key_rows * size * 4] * 2)
    assert saved["attn.logsumexp"] == BATCH * HEADS * SEQ * 4


@pytest.mark.parametrize("gpu", ["a100", "b200"])
def test_flash_attention_3_needs_hopper(gpu: str) -> None:
    """Its kernels are Hopper's."""
    run = small_run(hardware={"gpu": gpu}, training={"attention": "flash_attention_3"})
    with pytest.raises(InputError, match=r"needs compute capability 9\.0"):
        resolve(read(run).file)
