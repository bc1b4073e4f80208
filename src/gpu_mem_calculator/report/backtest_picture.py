"""Predicted against measured as one SVG file: no network, no script, light and dark.

The left panel has every run on two equal logarithmic axes; on the diagonal the prediction is exact.
The right panel has the errors of the same runs, so that small errors can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from msgspec import Struct

from ..lab.backtest.score import DANGEROUS_PCT, BacktestReport
from ..ledger.units import GIB
from ..runfile.text.errors import InputError
from ..tools.translation.arguments import tables
from .backtest import RUNGS, TITLES, UNITS, main_metric
from .html import asset
from .lines import count
from .svg import CHARACTER, round_step, round_values, svg_text

WIDTH, PANEL, TOP, NUM_LABELS = 1000, 400.0, 138.0, 5
BAND_PCT = -DANGEROUS_PCT
STRAIGHT_PCT = 20  # with larger errors the axis is nearly logarithmic, so that small ones show
_TABLES = tables(__file__)
# Groups also differ in shape, not in colour alone.
COLOURS, SHAPES = _TABLES["colours"], _TABLES["shapes"]


class PlotPoint(Struct, frozen=True):
    """One run: predicted and measured in GiB or tokens, its error in percent."""

    id: str
    group: str
    predicted: float
    measured: float
    error: float


Points = Sequence[PlotPoint]
Marks = dict[str, int]  # the number of each group's mark


class PlotPanel(Struct, frozen=True, kw_only=True):
    """A panel: its position in the picture, and its axes; `low` and `high` bound both log axes."""

    left: float
    low: float
    high: float
    most: float  # percent at the top of the right panel
    unit: str

    @property
    def bottom(self) -> float:
        """The y coordinate of the lower edge."""
        return TOP + PANEL

    def along(self, value: float) -> float:
        """The position of a value on the logarithmic axis, from 0 to 1."""
        return math.log(value / self.low) / math.log(self.high / self.low)

    def x(self, value: float) -> float:
        """The x coordinate of a measured value."""
        return self.left + PANEL * self.along(value)

    def y(self, value: float) -> float:
        """The y coordinate of a predicted value."""
        return self.bottom - PANEL * self.along(value)

    def at(self, error: float) -> float:
        """The y coordinate of an error; beyond 20 % the axis is nearly logarithmic."""
        share = error / self.most
        if self.most > STRAIGHT_PCT:
            share = math.asinh(error / BAND_PCT) / math.asinh(self.most / BAND_PCT)
        return TOP + PANEL / 2 - PANEL / 2 * share


def picture(report: BacktestReport, where: str) -> str:
    """The picture of the main metric as SVG; raises InputError where no run was predicted."""
    metric = main_metric(report)
    points = [] if metric is None else list(_points(report, metric))
    if metric is None or not points:
        raise InputError("--picture: no run was predicted, so there is nothing to draw")
    marks = {group: i for i, group in enumerate(dict.fromkeys(p.group for p in points))}
    errors = report.summary(metric)
    worst = max(points, key=lambda p: abs(p.error))
    values = [v for p in points for v in (p.predicted, p.measured)]
    low, high = min(values) / 1.25, max(values) * 1.25
    unit = UNITS.get(metric, "GiB")
    most = max(1.2 * abs(worst.error), 0.5)
    left = PlotPanel(left=64, low=low, high=high, most=most, unit=unit)
    right = PlotPanel(left=WIDTH - PANEL - 24, low=low, high=high, most=most, unit=unit)
    rung = RUNGS.get(report.rung, report.rung)
    lead = (
        f"{len(points)} measured runs ({where}) against {rung}: mean error "
        f"{errors.mean_abs_pct:.2f} %, worst {worst.error:+.2f} %"
    )
    what = "seconds" if metric == "step" else "memory"
    title = f"Predicted and measured {what}: {TITLES[metric]}"
    return "\n".join(
        [
            f'<svg class="score" viewBox="0 0 {WIDTH} {left.bottom + 56:g}" role="img" '
            'aria-labelledby="score-title score-desc" xmlns="http://www.w3.org/2000/svg">',
            f'<title id="score-title">{escape(title)}</title>',
            f'<desc id="score-desc">{escape(lead)}</desc>',
            f"<style>{asset('backtest_picture.css').strip()}</style>",
            '<rect class="paper" width="100%" height="100%"/>',
            svg_text(16, 32, escape(title), kind="title"),
            svg_text(16, 54, escape(lead), kind="lead"),
            *_legend(marks),
            *_sizes(points, marks, left),
            *_errors(points, marks, right),
            "</svg>",
        ]
    )


def page(drawn: str) -> str:
    """An HTML page with the picture."""
    style = (
        "body{margin:0 auto;max-width:75rem;padding:1rem;background:#fff}"
        "@media screen and (prefers-color-scheme:dark){body{background:#14171c}}"
        "svg{display:block;width:100%;height:auto}"
    )
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width">'
        f"<title>Predicted and measured memory</title><style>{style}</style>"
        f"<body>\n{drawn}\n</body></html>"
    )


def _points(report: BacktestReport, metric: str) -> Iterator[PlotPoint]:
    """The runs that can be drawn on a logarithmic axis: those above 0."""
    unit = 1 if metric in UNITS else GIB
    for row in report.rows:
        one = row.metrics.get(metric)
        if one is not None and one.predicted > 0 and one.error_pct is not None:
            predicted, measured = one.predicted / unit, one.measured / unit
            yield PlotPoint(row.id, row.group, predicted, measured, one.error_pct)


def _mark(index: int, x: float, y: float, note: str = "") -> str:
    """The mark of a group; groups after the seventh get another pair of colour and shape."""
    colour = COLOURS[index % len(COLOURS)]
    shape = SHAPES[(index + index // len(COLOURS)) % len(SHAPES)]
    inner = f"><title>{escape(note)}</title></path>" if note else "/>"
    place = f'transform="translate({x:.1f} {y:.1f})"'
    return f'<path class="point" fill="{colour}" {place} d="{shape}"{inner}'


def _legend(marks: Marks) -> Iterator[str]:
    """The mark and name of each group, on at most two lines."""
    x, y = 20.0, 78.0
    for group, index in marks.items():
        name = group if len(group) <= 24 else group[:23] + "…"
        width = 30 + len(name) * 12 * CHARACTER
        if x + width > WIDTH and y < 90:
            x, y = 20.0, y + 18
        if x + width > WIDTH:
            return
        yield _mark(index, x, y)
        yield svg_text(f"{x + 11:.1f}", f"{y + 4:.1f}", escape(name), kind="key")
        x += width


def _marks(points: Points, marks: Marks, plot: PlotPanel, errors: bool) -> Iterator[str]:
    """The marks of the runs, each with a tooltip."""
    for p in points:
        predicted, measured = (_figure(v, plot.unit) for v in (p.predicted, p.measured))
        figures = f"predicted {predicted}, measured {measured} {plot.unit}, error {p.error:+.2f} %"
        y = plot.at(p.error) if errors else plot.y(p.predicted)
        yield _mark(marks[p.group], plot.x(p.measured), y, f"{p.id} ({p.group}): {figures}")


def _figure(value: float, unit: str) -> str:
    return f"{value:,.0f}" if unit == "tokens" else f"{value:,.3f}"


def log_ticks(low: float, high: float) -> list[float]:
    """Round values on a logarithmic axis: 1, 2 and 5 of each decade, or only 1 if too many."""
    ticks = round_values(low, high)
    return ticks if len(ticks) <= 9 else round_values(low, high, (1,))


def _tick(value: float, unit: str) -> str:
    return count(int(value)) if unit == "tokens" else f"{value:,.10g}"


def _measured_axis(plot: PlotPanel) -> Iterator[str]:
    """The axis of measured values, which both panels have, and the panel's frame."""
    for value in log_ticks(plot.low, plot.high):
        x = plot.x(value)
        yield f'<path class="grid" d="M{x:.1f} {TOP}V{plot.bottom}"/>'
        tick = _tick(value, plot.unit)
        yield svg_text(f"{x:.1f}", plot.bottom + 17, tick, anchor="middle")
    words = f"measured, {plot.unit}"
    yield svg_text(plot.left + PANEL / 2, plot.bottom + 38, words, anchor="middle")
    yield f'<path class="frame" d="M{plot.left} {TOP}V{plot.bottom}h{PANEL}"/>'


