"""Fused losses and kernels of plugins: cut cross entropy and Liger.

Axolotl 067b021 integrations/cut_cross_entropy, integrations/liger/plugin.py. A plugin's keys are
read only where `plugins` names the plugin (integrations/config.py merge_input_args).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runfile.text.errors import InputError, quoted
from ..reading.reading import Could
from ..translation.arguments import tables
from .draft import Draft

TABLES = tables(__file__)
CUT, LIGER = "CutCrossEntropyPlugin", "LigerPlugin"
KNOWN: list[str] = TABLES["known"]  # plugins that change nothing but what their own keys say
# Liger's keys and its own names of the kernels; a GLU is swiglu or geglu by family.
LIGER_KEYS: dict[str, Any] = TABLES["liger_keys"]
# Defaults of a plugin's keys that change memory, where the plugin is named (their args.py).
PLUGIN_DEFAULTS: Mapping[str, tuple[str, Could]] = TABLES["plugin_defaults"]


def add_losses(draft: Draft) -> None:
    """Add the loss and the kernels."""
    names = [str(one).rpartition(".")[2] for one in _plugins(draft)]
    if LIGER in names:
        _add_liger(draft)
    if CUT in names and draft.get("cut_cross_entropy") in (None, True):
        draft.training["loss"] = "cut"
        if draft.get("cut_cross_entropy") is None:
            draft.assume("cut_cross_entropy=true, the plugin's default")
    if draft.flag("flash_attn_cross_entropy"):
        draft.training["loss"] = "flash_fused_inplace"
    for name, written in zip(names, _plugins(draft), strict=True):
        if name not in KNOWN:
            draft.limit("plugins", "this plugin is not read", value=written)
        if name in PLUGIN_DEFAULTS and PLUGIN_DEFAULTS[name][0] not in draft.reading.keys:
            key, could = PLUGIN_DEFAULTS[name]
            draft.limit("plugins", f"its default of {key} is not modelled", could, value=written)


def _plugins(draft: Draft) -> list[object]:
    given = draft.get("plugins") or []
    if not isinstance(given, list):
        raise InputError(f"plugins={quoted(given)} must be a list")
    return given


def _add_liger(draft: Draft) -> None:
    """Liger's kernels as Trainer's own arguments, each of them on or off."""
    config: dict[str, bool] = {}
    for key, kernels in LIGER_KEYS.items():
        for kernel in kernels:
            config[kernel] = config.get(kernel, False) or draft.flag(key)
    if any(config.values()):
        draft.args |= {"use_liger_kernel": True, "liger_kernel_config": config}
