"""How the model is loaded: dtype, attention, recompute, torch.compile.

Axolotl 067b021 utils/config/__init__.py (resolve_dtype, normalize_config), loaders/model.py,
utils/schemas/config.py (normalize_attn_implementation), core/builders/base.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...runfile.text.errors import InputError, quoted
from ..translation.arguments import tables
from .draft import Draft, Limits, flag, mapping

TABLES = tables(__file__)
# Older keys and the attention that each means, in the order in which they win (schemas/enums.py).
OLDER_KEYS: dict[str, str] = TABLES["older_keys"]
# The kernel that is modelled for each.
KERNELS: dict[str, str] = TABLES["kernels"]
# Other kernels, and the modelled one that keeps the same tensors for backward; a kernel of the hub
# that is not listed is estimated as the last, with a limit.
NEAREST: Mapping[str, str] = TABLES["nearest"]
ANOTHER_KERNEL = "flash_attention_2"
LIMITS: Limits = TABLES["limits"]
TORCH_ATTENTION = ("", "sdpa", "eager")  # schemas/enums.py ATTN_IMPLS_WITHOUT_DTYPE_CAST
OFFLOADS = ("legacy", "disk", "hidden_states")
TEXT_ONLY = ("language_model", "lm_head", "embed_tokens")


def add_precision(draft: Draft) -> None:
    """Add the dtype of the weights and of autocast (resolve_dtype)."""
    half, given = draft.flag("fp16"), draft.get("bf16")
    if given == "auto":
        given = not half
        if given:
            asked = "bf16=auto asks the GPU, and every one since Ampere has it"
            draft.assume(f"bf16=true, because {asked}")
    bf16 = flag(given, "bf16") or draft.flag("bfloat16")
    half = half and not bf16
    draft.args |= {"bf16": bf16, "fp16": half}
    narrow = draft.flag("load_in_8bit") or half or draft.flag("float16")
    draft.load["dtype"] = "bfloat16" if bf16 else "float16" if narrow else "float32"


def add_attention(draft: Draft) -> str:
    """Add the attention and return its name; transformers' default where none is chosen."""
    given = draft.get("attn_implementation")
    older = next((key for key in OLDER_KEYS if draft.flag(key)), "")
    name = str(given or OLDER_KEYS.get(older, ""))
    known = KERNELS.get(name or "sdpa")
    if known is None:
        known = NEAREST.get(name, ANOTHER_KERNEL)
        why = f"this kernel is not modelled; the estimate has {known}"
        draft.limit("attn_implementation" if given else older, why)
    draft.load["attn_implementation"] = known
    if not name:
        draft.assume("attn_implementation=sdpa, transformers' default")
    if name == "eager" and draft.flag("sample_packing"):
        draft.training["packed_documents"] = 2  # a mask of every pair of tokens
    return name


def add_recompute(draft: Draft) -> None:
    """Add gradient checkpointing, reentrant by default (normalize_config), and its offloads."""
    chosen, offload = draft.get("gradient_checkpointing"), draft.get("activation_offloading")
    if chosen in ("offload", "offload_disk"):
        chosen, offload = True, True
    on = flag(chosen, "gradient_checkpointing") or offload == "hidden_states"
    draft.args["gradient_checkpointing"] = on
    if not on:
        return
    kwargs = dict(draft.section("gradient_checkpointing_kwargs"))
    reentrant = flag(kwargs.get("use_reentrant", _reentrant(draft)), "use_reentrant")
    if not kwargs:
        draft.assume(f"gradient_checkpointing_kwargs: use_reentrant={str(reentrant).lower()}")
    draft.args["gradient_checkpointing_kwargs"] = {"use_reentrant": reentrant}
    if draft.get("selective_checkpointing"):
        _add_selective(draft)
    elif offload in OFFLOADS or flag(offload, "activation_offloading"):
        _add_offload(draft, offload)


def _reentrant(draft: Draft) -> bool:
    """Axolotl's default: reentrant in plain training of all layers, except Gemma 4."""
    if draft.get("rl") or draft.get("unfrozen_parameters") or draft.get("selective_checkpointing"):
        return False
    if draft.get("activation_offloading") == "hidden_states":
        return False
    return "gemma-4" not in str(draft.get("base_model")).lower()


