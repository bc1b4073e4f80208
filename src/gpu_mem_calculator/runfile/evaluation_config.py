"""The run file's section `training.evaluation`."""

from msgspec import Struct

from .field_types import Count, Flag


class EvaluationConfig(Struct, kw_only=True, omit_defaults=True):
    """An evaluation between steps, with the defaults of transformers' Trainer."""

    batch_size: Count = 8
    seq_len: Count | None = None
    batches: Count = 1
    keep_logits: Flag = False
    accumulation_steps: Count | None = None
