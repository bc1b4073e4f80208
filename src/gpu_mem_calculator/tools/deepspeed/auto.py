"""What the Trainer of transformers writes for "auto" in a DeepSpeed file.

Its own arguments' defaults, and sizes that follow from the model's hidden size (transformers 5.17.0
integrations/deepspeed.py, training_args.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ...runfile.text.errors import quoted
from .batch import MICRO, STEPS, TRAIN

AUTO, ZERO = "auto", "zero_optimization"
HiddenSize = Callable[[], int | None]


class TrainerValue(NamedTuple):
    """A value of the Trainer's: the key of the run file that it sets, and where it is from."""

    key: str
    origin: str
    value: Any = None
    of_hidden: Callable[[int], int] | None = None


TRAINER_VALUES: Mapping[str, TrainerValue] = {
    MICRO: TrainerValue("training.batch_size", "per_device_train_batch_size", 8),
    STEPS: TrainerValue(f"training.{STEPS}", STEPS, 1),
    "gradient_clipping": TrainerValue("training.gradient_clipping", "max_grad_norm", 1.0),
    "fp16.enabled": TrainerValue("training.precision", "fp16", False),
    "bf16.enabled": TrainerValue("training.precision", "bf16", False),
    "zero_optimization.reduce_bucket_size": TrainerValue(
        "engine.reduce_bucket_size", "hidden size squared", of_hidden=lambda h: h * h
    ),
    "zero_optimization.stage3_prefetch_bucket_size": TrainerValue(
        "engine.stage3_prefetch_bucket_size",
        "0.9 × hidden size squared",
        of_hidden=lambda h: int(0.9 * h * h),
    ),
    "zero_optimization.stage3_param_persistence_threshold": TrainerValue(
        "engine.stage3_param_persistence_threshold", "10 × hidden size", of_hidden=lambda h: 10 * h
    ),
}
FILLED = (TRAIN, *TRAINER_VALUES)  # keys of memory for which "auto" is accepted


def auto_values(paths: list[str], given: Mapping[str, Any], hidden: HiddenSize) -> dict[str, Any]:
    """The values for the keys at `paths` that are "auto"; `given` are those of the other keys.

    A batch size follows from the others where the batch of a whole step is given. A size that
    follows from the hidden size is left out where that is not known.
    """
    values: dict[str, Any] = {}
    for path in paths:
        rule = TRAINER_VALUES.get(path)
        if rule is None or (path in (MICRO, STEPS) and TRAIN in given):
            continue
        size = hidden() if rule.of_hidden else None
        if rule.of_hidden is None:
            values[path] = rule.value
        elif size is not None:
            values[path] = rule.of_hidden(size)
    return values


def auto_assumptions(paths: list[str], values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key of the run file, sentence) for each key that is "auto"."""
    for path in paths:
        rule = TRAINER_VALUES.get(path)
        if rule is None:
            continue
        name = path.removeprefix("zero_optimization.")
        if path in values:
            origin = rule.origin if rule.of_hidden else f"{rule.origin} of the Trainer by default"
            yield rule.key, f'{name}="auto" is {quoted(values[path])} ({origin})'
        elif rule.of_hidden:
            yield rule.key, f'{name}="auto" is {rule.origin}, which is not known without a model'