def _head(plot: PlotPanel, text: str) -> str:
    return svg_text(plot.left, TOP - 12, text, kind="head")


def _sizes(points: Points, marks: Marks, plot: PlotPanel) -> Iterator[str]:
    """The left panel: predicted over measured."""
    yield _head(plot, f"predicted, {plot.unit} (on the line: exactly right)")
    for value in log_ticks(plot.low, plot.high):
        y = plot.y(value)
        yield f'<path class="grid" d="M{plot.left} {y:.1f}h{PANEL}"/>'
        yield svg_text(plot.left - 8, f"{y + 4:.1f}", _tick(value, plot.unit), anchor="end")
    yield from _measured_axis(plot)
    off = PANEL - PANEL * plot.along(plot.low * (1 + BAND_PCT / 100)) - PANEL
    x, end, low = plot.left, plot.left + PANEL, plot.bottom
    yield (
        f'<path class="band" d="M{x} {low}V{low + off:.2f}L{end + off:.2f} {TOP}H{end}'
        f'V{TOP - off:.2f}L{x - off:.2f} {low}z"/>'
    )
    yield f'<path class="right" d="M{x} {low}L{end} {TOP}"/>'
    yield from _marks(points, marks, plot, errors=False)


def _errors(points: Points, marks: Marks, plot: PlotPanel) -> Iterator[str]:
    """The right panel: the error over measured, with the line beyond which it is dangerous."""
    yield _head(plot, "error in % (below 0: predicted too little)")
    for value in percent_ticks(plot.most):
        y = plot.at(value)
        kind = "right" if value == 0 else "grid"
        yield f'<path class="{kind}" d="M{plot.left} {y:.1f}h{PANEL}"/>'
        shown = f"{value:+.6g}" if value else "0"
        yield svg_text(plot.left - 8, f"{y + 4:.1f}", shown, anchor="end")
    yield from _measured_axis(plot)
    if plot.most > BAND_PCT:
        y, right = plot.at(BAND_PCT), plot.left + PANEL - 4
        size = f'width="{PANEL}" height="{plot.at(-BAND_PCT) - y:.1f}"'
        yield f'<rect class="band" x="{plot.left}" y="{y:.1f}" {size}/>'
        yield svg_text(right, f"{y + 14:.1f}", "within 2 %", anchor="end")
        y = plot.at(DANGEROUS_PCT)
        yield f'<path class="danger" d="M{plot.left} {y:.1f}h{PANEL}"/>'
        words = "dangerous: more than 2 % too little"
        yield svg_text(right, f"{y + 14:.1f}", words, kind="danger-label", anchor="end")
    yield from _marks(points, marks, plot, errors=True)
    yield from _labels(points, plot)


