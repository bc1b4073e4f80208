"""Label and meaning of each key of a run file, and its default where all engines share one.

The rows of keys.toml are (level, label, meaning). A form always shows `main` keys, `more` keys in
the opened section, and `expert` keys on request.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...models.families.plain import DEFAULTS as PLAIN
from ...training.engines import DEFAULT as DEFAULT_ENGINE
from ..resolve.hardware import DEFAULT_MEMORY_GB
from ..resolve.resolve_training import AXES

Row = tuple[str, str, str]
_SECTIONS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
WORDS: Mapping[str, Row] = {
    f"{section}.{key}": (level, label, meaning)
    for section, rows in _SECTIONS.items()
    for key, (level, label, meaning) in rows.items()
}
MEANING: Mapping[str, str] = {path: meaning for path, (_, _, meaning) in WORDS.items()}
DEFAULT: Mapping[str, Any] = {
    "training.batch_size": 1,
    "training.gradient_accumulation_steps": 1,
    "training.precision": "bf16_mixed",
    "training.optimizer": "adamw",
    "training.activation_checkpointing": "none",
    "training.attention": "sdpa",
    "training.gradient_clipping": 1.0,
    "training.loss": "full",
    "training.packed_documents": 1,
    "training.disable_dropout": False,
    "training.reference_model": False,
    "training.label_smoothing": 0.0,
    "training.liger": False,
    "training.double_quant": True,
    "training.quantization": "none",
    "training.autocast": False,
    "training.checkpoint_reentrant": False,
    "training.upcast_unquantized": False,
    "training.upcast_at_startup": False,
    "training.freeze_vision_tower": False,
    "parallelism.virtual_pipeline_size": 1,
    "parallelism.sequence_parallel": False,
    **{f"parallelism.{key}": 1 for key in AXES.values()},
    "engine.type": DEFAULT_ENGINE,
    "inference.engine": "transformers",
    "hardware.gpu_memory_gb": int(DEFAULT_MEMORY_GB),
    **{f"model.{key}": value for key, value in PLAIN.items()},
}
