"""What to change: each remedy is the estimate run again with that change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..core.calculator import Estimate
from ..core.change_candidates import Candidate, savings
from ..core.fit_verdict import FITS
from ..core.run_changes import TrainingChange, ledger_bytes, try_change
from .headline import card_bytes
from .lines import Line, gib, wrapped

MOST = 3  # remedies shown


def remedies(estimate: Estimate) -> list[TrainingChange]:
    """Up to three changes that help, where the run does not fit or only just.

    Those that make it fit come first, the cheapest in speed before the others; without one of
    those, the ones that save most. The ledger alone looks through them, and what is shown is
    replayed.
    """
    if estimate.result.verdict == FITS:
        return []
    looked = [_worth(estimate, candidate) for candidate in savings(estimate)]
    found = [remedy for remedy in looked if remedy is not None]
    likely = (remedy for remedy in found if remedy.fits)
    fitting = _replayed(estimate, likely, only_fitting=True)
    if fitting:
        return fitting
    most = sorted(found, key=lambda remedy: -remedy.saves_bytes)
    return _replayed(estimate, (*_together(estimate, most), *_adapter(estimate), *most))


def _replayed(
    estimate: Estimate, found: Iterable[TrainingChange], *, only_fitting: bool = False
) -> list[TrainingChange]:
    """The first of them, with the figures of a replay; one that then saves nothing is left out."""
    shown: list[TrainingChange] = []
    for remedy in found:
        if len(shown) == MOST:
            break
        candidate = Candidate(remedy.title, remedy.settings, remedy.cost)
        again = _worth(estimate, candidate, replay=True)
        if again is not None and (again.fits or not only_fitting):
            shown.append(again)
    return shown


def _worth(
    estimate: Estimate, candidate: Candidate, *, replay: bool = False
) -> TrainingChange | None:
    """A change tried out; nothing where it is refused or saves next to nothing."""
    needs = card_bytes(estimate) if replay else ledger_bytes(estimate)
    made = try_change(estimate, candidate, replay=replay, needs=needs)
    return made if made is not None and made.saves_bytes > needs // 100 else None


def _together(estimate: Estimate, found: list[TrainingChange]) -> Iterator[TrainingChange]:
    """The fewest of the best changes that fit together, where no single one does."""
    settings: dict[str, str] = {}
    for number, remedy in enumerate(found, 1):
        for setting in remedy.settings:
            settings.setdefault(setting.partition("=")[0], setting)
        if number > 1:
            title = ", ".join(one.title for one in found[:number])
            both = _worth(estimate, Candidate(title, tuple(settings.values())))
            if both is not None and both.fits:
                yield both
                return


def _adapter(estimate: Estimate) -> Iterator[TrainingChange]:
    """The last resort: an adapter on quantized weights, where that fits."""
    if estimate.resolved.run.adapter is None and estimate.resolved.run.new_tokens is None:
        settings = ("training.lora.r=16", "training.quantization=nf4")
        for more in ((), ("training.activation_checkpointing=full",)):
            cost = "trains an adapter, not the model"
            remedy = _worth(estimate, Candidate("QLoRA", (*settings, *more), cost))
            if remedy is not None and remedy.fits:
                yield remedy
                return


def advice_lines(estimate: Estimate, found: list[TrainingChange]) -> Iterator[Line]:
    """The remedies, each with its figure."""
    fitted = estimate.result.fits_on_gpu
    for index, remedy in enumerate(found):
        label = "next: " if index == 0 else "  or: "
        settings = " ".join(f"--set {setting}" for setting in remedy.settings)
        fits = "" if fitted else " and fits" if remedy.fits else " and still does not fit"
        tail = f"; {remedy.cost}" if remedy.cost else ""
        saves = f"saves {gib(remedy.saves_bytes)} GiB{fits}{tail}"
        if len(label) + len(settings) + 1 + len(saves) <= 80:
            yield [(label, "bold"), (settings, "cyan"), (f" {saves}", "")]
            continue
        for number, setting in enumerate(_folded(remedy.settings)):
            yield [(label if number == 0 else " " * 6, "bold"), (setting, "cyan")]
        yield from wrapped("      ", saves)


def _folded(settings: tuple[str, ...]) -> list[str]:
    """Settings in as few lines as they need."""
    rows: list[str] = []
    for setting in settings:
        text = f"--set {setting}"
        if rows and len(rows[-1]) + len(text) + 1 <= 74:
            rows[-1] += f" {text}"
        else:
            rows.append(text)
    return rows
