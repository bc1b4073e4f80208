"""Write down what transformers builds: every parameter and buffer with its shape.

Usage: python record_shapes.py cases.json shapes.json

The cases are {name: config.json}; the record is {name: {"parameters": {name: shape},
"buffers": {name: [shape, bits]}}}. Models are built on the meta device, so nothing is allocated.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_mem_calculator.ledger.frameworks import TRANSFORMERS


def record(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """One model's parameters (tied ones once) and buffers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        import transformers

        if transformers.__version__ != TRANSFORMERS.version:
            needed = TRANSFORMERS.version
            raise RuntimeError(f"transformers {transformers.__version__}; install {needed}")
        keys = dict(config)
        built = transformers.AutoConfig.for_model(keys.pop("model_type"), **keys)
        auto = _auto(transformers, built)
        with torch.device("meta"):
            model = auto.from_config(built)
    return {
        "parameters": {name: list(p.shape) for name, p in model.named_parameters()},
        "buffers": {
            name: [list(b.shape), b.element_size() * 8] for name, b in model.named_buffers()
        },
    }


def _auto(transformers: Any, built: Any) -> Any:
    """The class with a head for what the config is: pictures, two stacks, text, or none."""
    if built.model_type == "whisper":
        return transformers.AutoModelForSpeechSeq2Seq
    if built.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    if getattr(built, "vision_config", None) is not None:
        return transformers.AutoModelForImageTextToText
    if type(built) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING and built.model_type != "bert":
        return transformers.AutoModelForCausalLM
    return transformers.AutoModel


def write(cases: Path, out: Path) -> None:
    """Record every case, one line each."""
    table = json.loads(cases.read_text())
    lines = [
        f"{json.dumps(name)}:{json.dumps(record(config), separators=(',', ':'))}"
        for name, config in table.items()
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
