"""Weight formats after vLLM has loaded them, where they differ from the file.

vLLM model_executor/layers/quantization at the versions named below.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...run.weights.recipes import NF4_PLAIN
from ...run.weights.scheme import WeightFormat
from .versions import Version

TRITON_FROM, SCALES_FREED_FROM = (0, 11, 0), (0, 25, 0)


def loaded_format(scheme: WeightFormat, version: Version, capability: str) -> WeightFormat:
    """The format on the GPU; `capability` is the card's compute capability."""
    major = int(capability.partition(".")[0])
    if scheme.pack is None:
        return scheme
    if scheme.name == "mxfp4" and scheme.experts:
        return _mxfp4(scheme, version, major)
    if scheme.name.startswith("gptq"):
        return _gptq(scheme)
    if scheme.name == "nf4" and scheme.pack.nested:
        # 0.11.0 bitsandbytes_loader.py _dequantize_dq: the scales are unpacked to fp32
        return replace(scheme, pack=NF4_PLAIN)
    if scheme.name == "nvfp4" and major >= 10:
        # 0.11.0 utils/quant_utils.py swizzle_blockscale: whole tiles of 128 x 4 scales
        return scheme.changed(scale_rows=128, scale_columns=4)
    return scheme


def _gptq(scheme: WeightFormat) -> WeightFormat:
    """Marlin, 0.11.0 kernels/mixed_precision/marlin.py: symmetric zero points are dropped.

    The order of the inputs is dropped too, unless activations are sorted by it; then two copies
    of it are kept.
    """
    pack = scheme.pack
    if pack is None or not pack.symmetric:
        return scheme
    return scheme.changed(zero_bits=0, index=64 if pack.ordered else 0)


def _mxfp4(scheme: WeightFormat, version: Version, major: int) -> WeightFormat:
    """gpt-oss, by kernel (0.11.0 quantization/mxfp4.py get_mxfp4_backend, create_weights).

    - FlashInfer on Blackwell: both sizes are rounded up to 256, biases in fp32.
    - Triton on Hopper, if triton_kernels is installed (in the wheel since 0.12.0): the scales are
      swizzled into a second copy with rows rounded up to 256 (triton_kernels 3.5.0
      hopper_scale.py), and the first is freed since 0.25.0; biases in fp32.
    - otherwise Marlin: hidden size rounded up to 256, inner size to 128.
    """
    if major >= 10:
        padded = replace(scheme, bias_bits=32)
        return padded.changed(hidden_multiple=256, inner_multiple=256)
    if major < 9 or version < TRITON_FROM:
        return scheme.changed(hidden_multiple=256, inner_multiple=128)
    padded = replace(scheme, bias_bits=32)
    if version >= SCALES_FREED_FROM:
        return padded.changed(inner_multiple=64, scale_rows=256, scale_columns=2)
    return padded.changed(inner_multiple=64, swizzled_rows=256)
