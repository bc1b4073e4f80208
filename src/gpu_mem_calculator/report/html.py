"""An estimate as one HTML file: no network, no script, light and dark, good on paper.

The verdict comes first, then the picture of a step, the parts, the numbers, and their sources. All
text from users is escaped.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import groupby
from string import Template

from ..advice.training.answers import TrainingAnswers
from ..advice.training.remedies import Remedy
from ..estimates.calculator import STEP, Estimate
from ..estimates.fit_verdict import FITS, SHORT, UNSURE, WORDS
from ..estimates.result import MemoryResult
from ..estimates.server_result import concurrent_users
from ..estimates.verdict_words import in_form, needs_words, result_verdict, undecided, verdict_words
from .course import MOST, course_columns
from .headline import loss_words, recompute_words, served_words, server_words
from .html_tables import (
    EstimatePage,
    breakdown_table,
    instants_table,
    ledger_details,
    numbers_list,
    opening_tag,
    phases_table,
    remarks_list,
    size,
    stages_table,
    text,
)
from .instants import InstantColumn, columns_of
from .lines import count, gib
from .longest_sequence import longest_sequence_words
from .patterns import defs, swatch, titles
from .picture import in_course, timeline
from .recipe_words import recipe_notes
from .remedy_lines import Commands, remedy_words

USUAL_CONTEXT = 8192  # tokens; shown beside a longer context of the run
TONES = {FITS: ("fits", "✓"), UNSURE: ("unsure", "?"), SHORT: ("fails", "✗")}
NARROW, WIDE = 360, 1000
NAMED = 10  # with at most this many instants, the wide picture has their names


def html_report(estimate: Estimate, more: str = "") -> str:
    """The report as one self-contained page; `more` has sections after the picture, as HTML."""
    from .. import __version__

    page = estimate_page(estimate)
    result = page.result
    model = text(estimate.resolved.model.title)
    fields = {
        "title": f"{model}: {gib(page.card_bytes, 2)} GiB, {WORDS[result.verdict]}",
        "tokens": asset("tokens.css"),
        "css": asset("page.css"),
        "patterns": defs(),
        "model": model,
        "eyebrow": _mode(estimate)[0],
        "course": "Inference" if estimate.serves else "The step",
        "setup": setup(estimate),
        "verdict": verdict(page),
        "picture": _picture(page),
        "more": more,
        "breakdown": breakdown_table(page),
        "stages": _stages(page),
        "phases": _phases(page),
        "numbers": numbers_list(page),
        "ledger": ledger_details(page),
        "remarks": remarks(estimate),
        "run": text(json.dumps(result.run, indent=2, ensure_ascii=False)),
        "command": "gpu-mem-calc calculate --config run.json --format html --output report.html",
        "version": __version__,
    }
    return Template(asset("page.html")).substitute(fields)


def estimate_page(estimate: Estimate, *, most: int = MOST, named: bool = True) -> EstimatePage:
    """The estimate with the columns of its picture: at most about `most` of a training step, with
    `named` tensors; else the instants of its ledger.
    """
    ledger = estimate.ledger
    instant = ledger.peak_instant(phases=STEP)
    columns = course_columns(estimate, most=most, named=named)
    if columns:
        peak = highest(columns)
    else:
        outside = [(name, size) for name, size, _ in estimate.outside_torch]
        instants = [i for i in ledger.instants if i.present]
        columns, peak = columns_of(ledger, instants, outside), instants.index(instant)
    return EstimatePage(estimate=estimate, columns=columns, peak=peak, instant=instant)


def highest(columns: Sequence[InstantColumn]) -> int:
    """The number of the highest column."""
    return max(range(len(columns)), key=lambda i: columns[i].bytes)


@cache
def asset(name: str) -> str:
    """The text of a file in this package."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def setup(estimate: Estimate) -> str:
    """A list of the model, the training or serving, the engine and the hardware."""
    run, hardware, result = estimate.resolved.run, estimate.resolved.hardware, estimate.result
    sizes = ", ".join(
        f"{axis} {ranks}"
        for axis in ("dp", "tp", "pp", "cp", "ep")
        if (ranks := getattr(run.mesh, axis)) > 1 and "n_gpu_layers" not in run.options
    )
    options = [f"{k} {v}" for k, v in result.run.get("engine", {}).items() if k != "type"]
    version = f" {run.options['engine_version']}" if estimate.served else ""
    engine = [estimate.resolved.engine.title + version, *([sizes] if sizes else []), *options]
    nodes = f" in {hardware.num_nodes} nodes" if hardware.num_nodes > 1 else ""
    trained = result.trainable_parameters
    whole = estimate.serves or trained == result.num_parameters
    share = "" if whole else f", {count(trained)} of them trained"
    _, mode, words = _mode(estimate)
    rows = {
        "Model": f"{count(result.num_parameters)} parameters{share}, {len(run.arch.layers)} layers",
        mode: ", ".join(words),
        "Engine": ", ".join(engine),
        "Hardware": f"{hardware.num_gpus:,} × {hardware.title}{nodes}",
    }
    items = "".join(f"<dt>{k}</dt><dd>{text(v)}</dd>" for k, v in rows.items())
    return f'<dl class="setup">{items}</dl>'


