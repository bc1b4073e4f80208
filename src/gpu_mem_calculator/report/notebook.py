"""Answers in a notebook: HTML without scripts, ids and addresses of others, and pictures as SVG.

An output brings its styles, and takes a few kB with them. Its colours follow the theme of Jupyter,
VS Code or Colab, else that of the browser; a page that takes its styles away shows the tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..advice.diagnosis.diagnosis import Advice, Diagnosis
from ..advice.planner.answers.plans import Plan, Plans
from ..estimates.checked import Checked
from ..estimates.fit_verdict import UNSURE, WORDS
from ..estimates.result import MemoryResult, more_words, part_rows
from ..estimates.sweep import Sweep
from ..estimates.verdict_words import total_bytes, verdict_line
from ..lab.module_memory import MemoryEstimate
from ..ledger.ledger import ACT, CACHE, GRAD, OPTIM, PARAM, RUNTIME
from ..ledger.units import GIB
from .backtest_picture import SHAPES
from .diagnosis import STYLES, figure, unknown_words
from .html import TONES, asset
from .html_tables import num_cells, remarks_list, size, table, text
from .instants import InstantColumn, KindSlice
from .lines import BAD, count, gib
from .patterns import TITLES
from .picture import drawing
from .plan.figures import plan_columns
from .plan.page import figures
from .plan.scatter import HEIGHT as SCATTER_HEIGHT
from .plan.scatter import WIDTH as SCATTER_WIDTH
from .plan.scatter import engines_of, scatter_lines
from .plan.text import space_words
from .plan.words import change_words, question_words, setup_words, setups_apart
from .reading import read_words
from .standalone import THEMES, tokens
from .svg import CHARACTER

TRAINED, SERVED = (PARAM, GRAD, OPTIM, ACT, RUNTIME), (PARAM, CACHE, ACT)
WIDTH, HEIGHT = 680, 120  # pixels of the small picture, and of its plot
WIDE, HIGH = 720, 260  # of one that is asked for
MOST_PLANS, MOST_ROWS = 10, 40
MOST_SHOWN = 120  # characters of a problem
# The rules of pictures in the page's styles; what is for its mouse and its layout is left out.
RULES = re.compile(r"^\.(step|front|k-|e-)(?:(?<=-)|(?= [.t])).*$", re.MULTILINE)
ANSWERS = re.compile(r":(hover|focus|not)|aria-|pointer;")
VARIABLE = re.compile(r"var\(--([\w-]+)\)")


class Picture(Struct, frozen=True):
    """A picture: lines of SVG in pixels, the class of its styles, and what it shows in words."""

    lines: list[str]
    width: int
    height: int
    kind: str
    words: str

    def __repr__(self) -> str:
        """What it shows, for a console."""
        return f"Picture({self.words!r})"

    def _repr_html_(self) -> str:
        """The picture in a notebook."""
        return box(self.svg())

    def svg(self, style: str = "") -> str:
        """The picture as SVG; without `style` it takes its colours from where it is shown."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="{self.kind}" role="img" '
            f'viewBox="0 0 {self.width} {self.height}" aria-label="{text(self.words)}">'
            f"{style}{''.join(self.lines)}</svg>"
        )

    def save(self, path: str | Path, theme: str = "light") -> None:
        """Write an SVG file in the colours of a theme, `light` or `dark`."""
        if Path(path).suffix.lower() not in ("", ".svg"):
            name = Path(path).with_suffix(".svg").name
            raise ValueError(f"{str(path)!r} is not the name of an SVG file; use {name!r}")
        if theme not in THEMES:
            raise ValueError(f"theme={theme!r} must be one of {', '.join(THEMES)}")
        values = tokens(theme)
        css = VARIABLE.sub(
            lambda found: values.get(found[1], found[0]), f"{picture_rules(self.svg())}\n{PAPER}"
        )
        Path(path).write_text(self.svg(f"<style>{css}</style>"), encoding="utf-8")


PAPER = "svg { background: var(--paper); font-family: var(--font); }"


def html_of(answer: Any) -> str:
    """The view of an answer."""
    views: dict[type, Callable[[Any], Iterable[str]]] = {
        MemoryResult: _result,
        Plans: _plans,
        Plan: _plan,
        Diagnosis: _diagnosis,
        Checked: _checked,
        Sweep: _sweep,
        MemoryEstimate: _module,
    }
    return box("".join(views[type(answer)](answer)))


def picture_of(answer: Any) -> Picture:
    """The picture of an answer."""
    return plans_picture(answer) if isinstance(answer, Plans) else step_picture(answer)


