"""The model of a program, loaded as users load it, with random weights."""

from __future__ import annotations

import fcntl
import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...runfile.program import Program
from ...runfile.text.errors import InputError
from .job import Job
from .model import NO_PROGRAM, auto_config, import_extra

BLOCK = 2**20  # random numbers, which every weight repeats
FOLDER = "gpu-mem-calc-models"  # in the system's folder for temporary files


def load_model(
    job: Job,
    program: Program,
    auto: str = "AutoModelForCausalLM",
    changes: Mapping[str, Any] | None = None,
    *,
    saved: bool = False,
) -> Any:
    """The model as from_pretrained gives it: on the host, or quantized on the GPU.

    auto: the class of transformers that makes it; changes: of its configuration; saved: there must
    be a checkpoint, because the program loads it again
    """
    torch, transformers = import_extra("torch", "torch"), import_extra("transformers", "torch")
    config = job.resolved.model.config
    if config is None:
        raise InputError(NO_PROGRAM)
    settings = auto_config({**config, **(changes or {})})
    load = dict(program.load)
    dtype = load.pop("dtype", None) or load.pop("torch_dtype", None) or settings.dtype
    dtype = dtype if isinstance(dtype, torch.dtype) else getattr(torch, str(dtype or "bfloat16"))
    if load.get("attn_implementation"):
        settings._attn_implementation = load["attn_implementation"]
    make = getattr(transformers, auto)
    if not program.quantization and not saved:
        made = random_model if job.world.has_weights else model_without_values
        return made(make, settings, dtype)
    folder = _saved(job, settings, torch.bfloat16, make)
    if program.quantization:
        given = _with_dtypes(program.quantization, torch)
        load["quantization_config"] = transformers.BitsAndBytesConfig(**given)
        load.setdefault("device_map", {"": 0})
    return make.from_pretrained(folder, dtype=dtype, **load)


def random_model(make: Any, settings: Any, dtype: Any) -> Any:
    """A model on the host with random weights: one block of numbers, over and over, since drawing
    them all takes minutes.
    """
    torch, model = import_extra("torch", "torch"), model_without_values(make, settings, dtype)
    block = (torch.randn(BLOCK, generator=torch.Generator().manual_seed(0)) * 0.02).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            for part in parameter.data.view(-1).split(BLOCK):
                part.copy_(block[: part.numel()])
    return model


def model_without_values(make: Any, settings: Any, dtype: Any) -> Any:
    """A model on the host whose weights are not set."""
    with import_extra("transformers.initialization", "torch").no_init_weights():
        model = make.from_config(settings, dtype=dtype)
    model.tie_weights()
    return model


def _saved(job: Job, settings: Any, dtype: Any, make: Any) -> str:
    """The folder of a checkpoint with random weights; it is written once for each model."""
    if not job.world.has_weights:
        return _configured(settings, dtype, make)
    text = json.dumps([job.resolved.model.config, make.__name__], sort_keys=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    parent = Path(tempfile.gettempdir()) / FOLDER
    parent.mkdir(exist_ok=True)
    with (parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = parent / name
        if not (folder / "config.json").exists():
            random_model(make, settings, dtype).save_pretrained(folder)
    return str(folder)


def _configured(settings: Any, dtype: Any, make: Any) -> str:
    """The folder of a checkpoint without weights, where tensors are fake."""
    settings.dtype = dtype
    settings.architectures = [make._model_mapping[type(settings)].__name__]
    folder = tempfile.mkdtemp(prefix="gpu-mem-calc-")
    settings.save_pretrained(folder)
    return folder


def _with_dtypes(quantization: dict[str, Any], torch: Any) -> dict[str, Any]:
    """BitsAndBytesConfig's arguments, with torch's dtypes for their names."""
    names = ("bnb_4bit_compute_dtype", "bnb_4bit_quant_storage")
    return {k: getattr(torch, v) if k in names and v else v for k, v in quantization.items()}
