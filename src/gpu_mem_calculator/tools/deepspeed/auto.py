"""What the Trainer of transformers writes for "auto" in a DeepSpeed file.

Its own arguments' defaults, and sizes that follow from the model's hidden size (transformers 5.17.0
integrations/deepspeed.py, training_args.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from ...runfile.text.errors import quoted
from ..translation.arguments import Values, tables
from .batch import MICRO, STEPS, TRAIN

AUTO, ZERO = "auto", "zero_optimization"
HiddenSize = Callable[[], int | None]


class TrainerValue(Struct, frozen=True):
    """A value of the Trainer's: the key of the run file that it sets, and where it is from.

    It is `value`, or `factor` times the hidden size, or times its square.
    """

    key: str
    origin: str
    value: Any = None
    factor: int | float = 0
    squared: bool = False

    def of_hidden(self, hidden: int) -> int:
        """The value that follows from the hidden size."""
        return int(self.factor * hidden * (hidden if self.squared else 1))


TRAINER_VALUES = msgspec.convert(tables(__file__)["values"], dict[str, TrainerValue])
FILLED = (TRAIN, *TRAINER_VALUES)  # keys of memory for which "auto" is accepted


def auto_values(paths: list[str], given: Values, hidden: HiddenSize) -> dict[str, Any]:
    """The values for the keys at `paths` that are "auto"; `given` are those of the other keys.

    A batch size follows from the others where the batch of a whole step is given. A size that
    follows from the hidden size is left out where that is not known.
    """
    values: dict[str, Any] = {}
    for path in paths:
        rule = TRAINER_VALUES.get(path)
        if rule is None or (path in (MICRO, STEPS) and TRAIN in given):
            continue
        size = hidden() if rule.factor else None
        if not rule.factor:
            values[path] = rule.value
        elif size is not None:
            values[path] = rule.of_hidden(size)
    return values


def auto_assumptions(paths: list[str], values: Values) -> Iterator[tuple[str, str]]:
    """(key of the run file, sentence) for each key that is "auto"."""
    for path in paths:
        rule = TRAINER_VALUES.get(path)
        if rule is None:
            continue
        name = path.removeprefix("zero_optimization.")
        if path in values:
            origin = rule.origin if rule.factor else f"{rule.origin} of the Trainer by default"
            yield rule.key, f'{name}="auto" is {quoted(values[path])} ({origin})'
        elif rule.factor:
            yield rule.key, f'{name}="auto" is {rule.origin}, which is not known without a model'
