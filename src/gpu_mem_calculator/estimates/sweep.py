"""One run with every combination of some values: a row each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..ledger.extras import install
from ..ledger.shown import Shown
from ..runfile.other_names import translated
from ..runfile.own_names import SERVED, TRAINED, is_own, with_setting
from ..runfile.read import with_settings
from ..runfile.sections import SECTIONS, key_types
from ..runfile.text.errors import InputError, nearest
from ..tools.read import read
from .calculator import estimate
from .verdict_words import total_bytes

if TYPE_CHECKING:
    from .calculator import Source
    from .result import MemoryResult

FIGURES = (
    *("needs_bytes", "allocated_bytes", "reserved_bytes", "device_bytes", "headroom_bytes"),
    *("gpu_memory_bytes", "peak_instant"),
)


class Sweep(Shown, list[dict[str, Any]]):
    """Rows of a sweep, in the order of the values; `results` has the whole answer of each.

    A row has the values, the `verdict`, `total_bytes` (what the card must have) and figures of the
    result, of a server also its users. A combination that is refused has its `problem` and None.
    """

    def __init__(
        self, axes: Mapping[str, list[Any]], found: Iterable[tuple[Any, MemoryResult | str]]
    ) -> None:
        self.axes = dict(axes)
        rows = [(dict(zip(axes, values, strict=True)), one) for values, one in found]
        self.results = [None if isinstance(one, str) else one for _, one in rows]
        super().__init__({**values, **_figures(one)} for values, one in rows)

    def to_dataframe(self) -> Any:
        """The rows as a pandas DataFrame."""
        try:
            import pandas
        except ModuleNotFoundError:
            needs = f"to_dataframe() needs pandas; {install('notebook')}"
            raise InputError(f"{needs}, or take the rows as they are: a list of dicts") from None
        return pandas.DataFrame(list(self))


def sweep(
    source: Source, axes: Mapping[str, Any] | None = None, *, replay: bool = True, **more: Any
) -> Sweep:
    """Estimate a run with every combination of values of some of its keys.

    `sweep("run.json", batch_size=[1, 2, 4], gpu=["h100", "a100-80gb"])`. Keys with their sections
    stand in `axes`: `{"engine.type": ["fsdp", "deepspeed"]}`. `replay` as in `estimate`. What is
    refused for every combination is raised.
    """
    named = {key: _values(key, value) for key, value in {**(axes or {}), **more}.items()}
    if not named:
        raise InputError("a sweep needs a key and its values, such as batch_size=[1, 2, 4]")
    asked = read(source)
    for key, tried in named.items():
        _check_key(key, tried[0], asked.run)
    found: list[tuple[Any, MemoryResult | str]] = []
    for values in product(*named.values()):
        try:
            data = with_settings(asked.run, ())
            for key, value in zip(named, values, strict=True):
                with_setting(data, key, value)
            found.append((values, estimate(replace(asked, run=data), replay=replay)))
        except InputError as error:
            found.append((values, str(error)))
    if all(isinstance(one, str) for _, one in found):
        raise InputError(list(dict.fromkeys(str(one) for _, one in found)))
    return Sweep(named, found)


def _check_key(key: str, value: Any, run: Mapping[str, Any]) -> None:
    """Raise for a key without its section that no section of the run has, or several have."""
    serving = run.get("inference") is not None
    sections = SERVED if serving else TRAINED
    own = [f"{one}.{key}" for one in sections if is_own(f"{one}.{key}")]
    if "." in key or len(own) == 1 or translated(key, value, serving=serving) is not None:
        return
    if own:
        raise InputError(f"{key} can be {' or '.join(own)}; write {{{own[0]!r}: [...]}}")
    known = [name for one in sections for name in key_types(SECTIONS[one])]
    raise InputError(f"{key} is not a key of a run file{nearest(key, known)}")


def _values(key: str, value: Any) -> list[Any]:
    """The values of a key; one that is no list is the only one."""
    several = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    found = list(value) if several else [value]
    if not found:
        raise InputError(f"{key} has no value; give it at least one")
    return found


def _figures(found: MemoryResult | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {**dict.fromkeys(("verdict", "total_bytes", *FIGURES, "users")), "problem": found}
    figures = {name: getattr(found, name) for name in FIGURES}
    users = None if found.serving is None else found.serving.users
    total = total_bytes(found)
    return {
        "verdict": found.verdict,
        "total_bytes": total,
        **figures,
        "users": users,
        "problem": "",
    }
