"""What a training run takes where its file leaves it out: the same for all commands and Python."""

from __future__ import annotations

from typing import Any

from ...models.arch.arch import Arch
from ...run.cuda.capability import BF16, older
from ...run.cuda.runtimes import CUDA
from ...run.engine import Engine
from ...run.engine_row import REPLICATE
from ...training.engines import engine_row
from ..config import GPUConfig, RunFile, TrainingConfig
from ..text.errors import InputError
from .hardware import Hardware, find_hardware
from .step_choices import trained_tokens

LONGEST = 4096  # tokens of a sequence, at most; less where the model's limit is lower
Chosen = tuple[int, tuple[str, ...]]  # a sequence, and what was assumed for it


def default_sequence(own: int, written: int | None = None) -> int:
    """Tokens of a sequence: the max_seq_len that the file writes, else `LONGEST` or the model's."""
    return written or min(own, LONGEST)


def sequence(file: RunFile, arch: Arch, *, recorded: bool) -> Chosen:
    """The tokens of a sequence, and a sentence where no key says them."""
    given = file.training.seq_len or trained_tokens(file.training)
    drawn = file.training.lengths is not None
    if given or recorded or drawn:  # a recorded module has the length that it was recorded with
        return given or arch.max_seq_len, ()
    written, own = file.model.max_seq_len, arch.max_seq_len
    seq = default_sequence(own, written)
    why = f"not the model's {own:,}" if seq < own else "the model's longest"
    why = "the file's max_seq_len" if written else why
    return seq, (f"sequence of {seq:,} tokens (training.seq_len), {why}",)


def card_dtype(hardware: Hardware) -> str:
    """The 16-bit dtype of a card: bf16, or fp16 where a named card has no bf16 units."""
    named = bool(hardware.card) and hardware.runtime == CUDA
    return "fp16" if named and older(hardware.compute_capability, BF16) else "bf16"


def named_dtype(card: str | None) -> str:
    """The 16-bit dtype of the card with this name; bf16 where it is not known."""
    try:
        return card_dtype(find_hardware(GPUConfig(gpu=card), None))
    except InputError:  # said where the hardware is read
        return "bf16"


def default_precision(
    config: TrainingConfig, hardware: Hardware, engine: Engine
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Precision and autocast where the section says neither, as fields of `Run`; a sentence where
    it is not bf16_mixed.

    With LoRA on DDP: a 16-bit base under autocast, as PEFT's users run it.
    """
    if config.precision is not None or config.dtype is not None:
        return {}, ()
    dtype = card_dtype(hardware)
    why = f", as {hardware.card} has no bf16 units" if dtype == "fp16" else ""
    replicates = engine_row(engine.name).ranks == REPLICATE
    if config.lora is not None and config.autocast is None and replicates:
        note = f"adapters on a {dtype} base under autocast (training.precision={dtype}_pure){why}"
        return {"precision": f"{dtype}_pure", "autocast": True}, (note,)
    note = f"training.precision={dtype}_mixed{why}"
    return {"precision": f"{dtype}_mixed"}, (note,) if why else ()
