"""What `quick` chooses where the options leave it open: an architecture, and a mesh."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ..estimates.calculator import Estimate, full_estimate
from ..runfile.find_model.model_size import sized_model
from ..runfile.read import with_settings
from ..runfile.text.errors import InputError

DEEPEST = 512  # pipeline stages; no model has more layers


class QuickChoice(Struct, frozen=True):
    """A preset, the settings that override it, and a sentence for each choice."""

    preset: str
    settings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def with_settings(self, *settings: str) -> QuickChoice:
        """The choice with more settings; a later one overrides."""
        return replace(self, settings=(*self.settings, *settings))

    def data(self) -> dict[str, Any]:
        """The run file as plain data."""
        return with_settings({"model": {"name": self.preset}}, self.settings)


def choose_model(text: str) -> QuickChoice:
    """The model of a size or a name."""
    sized = sized_model(text)
    if sized is None:
        return QuickChoice(text)
    count = sized.num_parameters
    settings = (f"model.num_parameters={count}",) if count else ()
    return QuickChoice(sized.name, settings, (sized.note,))


def choose_mesh(choice: QuickChoice, fixed: tuple[str, ...]) -> tuple[QuickChoice, Estimate | None]:
    """The smallest tensor parallelism within a node that fits, then pipeline parallelism.

    With a pipeline, as many micro-batches as stages: the fewest that keep every stage busy. The
    user's settings, `fixed`, are not changed. Where nothing fits, the last mesh that the engine
    accepts is returned. With the choice comes its estimate, where it is known.

    A mesh that does not fit by its ledger is not replayed: the allocator reserves at least the
    tensors that are alive at the ledger's peak, so the replay needs as much or more.
    """
    if any(setting.startswith("parallelism.") for setting in fixed):
        return choice, None
    hardware = choice.data()["hardware"]
    num_gpus = whole_number(hardware.get("num_gpus"), 1)
    per_node = whole_number(hardware.get("gpus_per_node"), 8)
    best: QuickChoice | None = None
    refusal: InputError | None = None
    for tp, pp in _meshes(num_gpus, per_node):
        candidate = _with_mesh(choice, tp, pp, num_gpus, fixed)
        try:
            estimate = full_estimate(candidate.data(), replay=False)
            if estimate.result.fits_on_gpu:
                estimate = full_estimate(candidate.data())
        except InputError as error:
            refusal = refusal or error
            continue
        best = candidate
        if estimate.result.fits_on_gpu:
            return _end_last_note(candidate, ", the first that fits."), estimate
    if best is None:
        raise refusal or InputError(f"no mesh of {num_gpus} GPUs works for this model")
    words = ", the most that this model can be split into; it does not fit."
    return _end_last_note(best, words), None


def _end_last_note(choice: QuickChoice, text: str) -> QuickChoice:
    """The choice with `text` added to its last note."""
    return replace(choice, notes=(*choice.notes[:-1], choice.notes[-1] + text))


def whole_number(value: Any, default: int) -> int:
    """A setting's positive whole number, else `default`; reading the run file checks it later."""
    return value if isinstance(value, int) and value > 0 else default


def _meshes(num_gpus: int, gpus_per_node: int) -> Iterator[tuple[int, int]]:
    """(tp, pp) in the order in which they are tried."""
    tp = 1
    while True:
        yield tp, 1
        if tp * 2 > gpus_per_node or num_gpus % (tp * 2):
            break
        tp *= 2
    rest = num_gpus // tp
    yield from ((tp, pp) for pp in range(2, min(rest, DEEPEST) + 1) if rest % pp == 0)


def _with_mesh(
    choice: QuickChoice, tp: int, pp: int, num_gpus: int, fixed: tuple[str, ...]
) -> QuickChoice:
    settings = [
        f"parallelism.tensor_parallel_size={tp}",
        f"parallelism.pipeline_parallel_size={pp}",
        f"parallelism.data_parallel_size={num_gpus // (tp * pp)}",
        *(["parallelism.sequence_parallel=true"] if tp > 1 else []),
    ]
    note = f"Chosen: tensor parallel {tp}, pipeline parallel {pp}"
    steps = "training.gradient_accumulation_steps="
    if pp > 1 and not any(setting.startswith(steps) for setting in fixed):
        settings.append(f"{steps}{pp}")
        note += f" with {pp} micro-batches"
    meshed = choice.with_settings(*settings)
    return replace(meshed, notes=(*choice.notes, note))
