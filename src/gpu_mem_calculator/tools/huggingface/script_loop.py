"""A training loop of a script's own, in the words of transformers.Trainer."""

from __future__ import annotations

from typing import Any

from ..reading.reading import Reading
from ..script.record import ScriptRecord
from ..script.values import Thing
from .script_rows import honoured, limited
from .script_trainer import optimizer_values
from .trainers import loop_model

Section = dict[str, Any]
STEPS = "gradient_accumulation_steps"
BATCH_NAMES = (
    *("per_device_train_batch_size", "micro_batch_size", "train_batch_size", "batch_size"),
)
ALIKE = (
    "a loop of the script's own holds what transformers.Trainer holds with the same batch, "
    "optimizer and precision"
)


def loop_values(found: ScriptRecord, reading: Reading) -> Section:
    """The arguments of a Trainer that does what the loop does."""
    reading.assumed.append(ALIKE)
    model = found.facts["loop model"] = loop_model(found)
    accelerators = [one for one in found.things if one.kind == "accelerator"]
    values = _batches(found, reading)
    optimizers = [one for one in found.things if one.kind == "optimizer"]
    if optimizers:
        values |= optimizer_values(reading, optimizers[-1], optimizers[-1].line)
    else:
        limited(reading, 0, "optimizer", "the loop's optimizer is not shown")
    clipped = [one for one in (*accelerators, model) if one and one.values.get("clipped")]
    values["max_grad_norm"] = 1.0 if clipped else 0.0
    values |= _precision(found, accelerators, reading)
    if found.facts.get("own loss") and not model_loss(found):
        why = "a loss of one's own may keep other tensors than the model's"
        limited(reading, found.facts["own loss"], "loss", why)
    return values


def model_loss(found: ScriptRecord) -> bool:
    """Whether the model's own loss goes backward."""
    return bool(found.facts.get("model loss"))


def _batches(found: ScriptRecord, reading: Reading) -> Section:
    """The first loader's batch is trained; another one's is evaluated."""
    loaders = [one for one in found.things if one.kind == "loader"]
    values: Section = {}
    sizes = [(one.values.get("batch_size", 1), one) for one in loaders]
    shuffled = [pair for pair in sizes if pair[1].values.get("shuffle") is True]
    used = [pair for pair in sizes if pair[1] is found.facts.get("loader")]
    shuffled = used or shuffled
    for key, pairs in (
        ("per_device_train_batch_size", (shuffled or sizes)[:1]),
        ("per_device_eval_batch_size", [one for one in sizes if one not in shuffled][-1:]),
    ):
        for size, loader in pairs:
            line = loader.lines.get("batch_size", loader.line)
            if isinstance(size, int):
                values[key] = size
                honoured(reading, line, f"DataLoader(batch_size={size})")
            else:
                why = "the script computes it when it runs, so the default is taken"
                limited(reading, line, "DataLoader(batch_size)", why)
    if not loaders:
        values |= _named_batch(found, reading)
    if len(loaders) > 1 and found.facts.get("evaluates"):
        values["eval_strategy"] = "epoch"
    else:
        values.pop("per_device_eval_batch_size", None)
    steps = found.options.get(STEPS)
    for one in found.things:
        if one.kind == "accelerator":
            steps = one.values.get(STEPS, steps)
    if isinstance(steps, int) and steps > 0:
        values[STEPS] = steps
    return values


def _named_batch(found: ScriptRecord, reading: Reading) -> Section:
    """The batch of a loop without a loader, by the usual names of options."""
    for name in BATCH_NAMES:
        size = found.options.get(name)
        if isinstance(size, int) and size > 0:
            reading.assumed.append(f"{name}={size} is the loop's batch, by its name")
            return {"per_device_train_batch_size": size}
    limited(reading, 0, "batch", "the loop's batch is not shown, so the default is taken")
    return {}


def _precision(found: ScriptRecord, accelerators: list[Thing], reading: Reading) -> Section:
    """Mixed precision: Accelerate's argument, or torch.autocast around the forward pass."""
    word = found.facts.get("autocast")
    for one in accelerators:
        word = one.values.get("mixed_precision", word)
        for key in one.values:
            if key not in KNOWN and not key.startswith("["):
                limited(
                    reading, one.lines.get(key, one.line), f"Accelerator({key})", "not understood"
                )
    if word in ("bf16", "bfloat16"):
        return {"bf16": True}
    if word in ("fp16", "float16"):
        return {"fp16": True}
    if word not in (None, "no", False):
        limited(reading, 0, "mixed precision", "the text does not show it")
    return {}


KNOWN = (
    *("mixed_precision", STEPS, "log_with", "project_dir", "logging_dir", "cpu", "kwargs_handlers"),
    *(
        "backward",
        "clipped",
        "models",
        "split_batches",
        "dispatch_batches",
        "step_scheduler_with_optimizer",
    ),
    *("project_config", "even_batches", "rng_types", "device_placement", "dataloader_config"),
)