def _mode(estimate: Estimate) -> tuple[str, str, Iterator[str]]:
    """Training, inference or serving: what the report is of, the row's title, and its words."""
    if estimate.served:
        return "a server", "Serving", server_words(estimate)
    if estimate.serves:
        return "inference", "Inference", served_words(estimate.resolved.run)
    return "a training step", "Training", _training(estimate)


def _training(estimate: Estimate) -> Iterator[str]:
    run = estimate.resolved.run
    yield f"micro-batch {run.batch} × {run.seq:,} tokens"
    if run.micro_batches > 1:
        yield f"{run.micro_batches} micro-batches a step"
    yield run.precision.replace("_", " ")
    yield run.optimizer
    if run.adapter is not None:
        yield f"LoRA r={run.adapter.rank} on {', '.join(sorted(run.adapter.targets))}"
    if run.quantization:
        yield f"{run.quantization} base"
    yield from recompute_words(run)
    yield from loss_words(run)
    yield f"{run.attention.replace('_', ' ')} attention"


def users_words(users: int, context: int) -> str:
    """Whole users at a context."""
    number = f"{users:,}" if users else "no"
    return f"{number} user{'s' * (users != 1)} at {context:,} tokens"


def users_notes(estimate: Estimate) -> Iterator[str]:
    """The users at a usual context, where that of the run is longer; the tokens of the cache."""
    serving = estimate.result.serving
    if serving is None or serving.problem or not serving.kv_tokens:
        return
    if serving.users_context > USUAL_CONTEXT:
        users = concurrent_users(estimate.served, USUAL_CONTEXT, serving.replicas)
        yield f"{users_words(users, USUAL_CONTEXT).capitalize()}."
    yield f"The KV cache holds {serving.kv_tokens:,} tokens."


def verdict_parts(estimate: Estimate) -> tuple[str, str, str]:
    """The verdict: CSS class, sign and words."""
    result, serving = estimate.result, estimate.result.serving
    if serving is None:
        return (*TONES[result.verdict], verdict_words(result_verdict(estimate.result)))
    words = WORDS[result.verdict]
    if serving.problem:
        words = f"{words}: {serving.problem}"
    elif serving.kv_tokens:
        words = f"{words}: {users_words(serving.users, serving.users_context)}"
    return (*TONES[result.verdict], words)