def box(inner: str) -> str:
    """HTML with the styles that it needs; their colours end the block that the file leaves open."""
    css = asset("notebook.css") + picture_rules(inner)
    named = (name for name in dict.fromkeys(VARIABLE.findall(css)) if name in _colours())
    used = " ".join(f"--{name}: {_colours()[name]};" for name in named)
    return f'<div class="gpu-mem"><style>{css}\n{used} }}</style>{inner}</div>'


def picture_rules(inner: str) -> str:
    """The rules of the page's styles for the pictures in a text; a notebook's do not answer."""
    rules = RULES.finditer(asset("page.css") + asset("plans.css"))
    used = (one[0] for one in rules if one[1] in inner and not ANSWERS.search(one[0]))
    return "\n".join(used)


@cache
def _colours() -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+):\s*([^;]+);", asset("tokens.css")))


def _result(result: MemoryResult) -> Iterator[str]:
    tone, sign = TONES[result.verdict]
    parameters = f"{count(result.num_parameters)} parameters"
    yield f'<p class="soft">{text(result.subject)}, {parameters}</p>'
    yield f'<p class="says {tone}">{sign} {text(verdict_line(result))}</p>'
    rows = _rows(result)
    yield _bar(rows, result.gpu_memory_bytes)
    yield step_picture(result, small=True).svg()
    yield _parts(rows)
    yield f'<p class="soft">{text("; ".join(more_words(result)))}</p>'
    remarks = [*result.warnings, *map(str, result.limits), *result.assumed]
    if remarks:
        many = "1 remark" if len(remarks) == 1 else f"{len(remarks)} remarks"
        yield f"<details><summary>{many}: warnings, what is open, what is assumed</summary>"
        yield f"{remarks_list(remarks)}</details>"


def _rows(result: MemoryResult) -> list[tuple[str, str, int]]:
    """Kind, name and bytes of each part of the total."""
    kinds = TRAINED if result.serving is None else SERVED
    rows = [(kind, *row) for kind, row in zip(kinds, part_rows(result), strict=True)]
    rest = total_bytes(result) - sum(row[2] for row in rows)
    return [*rows, (RUNTIME, "overhead", rest)] if result.serving is not None else rows


def _bar(rows: Iterable[tuple[str, str, int]], limit: int) -> str:
    """The parts side by side on the card, with a mark where it ends."""
    rows = list(rows)
    whole, start, drawn = max(limit, sum(row[2] for row in rows)), 0, ""
    for kind, _, num_bytes in rows:
        left, width = 100 * start / whole, 100 * num_bytes / whole
        drawn += f'<rect class="k-{kind}" x="{left:.2f}%" width="{width:.2f}%" height="14"/>'
        start += num_bytes
    if start > limit:
        drawn += f'<rect class="mark" x="{100 * limit / whole:.2f}%" width="3" height="14"/>'
    says = f"{100 * start / limit:.0f} % of the card"
    return f'<svg class="bar" role="img" aria-label="{says}">{drawn}</svg>'


def _parts(rows: list[tuple[str, str, int]]) -> str:
    whole = sum(row[2] for row in rows)
    body = [
        f'<tr><th scope="row">{_swatch(kind)}{name}</th>'
        f"{num_cells(size(num_bytes), f'{100 * num_bytes / whole:.0f} %')}</tr>"
        for kind, name, num_bytes in rows
    ]
    foot = f'<tr><th scope="row">per GPU</th>{num_cells(size(whole), "100 %")}</tr>'
    return table("at the peak", ["part", "#GiB", "#share"], body, foot)


def _swatch(kind: str) -> str:
    rect = f'<rect class="k-{kind}" width="11" height="11"/>'
    return f'<svg class="swatch" aria-hidden="true">{rect}</svg>'


def step_picture(result: MemoryResult, *, small: bool = False) -> Picture:
    """The memory of one GPU over time; a small one has the parts of the table as colours, another
    every kind, with its legend, and the figures of an instant where the mouse is.
    """
    kinds = [kind for kind, _, _ in _rows(result)] if small else list(TITLES)
    columns = [_column(one, kinds, result.outside_torch_bytes) for one in result.timeline]
    titles = [one.title for one in columns]
    highest = max(range(len(columns)), key=lambda i: columns[i].bytes)
    peak = titles.index(result.peak_instant) if result.peak_instant in titles else highest
    width, height = (WIDTH, HEIGHT) if small else (WIDE, HIGH)
    drawn = drawing(columns, peak, result.gpu_memory_bytes, width=width, height=height, joined=True)
    words = f"Memory of one GPU over time. {drawn.words}"
    if small:
        lines = [one for one in drawn.lines if not one.startswith('<text class="number')]
        return Picture(lines, width, round(drawn.height), "step", words)
    legend = _legend([one.kind for one in _present(columns)], drawn.height + 18)
    lines = [*drawn.lines, *_notes(columns, drawn.place), *legend]
    return Picture(lines, width, round(drawn.height) + 30, "step", words)


