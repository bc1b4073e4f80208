"""Norms as transformers writes them; bytes by hand."""

from __future__ import annotations

from gpu_mem_calculator.models.arch.blocks import Norm
from gpu_mem_calculator.pytorch.autograd.tape import Tape
from gpu_mem_calculator.pytorch.modelling.huggingface.norms import rms_float
from gpu_mem_calculator.pytorch.modelling.huggingface.setting import BlockSetting


def test_gemmas_norm_scales_in_fp32() -> None:
    """1 + weight.float(): 64 elements of 4 bytes, from a bf16 weight; the output is bf16 again."""
    setting = BlockSetting(batch=2, seq=5, hidden=64, bits=16, matmul_bits=16, weight_bits=16)
    tape = Tape()
    out = rms_float(tape, setting, tape.value("x", 2 * 5 * 64, 16), Norm("n", ("embed", 64)))
    (weight,) = (op for op in tape.ops if op.name == "n.gain")
    assert (weight.ins[0].bytes, weight.outs[0].bytes) == (64 * 2, 64 * 4)
    (scaled,) = (op.outs[0] for op in tape.ops if op.name == "n.scaled")
    assert (scaled.bytes, out.bytes) == (2 * 5 * 64 * 4, 2 * 5 * 64 * 2)