def percent_ticks(most: float) -> list[float]:
    """Round errors from -most to most, for a linear or a nearly logarithmic axis."""
    if most > STRAIGHT_PCT:
        ends = sorted({BAND_PCT, *log_ticks(BAND_PCT, most)})
        return [-v for v in reversed(ends)] + [0.0] + ends
    step = round_step(most, 2, 5)
    last = int(most / step)
    return [round(i * step, 10) for i in range(-last, last + 1)]


def _labels(points: Points, plot: PlotPanel) -> Iterator[str]:
    """The names of the runs with the largest errors, moved apart where they would overlap."""
    taken: list[tuple[float, float, float]] = []
    for p in sorted(points, key=lambda p: -abs(p.error))[:NUM_LABELS]:
        name = p.id if len(p.id) <= 34 else p.id[:33] + "…"
        x, y, width = plot.x(p.measured), plot.at(p.error) + 4, len(name) * 11 * CHARACTER
        rightward = x + 9 + width <= plot.left + PANEL
        start = x + 9 if rightward else x - 9 - width
        away = -1 if p.error < 0 else 1
        for _ in range(NUM_LABELS):
            if all(abs(y - b) >= 13 or start > c or start + width < a for a, b, c in taken):
                break
            y += 13 * away
        taken.append((start, y, start + width))
        side, anchor = (x + 9, "start") if rightward else (x - 9, "end")
        begin = f"M{x:.1f} {plot.at(p.error):.1f}"
        yield f'<path class="lead-line" d="{begin}L{side:.1f} {y - 4:.1f}"/>'
        name = escape(name)
        yield svg_text(f"{side:.1f}", f"{y:.1f}", name, kind="label", anchor=anchor)
