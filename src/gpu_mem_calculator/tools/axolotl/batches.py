"""The rows of a batch: micro-batches, packing, padding, and the rows of an evaluation.

Axolotl 067b021 core/builders/causal.py (build), core/trainers/base.py (_create_multipack_sampler),
utils/data/streaming.py, utils/schemas/validation.py.
"""

from __future__ import annotations

from ..reading.trainer_arguments import sampling_data
from ..translation.arguments import tables
from .draft import Draft, flag

MULTIPLE = 64  # core/builders/causal.py: rows are padded to a multiple of it
# Attention that keeps packed documents apart by their positions (utils/schemas/enums.py).
PACKING = tuple(tables(__file__)["packing"])


def add_batch(draft: Draft, attention: str) -> None:
    """Add the micro-batch, gradient accumulation, and the length of a row."""
    size = draft.whole("micro_batch_size") or 1
    length = draft.whole("sequence_len") or 512
    rows, tokens = _rows(draft, attention, size, length)
    draft.args["per_device_train_batch_size"] = rows
    draft.args["gradient_accumulation_steps"] = _accumulation(draft, size)
    draft.data["seq_len"] = tokens
    draft.data |= sampling_data({"group_by_length": draft.flag("group_by_length")})
    if not draft.reading.keys.get("sequence_len"):
        draft.assume(f"sequence_len={length}, Axolotl's default")
    if not _packs(draft):
        draft.assume("every example is as long as sequence_len, the most that Axolotl keeps")


def add_evaluation(draft: Draft, attention: str) -> None:
    """Add the evaluation, where one runs."""
    if not _evaluates(draft):
        return
    size = draft.whole("eval_batch_size") or draft.whole("micro_batch_size") or 1
    length = draft.whole("eval_sequence_len") or draft.whole("sequence_len") or 512
    rows, tokens = size, _padded(draft, length)
    if _packs(draft) and draft.get("eval_sample_packing") is not False:
        trained = draft.whole("micro_batch_size") or 1
        rows, tokens = _rows(draft, attention, trained, length)
    draft.args |= {"eval_strategy": "steps", "per_device_eval_batch_size": rows}
    draft.data["eval_seq_len"] = tokens


def _packs(draft: Draft) -> bool:
    return draft.flag("sample_packing") and not draft.get("rl")


def _rows(draft: Draft, attention: str, size: int, length: int) -> tuple[int, int]:
    """Rows of a batch and their tokens. Packed rows are one long row, unless the attention needs
    a mask to keep documents apart (multipack_real_batches).
    """
    if not _packs(draft):
        flat = _flattens(draft, attention, size)
        return (1, size * length) if flat else (size, _padded(draft, length))
    real = draft.get("multipack_real_batches")
    streamed = bool(draft.get("pretraining_dataset") or draft.flag("streaming"))
    if streamed:
        return 1, size * length  # encode_packed_streaming
    apart = attention not in PACKING if real is None else draft.flag("multipack_real_batches")
    return (size, _padded(draft, length)) if apart else (1, _padded(draft, size * length, length))


def _flattens(draft: Draft, attention: str, size: int) -> bool:
    """Whether a batch becomes one row without padding (check_batch_flattening_fa)."""
    chosen = draft.get("batch_flattening")
    if draft.get("rl") or not chosen:
        return False
    return attention in PACKING and (chosen != "auto" or size > 1)


def _padded(draft: Draft, tokens: int, length: int | None = None) -> int:
    """Tokens of a row with its padding (data_collator_kwargs)."""
    multiple = draft.whole("pad_to_multiple_of") or MULTIPLE
    whole_rows = draft.get("pad_to_sequence_len")
    if whole_rows is None and (_packs(draft) or draft.flag("reward_model")):
        whole_rows = True  # hint_sample_packing_padding, hint_reward_model_pad
    if whole_rows is not None and not flag(whole_rows, "pad_to_sequence_len"):
        return tokens
    if whole_rows:
        each = multiple * -(-(length or tokens) // multiple)
        return -(-tokens // each) * each
    return -(-tokens // multiple) * multiple


def _accumulation(draft: Draft, size: int) -> int:
    """Micro-batches of a step. The schema's default is 1, so `batch_size` counts only where
    gradient_accumulation_steps is null (schemas/training.py, normalize_config).
    """
    given = draft.whole("gradient_accumulation_steps")
    total = draft.whole("batch_size")
    if given is None and "gradient_accumulation_steps" in draft.reading.keys and total:
        return max(1, total // size)
    return given or 1


def _evaluates(draft: Draft) -> bool:
    """Whether Trainer evaluates (normalize_config, _configure_save_and_eval_strategy). One
    evaluation in one epoch is none: its step is the whole of training.
    """
    held_out = draft.number("val_set_size") > 0 or draft.get("test_datasets")
    if not held_out:
        return False
    if draft.get("eval_steps"):
        return True
    each = draft.number("evals_per_epoch")
    if each and 1 / (each * (draft.number("num_epochs") or 1)) < 1:
        return True
    strategy = draft.get("eval_strategy") or draft.get("evaluation_strategy")
    return strategy is not None and str(strategy) not in ("no", "False")
