"""Which cards have which attention kernels."""

from __future__ import annotations

FLASH = {"flash_attention_2": "flash", "flash_attention_3": "flash3"}  # kernel by the key's value
NO_FLASH_CARD = (
    "{}.attention='flash_attention_2' needs compute capability 8.0 or newer, and this GPU has {}; "
    "use 'sdpa'"
)


def prefers_cudnn(compute_capability: str) -> bool:
    """Whether torch tries cuDNN's attention first (sdp_utils.cpp, check_prefer_cudnn_attention)."""
    return compute_capability in ("9.0", "10.0")


def has_flash(compute_capability: str) -> bool:
    """Whether the card runs FlashAttention: Ampere and newer (sdp_utils.cpp,
    check_flash_attention_hardware_support).
    """
    return float(compute_capability) >= 8.0
