"""Remedies for a run that does not fit: each is the estimate of the run with a change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..core.calculator import Estimate
from ..core.change_candidates import Candidate, savings
from ..core.fit_verdict import FITS, TIGHT
from ..core.run_changes import TrainingChange, ledger_bytes, replayed_change, try_change
from .lines import Line, gib, wrap_lines

MOST = 3  # remedies shown


def remedies(estimate: Estimate) -> list[TrainingChange]:
    """Up to three changes that save memory, where the run does not fit or is tight.

    If some make it fit, only those, the cheapest in speed first; else the ones that save most. The
    candidates are compared by the ledger, and those that are shown are replayed.
    """
    if estimate.result.verdict == FITS:
        return []
    tried = [_try_worthwhile(estimate, candidate) for candidate in savings(estimate)]
    saving = [remedy for remedy in tried if remedy is not None]
    fitting_by_ledger = (remedy for remedy in saving if remedy.fits)
    fitting = _replay_first(estimate, fitting_by_ledger, only_fitting=True)
    if fitting:
        return fitting
    most = sorted(saving, key=lambda remedy: -remedy.saves_bytes)
    return _replay_first(estimate, (*_combination(estimate, most), *_adapter(estimate), *most))


def _replay_first(
    estimate: Estimate, changes: Iterable[TrainingChange], *, only_fitting: bool = False
) -> list[TrainingChange]:
    """The first three changes with the verdict of a replay."""
    shown: list[TrainingChange] = []
    for remedy in changes:
        if len(shown) == MOST:
            break
        replayed = replayed_change(estimate, remedy)
        if replayed.fits or not only_fitting:
            shown.append(replayed)
    return shown


def _try_worthwhile(estimate: Estimate, candidate: Candidate) -> TrainingChange | None:
    """The change that a candidate makes; None where it is refused or saves less than 1 %."""
    change = try_change(estimate, candidate)
    worthwhile = ledger_bytes(estimate) // 100
    return change if change is not None and change.saves_bytes > worthwhile else None


def _combination(estimate: Estimate, best: list[TrainingChange]) -> Iterator[TrainingChange]:
    """The fewest of the best changes that together make the run fit."""
    settings: dict[str, str] = {}
    for number, remedy in enumerate(best, 1):
        for setting in remedy.settings:
            settings.setdefault(setting.partition("=")[0], setting)
        if number > 1:
            title = ", ".join(one.title for one in best[:number])
            combined = _try_worthwhile(estimate, Candidate(title, tuple(settings.values())))
            if combined is not None and combined.fits:
                yield combined
                return


def _adapter(estimate: Estimate) -> Iterator[TrainingChange]:
    """The last resort, where it fits: an adapter on quantized weights."""
    if estimate.resolved.run.adapter is None and estimate.resolved.run.new_tokens is None:
        settings = ("training.lora.r=16", "training.quantization=nf4")
        for more in ((), ("training.activation_checkpointing=full",)):
            cost = "trains an adapter, not the model"
            remedy = _try_worthwhile(estimate, Candidate("QLoRA", (*settings, *more), cost))
            if remedy is not None and remedy.fits:
                yield remedy
                return


def advice_lines(estimate: Estimate, changes: list[TrainingChange]) -> Iterator[Line]:
    """The lines of the report for the remedies: settings, and what they save."""
    fitted = estimate.result.fits_on_gpu
    for index, remedy in enumerate(changes):
        label = "next: " if index == 0 else "  or: "
        settings = " ".join(f"--set {setting}" for setting in remedy.settings)
        still = " and still is tight" if remedy.verdict == TIGHT else " and still does not fit"
        fits = "" if fitted else " and fits" if remedy.fits else still
        tail = f"; {remedy.cost}" if remedy.cost else ""
        saves = f"saves {gib(remedy.saves_bytes)} GiB{fits}{tail}"
        if len(label) + len(settings) + 1 + len(saves) <= 80:
            yield [(label, "bold"), (settings, "cyan"), (f" {saves}", "")]
            continue
        for number, setting in enumerate(_setting_rows(remedy.settings)):
            yield [(label if number == 0 else " " * 6, "bold"), (setting, "cyan")]
        yield from wrap_lines("      ", saves)


def _setting_rows(settings: tuple[str, ...]) -> list[str]:
    """The settings as `--set` options, in as few rows as possible."""
    rows: list[str] = []
    for setting in settings:
        text = f"--set {setting}"
        if rows and len(rows[-1]) + len(text) + 1 <= 74:
            rows[-1] += f" {text}"
        else:
            rows.append(text)
    return rows