def _column(row: Mapping[str, Any], kinds: list[str], outside: int) -> InstantColumn:
    """An instant of a result; bytes of kinds that are not shown count as runtime."""
    sizes = dict.fromkeys(kinds, 0) | {RUNTIME: outside}
    for kind, num_bytes in row["bytes"].items():
        sizes[kind if kind in sizes else RUNTIME] += num_bytes
    slices = tuple(KindSlice(kind, sizes[kind], ()) for kind in sizes)
    return InstantColumn(row["title"] or row["instant"], row["phase"], slices)


def _present(columns: list[InstantColumn]) -> list[KindSlice]:
    """The slices of kinds that take something at some instant."""
    every = zip(*(one.slices for one in columns), strict=True)
    return [parts[0] for parts in every if any(part.bytes for part in parts)]


def _notes(columns: list[InstantColumn], place: Any) -> Iterator[str]:
    """A rectangle over each column, whose tooltip has its figures."""
    for i, one in enumerate(columns):
        rows = [
            f"{TITLES[part.kind]}: {part.bytes / GIB:,.2f}" for part in one.slices if part.bytes
        ]
        says = escape("\n".join([f"{one.title}: {one.bytes / GIB:,.2f} GiB", *rows]))
        x, width = place.left + i * place.step, place.step
        yield (
            f'<rect class="hit" x="{x:.1f}" y="{place.top}" width="{width:.1f}" '
            f'height="{place.height}"><title>{says}</title></rect>'
        )


def _legend(kinds: Iterable[str], y: float) -> Iterator[str]:
    x = 52.0
    for kind in kinds:
        yield f'<rect class="k-{kind}" x="{x:.0f}" y="{y - 10:g}" width="11" height="11"/>'
        yield f'<text x="{x + 17:.0f}" y="{y:g}">{TITLES[kind]}</text>'
        x += 36 + len(TITLES[kind]) * 12 * CHARACTER


def _plans(plans: Plans) -> Iterator[str]:
    yield f'<p class="soft">{text(question_words(plans))}</p>'
    best = next((one for one in plans.plans if one.fits_on_gpu), None)
    if best is None:
        yield '<p class="says fails">✗ no set-up fits</p>'
        yield remarks_list(
            f"it would fit with {change_words(one.change)}" for one in plans.if_nothing_fits
        )
    else:
        yield f'<p class="says fits">✓ {text(", ".join(setup_words(best)))}</p>'
        yield remarks_list(best.why)
    if plans.plans:
        shown = plans.plans[:MOST_PLANS]
        columns, words = plan_columns(shown), setups_apart(shown)
        rows = (
            f'<tr>{num_cells(one.rank)}<th scope="row">{text(", ".join(said))}</th>'
            f"{num_cells(*(column.text(one) for column in columns))}</tr>"
            for one, said in zip(shown, words, strict=True)
        )
        rest = len(plans.plans) - len(shown)
        more = f"; {rest} more are in .plans" if rest else ""
        heads = ["#no.", "set-up", *(f"#{one.head}" for one in columns)]
        yield table(f"plans, best first{more}", heads, rows)
    yield f'<p class="soft">{text(space_words(plans))}</p>{remarks_list(plans.limits)}'


def _plan(plan: Plan) -> Iterator[str]:
    tone = "fits" if plan.fits_on_gpu else "fails"
    yield f'<p class="says {tone}">{plan.rank}. {text(", ".join(setup_words(plan)))}</p>'
    rows = (f'<tr><th scope="row">{k}</th><td>{text(v)}</td></tr>' for k, v in figures(plan))
    yield f"{table('figures', [], rows)}{remarks_list([*plan.why, *plan.open])}"
    run = text(json.dumps(plan.run, indent=2, ensure_ascii=False))
    yield f"<details><summary>run file</summary><pre><code>{run}</code></pre></details>"


def plans_picture(plans: Plans) -> Picture:
    """Memory against time of plans, or latency against throughput of servers."""
    if not plans.plans:
        raise ValueError("there is no plan to draw: no set-up fits")
    words = f"{len(plans.plans)} plans: {question_words(plans)}"
    lines, named = scatter_lines(plans, still=True), engines_of(plans)
    for row, name in enumerate(named):
        number, y = row % len(SHAPES), SCATTER_HEIGHT + 14 + 18 * row
        mark = f'<path transform="scale(1.3)" d="{SHAPES[number]}"/>'
        lines.append(
            f'<g class="point on-front e-{number}" transform="translate(58 {y - 4})">{mark}</g>'
            f'<text x="70" y="{y}">{text(name)}</text>'
        )
    height = SCATTER_HEIGHT + 18 * len(named) + 6
    return Picture(lines, SCATTER_WIDTH, height, "front", words)