def _add_selective(draft: Draft) -> None:
    given = draft.get("selective_checkpointing")
    saved = mapping(given, "selective_checkpointing") if not isinstance(given, bool) else {}
    rest = {key: value for key, value in saved.items() if key != "save" and value}
    if list(saved.get("save", ["attention"])) == ["attention"] and not rest:
        draft.args["gradient_checkpointing"] = False
        draft.training["recompute"] = "attention_kept"
    else:
        draft.limit("selective_checkpointing", *LIMITS["selective"])


def _add_offload(draft: Draft, offload: object) -> None:
    """Layers' inputs wait on the host. With adapters, TRL's offload moves every saved tensor."""
    if draft.get("adapter") and offload != "hidden_states":
        draft.limit("activation_offloading", *LIMITS["every tensor"], value=offload)
    elif draft.get("deepspeed"):
        draft.limit("activation_offloading", *LIMITS["inputs"], value=offload)
    else:
        draft.args["gradient_checkpointing"] = False
        draft.args.pop("gradient_checkpointing_kwargs")
        draft.training["recompute"] = "full_offloaded"


def add_placement(draft: Draft, attention: str) -> None:
    """Add where the weights are loaded, and the upcast of embedding, head and norms: they stay in
    fp32 in a full fine-tune with torch's attention (_configure_embedding_dtypes). Several ranks
    load onto their GPUs; one loads on the host (choose_device, under accelerate launch).
    """
    if draft.launch:
        return  # sharded, or cast again by DeepSpeed
    several = (draft.num_gpus or 1) > 1
    if several and not draft.quantization:
        draft.load["device_map"] = "cuda"
    cast_back = draft.peft is not None or draft.training.get("loss") == "cut"
    if draft.load["dtype"] != "float32" and not cast_back and attention in TORCH_ATTENTION:
        draft.limit("attn_implementation", *LIMITS["upcast"], value=attention or "sdpa")
    elif draft.load["dtype"] != "float32" and (several or draft.quantization):
        draft.training["upcast_at_startup"] = True


def add_compile(draft: Draft) -> None:
    """Add torch.compile; auto is on since torch 2.5.1 (check_torch_compile_auto)."""
    chosen = draft.get("torch_compile")
    if chosen != "auto" and not flag(chosen, "torch_compile"):
        return
    kwargs = draft.args.get("gradient_checkpointing_kwargs") or {}
    others = draft.launch or draft.training or draft.quantization or kwargs.get("use_reentrant")
    if others or draft.load["attn_implementation"] != "sdpa" or draft.args.get("use_liger_kernel"):
        draft.limit("torch_compile", *LIMITS["compile"])
        return
    draft.args["torch_compile"] = True
    own = ("torch_compile_backend", "torch_compile_mode")
    draft.args |= {key: draft.get(key) for key in own if draft.get(key)}


def add_frozen(draft: Draft) -> None:
    """Add which weights are frozen (utils/freeze.py)."""
    patterns = draft.get("unfrozen_parameters") or []
    if not isinstance(patterns, list):
        raise InputError(f"unfrozen_parameters={quoted(patterns)} must be a list of patterns")
    if draft.get("adapter"):
        if patterns:
            _limit_frozen_adapters(draft, patterns)
        return  # all but the adapters is frozen
    text = all(any(word in str(one) for word in TEXT_ONLY) for one in patterns)
    if (patterns and text) or draft.flag("freeze_mm_modules"):
        draft.training["freeze_vision_tower"] = True
    if patterns and not text:
        draft.limit("unfrozen_parameters", *LIMITS["frozen"])


def _limit_frozen_adapters(draft: Draft, patterns: list[object]) -> None:
    """Names are matched from their start, which is base_model in PEFT's model: a pattern for the
    model's own names matches none, and the adapters are frozen, too.
    """
    own = all(str(one).lstrip("^").startswith(("model", "lm_head", "lang")) for one in patterns)
    why = "freezes adapters whose names it does not match; the estimate trains all of them"
    draft.limit("unfrozen_parameters", why, "less" if own else "either")
