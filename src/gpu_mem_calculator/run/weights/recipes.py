"""Weight formats by name, with their usual settings."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from .scheme import MatrixFormat, WeightFormat

FP8_TENSOR = MatrixFormat(bits=8)
FP8_ROW = MatrixFormat(bits=8, rows=1)
FP8_BLOCK = MatrixFormat(bits=8, rows=128, columns=128)
INT8_ROW = MatrixFormat(bits=8, rows=1)
# constants: the shape, two int64
INT4_GROUP = MatrixFormat(bits=4, scale_bits=16, rows=1, columns=128, constants=16)
AWQ = MatrixFormat(bits=4, scale_bits=16, rows=1, columns=128, zero_bits=4)
GPTQ4 = MatrixFormat(
    bits=4, scale_bits=16, rows=1, columns=128, zero_bits=4, index=32, symmetric=True
)
GPTQ8 = replace(GPTQ4, bits=8, zero_bits=8)
NF4 = MatrixFormat(bits=4, flat=64, nested=256, constants=16 * 4 + 4)  # its 16 values, an offset
NF4_PLAIN = replace(NF4, nested=0, constants=16 * 4)
MXFP4 = MatrixFormat(bits=4, scale_bits=8, rows=1, columns=32)
# constants: two fp32 of the tensor
NVFP4 = MatrixFormat(bits=4, scale_bits=8, rows=1, columns=16, constants=8)

NONE = WeightFormat(name="none", title="16 or 32 bits, as `dtype` says")
# The meaning of a name if the checkpoint has no quantization_config.
RECIPES: Mapping[str, WeightFormat] = {
    scheme.name: scheme
    for scheme in (
        NONE,
        WeightFormat(name="fp8", title="FP8, a scale for each row", pack=FP8_ROW),
        WeightFormat(name="int8", title="INT8, a scale for each row", pack=INT8_ROW),
        WeightFormat(name="int4", title="INT4, a scale for 128 inputs", pack=INT4_GROUP),
        WeightFormat(name="awq", title="AWQ, a scale and a zero for 128 inputs", pack=AWQ),
        WeightFormat(name="gptq_int4", title="GPTQ, 4 bits, a scale for 128 inputs", pack=GPTQ4),
        WeightFormat(name="gptq_int8", title="GPTQ, 8 bits, a scale for 128 inputs", pack=GPTQ8),
        WeightFormat(name="nf4", title="NF4 of bitsandbytes, double quantization", pack=NF4),
        WeightFormat(
            name="mxfp4", title="MXFP4, experts only, a scale for 32", pack=MXFP4, experts=True
        ),
        WeightFormat(name="nvfp4", title="NVFP4, a scale for 16", pack=NVFP4),
    )
}
# Less specific names that are also accepted for a checkpoint in a format.
ALSO = {"awq": ("int4",), "gptq_int4": ("int4",), "gptq_int8": ("int8",)}
# Families that are published in FP8 with a scale for each block of 128 x 128.
BLOCKED = frozenset({"deepseek_v3", "deepseek_v32", "kimi_k2"})


class FormatError(ValueError):
    """A format that is unknown, or contradicts the model's, in one sentence."""
