"""LoRA adapters: the keys of a run file, resolved and checked."""

from __future__ import annotations

from ...ledger.dtypes import BITS
from ...models.arch.adapters import DEFAULT_TARGETS, LLAMA_TARGETS, Adapter, linears, module_name
from ...models.arch.arch import Arch
from ..config import TrainingConfig
from ..find_model.target_patterns import matched_names
from ..text.errors import InputError


def find_adapter(config: TrainingConfig, arch: Arch) -> Adapter | None:
    """The run's adapters, None where it has none; raises a sentence for what cannot be."""
    if config.lora is None:
        if config.quantization not in (None, "none"):
            why = "quantized weights take no gradient; add training.lora"
            raise InputError(f"training.quantization={config.quantization!r}: {why}")
        return None
    known = {module_name(one) for layer, _, _ in arch.runs for one in linears(layer)}
    if not known:
        raise InputError(f"training.lora: {arch.family} has no projection that PEFT adapts")
    modules = config.lora.target_modules
    usual = DEFAULT_TARGETS.get(arch.family, LLAMA_TARGETS)
    if modules == []:
        nothing = "training.lora.target_modules=[] adapts nothing; leave it out for"
        raise InputError(f"{nothing} {', '.join(sorted(usual))}")
    if modules == "all-linear":
        modules = sorted(known)
    elif isinstance(modules, str):
        modules = matched_names(modules, arch, known)
    targets = frozenset(modules or usual)
    missing = sorted(targets - known)
    if missing:
        absent = f"{arch.family} has no {', '.join(missing)}"
        present = f"it has {', '.join(sorted(known))}"
        raise InputError(f"training.lora.target_modules: {absent}; {present}")
    lora = config.lora
    bits, initial = (BITS[name] for name in (lora.adapter_dtype, lora.initial_dtype or "fp32"))
    made = initial if lora.initial_dtype and initial != bits else 0
    dropout = 0.0 if config.disable_dropout else lora.dropout
    return Adapter(lora.r, targets, bits, dropout, lora.dora, made)