def verdict(page: EstimatePage, *, live: bool = False, pending: bool = False) -> str:
    """The verdict box. live: without links; pending: the replay is still running."""
    result = page.result
    limit, card = result.gpu_memory_bytes, page.card_bytes
    found = result_verdict(page.estimate.result)
    tone, sign, words = verdict_parts(page.estimate)
    waits = pending and result.verdict == UNSURE
    if waits:
        tone, sign, words = "about", "…", "checking whether it fits"
    notes = [] if waits else [f"{result.memory_utilization_percent:,.0f} % of the card."]
    where = "" if page.estimate.serves else " of a step"
    notes.append(f"Highest instant{where}: {text(page.instant.title)}.")
    notes.extend(_why_not(result))
    opened = [] if waits else undecided(result)
    notes.extend(f"Open: {text(in_form(one) if live else one)}." for one in opened)
    notes.extend(users_notes(page.estimate))
    if result.needs_bytes is None and pending:
        notes.append('<span class="pending">Torch’s allocator is being replayed …</span>')
    if result.warnings and not live:
        what = "warnings" if result.serving is None else "notes"
        notes.append(f'<a href="#h-assumed">See the {what}.</a>')
    takes = "needs" if result.serving is None else "takes"
    if result.serving:
        figures = f"<strong>{size(card)}</strong> of {size(limit)}"
    else:
        figures = f"<strong>{needs_words(found)}</strong> of {gib(limit)}"
    lines = [
        f'<p class="needs">{takes} {figures} GiB per GPU</p>',
        f'<p class="says">{sign} {text(words)}</p>',
    ]
    assumed = ", ".join(result.decisive)
    assumed = f'<p class="assumed">assumed: {text(assumed)}</p>' if assumed else ""
    lead = lines if result.serving is None else lines[::-1]
    return (
        f'<div class="verdict {tone}"><div class="line">{"".join(lead)}</div>{assumed}'
        f"{_gauge(card, limit, found.most)}"
        f'<p class="small">{" ".join(notes)}</p></div>'
    )


def _why_not(result: MemoryResult) -> Iterator[str]:
    """Why a run does not fit though the picture stays below the limit."""
    beyond = (result.needs_bytes or 0) - result.allocated_bytes
    if result.verdict == SHORT and result.serving is None and beyond > 0:
        tensors = result.allocated_bytes + result.outside_torch_bytes
        also = "The tensors alone fit; torch" if tensors <= result.gpu_memory_bytes else "Torch"
        yield f"{also}’s allocator needs {gib(beyond)} GiB beyond the tensors."


def _gauge(card: int, limit: int, most: int | None) -> str:
    """A bar of the share of the card that is taken, with a mark at the limit if it is exceeded.
    `most`: bytes up to which it may be taken, drawn paler.
    """
    share = min(100, 100 * card / limit)
    bar = f'<rect class="taken" width="{share:.2f}%" height="100%"/>'
    if most is not None and card <= limit:
        bar = (
            f'<rect class="maybe" width="{min(100, 100 * most / limit):.2f}%" height="100%"/>{bar}'
        )
    if card > limit:
        bar += f'<rect class="mark" x="{100 * limit / card:.2f}%" width="3" height="100%"/>'
    return f'<svg class="gauge" aria-hidden="true">{bar}</svg>'


def _picture(page: EstimatePage) -> str:
    """The picture of the step for wide and for narrow screens, its legend, and a table."""
    limit = page.result.gpu_memory_bytes
    phases = page.result.phases
    wide = timeline(page.columns, page.peak, limit, width=WIDE, name="wide", phases=phases)
    narrow = timeline(page.columns, page.peak, limit, width=NARROW, name="narrow", phases=phases)
    kind = "key only-narrow" if len(page.columns) <= NAMED else "key"
    key = "" if in_course(page.columns) else f'<ul class="{kind}">{"".join(key_rows(page))}</ul>'
    return (
        f'<figure><div class="wide">{wide}</div><div class="narrow">{narrow}</div>'
        f"{legend(page)}{key}</figure>"
        f"<details><summary>The same as a table</summary>{instants_table(page)}</details>"
    )


def legend(page: EstimatePage) -> str:
    """The legend of the colours and patterns."""
    kinds = titles(page.estimate.ledger)
    items = "".join(f"<li>{swatch(kind)}{title}</li>" for kind, title in kinds.items())
    return f'<ul class="legend">{items}<li><span class="dash"></span>the card’s limit</li></ul>'