def _module(found: MemoryEstimate) -> Iterator[str]:
    named = [
        (PARAM, "parameters", found.parameter_bytes),
        (GRAD, "gradients", found.gradient_bytes),
        (OPTIM, "optimizer states", found.optimizer_bytes),
        (ACT, "activations", found.activation_bytes),
    ]
    rest = found.allocated_bytes - sum(row[2] for row in named)
    rows = [*named, (RUNTIME, "overhead", rest)]
    needs = f"torch needs {gib(found.needs_bytes, 2)} GiB"
    yield f'<p class="says">{needs}, {gib(found.margin_bytes, 2)} more to be certain</p>'
    yield f'<p class="soft">highest in {text(found.peak_phase)}, on {text(found.gpu)}</p>'
    yield f"{_bar(rows, found.allocated_bytes)}{_parts(rows)}{remarks_list(found.notes)}"


def _checked(found: Checked) -> Iterator[str]:
    name = found.reading.name
    yield f'<p class="soft">{text(name)}</p>' if name else ""
    if found.result is not None:
        yield from _result(found.result)
    for problem in found.problems:
        yield f'<p class="says unsure">? {WORDS[UNSURE]}: {text(problem)}</p>'
    yield remarks_list(found.busy)
    yield f'<p class="soft">{text(read_words(found.reading))}</p>'


def _sweep(rows: Sweep) -> Iterator[str]:
    body = (
        f"<tr>{''.join(f'<td>{text(row[key])}</td>' for key in rows.axes)}{_outcome(row)}</tr>"
        for row in rows[:MOST_ROWS]
    )
    rest = len(rows) - MOST_ROWS
    more = f"; the first {MOST_ROWS}, {rest:,} more are in the list" if rest > 0 else ""
    heads = [*map(text, rows.axes), "verdict", "#GiB", "highest at"]
    yield table(f"{len(rows):,} runs, GiB per GPU{more}", heads, body)


def _outcome(row: Mapping[str, Any]) -> str:
    if row["verdict"] is None:
        problem = row["problem"]
        short = problem if len(problem) <= MOST_SHOWN else f"{problem[:MOST_SHOWN]}…"
        return f'<td class="unsure" colspan="3">{text(short)}</td>'
    tone, sign = TONES[row["verdict"]]
    verdict = f'<td class="{tone}">{sign} {WORDS[row["verdict"]]}</td>'
    return f"{verdict}{num_cells(size(row['total_bytes']))}<td>{text(row['peak_instant'])}</td>"


def _diagnosis(found: Diagnosis) -> Iterator[str]:
    cause = found.cause
    if cause is None:
        yield f'<p class="says unsure">? {text(unknown_words(found))}</p>'
    else:
        tone = "fails" if STYLES.get(cause.certainty) == BAD else "unsure"
        yield f'<p class="says {tone}">{text(cause.certainty)}: {text(cause.sentence)}</p>'
        where = "; for ".join(filter(None, (cause.phase, cause.tensor)))
        yield f'<p class="soft">it died in {text(where)}</p>' if where else ""
    yield remarks_list(f"or, {one.certainty}: {one.sentence}" for one in found.others)
    yield _headed("evidence", remarks_list(found.evidence))
    yield _printed(found)
    remedies = "".join(map(_remedy, found.remedies))
    yield _headed("what helps, the cheapest first", f"<ol>{remedies}</ol>" if remedies else "")
    yield f"<p>{text(found.question)}</p>" if found.question else ""
    yield remarks_list(found.notes)
    yield f'<p class="soft">to paste: <code>{text(found.summary)}</code></p>'


def _headed(head: str, body: str) -> str:
    return f'<p class="soft">{head}</p>{body}' if body else ""


def _remedy(one: Advice) -> str:
    fits = ' <span class="fits">fits, by an estimate</span>' if one.fits else ""
    command = f"<br/><code>{text(one.command)}</code>" if one.command else ""
    return f"<li>{text(one.sentence)}{fits}{command}</li>"


def _printed(found: Diagnosis) -> str:
    """What was printed beside the estimate, where there is one."""
    if all(one.estimated is None for one in found.parts):
        return ""
    rows = (
        f'<tr><th scope="row">{text(" ".join(filter(None, (one.name, one.where))))}</th>'
        f"{num_cells(*(figure(value, one.unit) for value in (one.printed, one.estimated)))}"
        f'<td class="fails">{"differs" if one.beyond else ""}</td></tr>'
        for one in found.parts
    )
    return table("part by part", ["part", "#printed", "#estimated", ""], rows)
