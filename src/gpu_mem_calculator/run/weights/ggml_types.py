"""ggml's types: elements and bytes of a block.

llama.cpp b10586 (b21e4de7) ggml/src/ggml.c `type_traits`, ggml/src/ggml-common.h; 256 elements
are a super-block of the K, IQ and TQ types.
"""

from __future__ import annotations

from collections.abc import Mapping

# Bytes of a block of each type, by the elements of a block.
BLOCK_BYTES: Mapping[int, str] = {
    1: "F32=4 F16=2 BF16=2 F64=8 I8=1 I16=2 I32=4 I64=8",
    128: "Q1_0=18",
    32: "Q4_0=18 Q4_1=20 Q5_0=22 Q5_1=24 Q8_0=34 Q8_1=36 MXFP4=17 IQ4_NL=18",
    64: "Q2_0=18 NVFP4=36",
    256: "Q2_K=84 Q3_K=110 Q4_K=144 Q5_K=176 Q6_K=210 Q8_K=292 IQ1_S=50 IQ1_M=56 IQ2_XXS=66 "
    "IQ2_XS=74 IQ2_S=82 IQ3_XXS=98 IQ3_S=110 IQ4_XS=136 TQ1_0=54 TQ2_0=66",
}
# Elements and bytes of a block.
BLOCKS: Mapping[str, tuple[int, int]] = {
    kind: (elements, int(size))
    for elements, kinds in BLOCK_BYTES.items()
    for kind, _, size in (word.partition("=") for word in kinds.split())
}

# The number of each type in a file's header (ggml/include/ggml.h enum ggml_type), by the first of
# consecutive ones.
NUMBERS: Mapping[int, str] = {
    0: "F32 F16 Q4_0 Q4_1",
    6: "Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K",
    16: "IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16",
    34: "TQ1_0 TQ2_0",
    39: "MXFP4 NVFP4 Q1_0 Q2_0",
}
TYPE_BY_NUMBER: Mapping[int, str] = {
    number: kind
    for first, kinds in NUMBERS.items()
    for number, kind in enumerate(kinds.split(), first)
}

UNQUANTIZED = frozenset({"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"})


def divides(kind: str, row: int) -> bool:
    """Whether a row of `row` elements is a whole number of blocks."""
    return row % BLOCKS[kind][0] == 0


def ggml_bytes(kind: str, elements: int) -> int:
    """Bytes of `elements`, in whole blocks."""
    block, size = BLOCKS[kind]
    return elements // block * size


def bits_per_weight(kind: str) -> float:
    """Bits of one element, scales included."""
    block, size = BLOCKS[kind]
    return 8 * size / block