def key_rows(page: EstimatePage) -> Iterator[str]:
    """The titles of the numbered columns; three or more of a kind in a row share a line."""
    numbered = list(enumerate(page.columns, 1))
    for head, group in groupby(numbered, key=lambda one: one[1].title.partition(":")[0]):
        rows = list(group)
        if len(rows) < 3:
            lines = [(str(i), one.title, size(one.bytes), i - 1 == page.peak) for i, one in rows]
        else:
            low, high = (gib(end(one.bytes for _, one in rows), 2) for end in (min, max))
            first, last = rows[0][0], rows[-1][0]
            most = first - 1 <= page.peak < last
            lines = [(f"{first}–{last}", head, f"{low}–{high}", most)]
        for number, title, shown, most in lines:
            yield (
                f"{opening_tag('li', 'at-peak', most)}<span>{number}</span>"
                f"<span>{text(title)}</span><span>{shown}</span></li>"
            )


def _stages(page: EstimatePage) -> str:
    """The section on pipeline stages; empty where there is one stage."""
    if len(page.result.stages) < 2:
        return ""
    return (
        f'<section aria-labelledby="h-stages"><h2 id="h-stages">Pipeline stages</h2>'
        f"{stages_table(page)}</section>"
    )


def _phases(page: EstimatePage) -> str:
    """The section on the phases of a run's life; empty for a run that has none."""
    if not page.result.phases:
        return ""
    head = '<h2 id="h-phases">From loading to saving</h2>'
    return f'<section aria-labelledby="h-phases">{head}{phases_table(page)}</section>'


def _recipe(estimate: Estimate) -> Sequence[str]:
    """Whose recipe a run of adapters is, and what other tools need; not of a command that was read,
    which says whose it is.
    """
    if estimate.serves or "program" in estimate.result.run:
        return ()
    return [one for one in recipe_notes(estimate) if one not in estimate.result.warnings]


def remarks(estimate: Estimate, *, pending: bool = False) -> str:
    """Warnings, whose recipe it is, and assumptions; `pending`: what takes longer follows."""
    result, notes = estimate.result, () if pending else _recipe(estimate)
    what = "Warning" if result.serving is None else "Note"
    warnings = "".join(f'<p class="warning">{what}: {text(one)}</p>' for one in result.warnings)
    said = "".join(f"<p>{text(one[:1].upper() + one[1:])}.</p>" for one in notes)
    assumed = remarks_list(result.assumed)
    listed = f"<p>Assumed, as the run file does not say:</p>{assumed}"
    none = "<p>No warnings, and nothing is assumed but each framework’s own defaults.</p>"
    return (warnings + said + (listed if assumed else "")) or none


def remedies_section(
    estimate: Estimate, answers: TrainingAnswers, commands: Commands | None = None
) -> str:
    """What makes the run fit, with a command for each; empty where nothing is to be said."""
    rows = commands.remedies if commands else [_file_words(one) for one in answers.remedies]
    items = "".join(
        f"<li><p>{text(remedy_words(remedy))}</p>"
        f"<pre><code>{text(shlex.join(['gpu-mem-calc', *words]))}</code></pre></li>"
        for remedy, words in zip(answers.remedies, rows, strict=True)
    )
    longest = longest_sequence_words(estimate, answers.longest_sequence)
    said = f"<p>{text(longest[:1].upper() + longest[1:])}.</p>" if longest else ""
    listed = f'<p>It fits with one of these:</p><ul class="remarks">{items}</ul>' if items else ""
    if not said and not listed:
        return ""
    head = "What makes it fit" if items else "Longest sequence"
    return (
        f'<section aria-labelledby="h-remedies"><h2 id="h-remedies">{head}</h2>'
        f"{said}{listed}</section>"
    )


def _file_words(remedy: Remedy) -> Sequence[str]:
    """The command for the run file that the report shows."""
    settings = (word for one in remedy.settings for word in ("--set", one))
    return ["calculate", "--config", "run.json", *settings]
