"""The tables of gptlite.md about our own figures."""

from __future__ import annotations

from collections.abc import Iterable

import gptlite_rows
from gptlite_rows import GIB, Largest, Row, largests, percent, rows

VERSION = "the last version before these rows were added"
LIBRARIES = {"torch": "torch", "deepspeed": "DeepSpeed", "driver": "driver"}


def table(head: Iterable[str], lines: Iterable[Iterable[str]], words: int = 1) -> str:
    """A table in Markdown: so many columns of words, then figures, which stand to the right."""
    head = list(head)
    made = [head, ["---"] * words + ["---:"] * (len(head) - words), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in made)


def off(predicted: float, measured: float) -> str:
    """A figure, and how far it is from what was measured."""
    return f"{predicted:.2f} ({percent(gptlite_rows.error(predicted, measured))})"


def memory() -> str:
    """One row a configuration: memory and speed."""
    lines = []
    for one in gptlite_rows.memories():
        lines.append(
            [
                f"`{one.name}`",
                off(one.estimated, one.measured),
                off(one.traced, one.measured),
                f"**{one.measured:.2f}**",
                f"{one.average:.2f}",
                f"{one.held:.2f}",
                *(speed(one.steps.get(batch), batch) for batch in (1, 8)),
                " / ".join(busy(one.steps.get(batch)) for batch in (1, 8)),
            ]
        )
    return table(
        [
            "",
            "estimated peak",
            "traced peak",
            "measured peak",
            "average over a step",
            "between steps",
            "samples/s, batch 1",
            "batch 8",
            "GPU busy, batch 1 / 8",
        ],
        lines,
    )


def speed(found: Row | None, batch: int) -> str:
    """Samples a second of one rank."""
    seconds = found and found.get("step_seconds")
    return f"{batch / seconds:.1f}" if seconds else "-"


def busy(found: Row | None) -> str:
    """What NVML says of the GPU."""
    share = found and found.get("utilization_pct")
    return f"{share:.0f} %" if share else "-"


def close() -> str:
    """How close it is, in a sentence."""
    found = list(gptlite_rows.memories())
    worst = max(found, key=lambda one: abs(one.off))
    traced = max(found, key=lambda one: abs(one.traced_off))
    return (
        f"Over these {len(found)} configurations the estimate is off by at most "
        f"{worst.off:+.2f} % "
        f"(`{worst.name}`), the trace by at most {traced.traced_off:+.2f} % "
        f"(`{traced.name}`)."
    )


def largest() -> str:
    """The largest model of each configuration."""
    lines = [
        [
            f"`{one.name}`",
            "whole H200" if one.room is None else f"{one.room} GiB",
            f"**{one.size} × {gptlite_rows.width(one.size):,}**",
            f"{gptlite_rows.parameters(one.size) / 1e9:.2f} B",
            numbers(one.trained),
            numbers(one.failed),
            verdict(one),
        ]
        for one in largests()
    ]
    return table(
        [
            "",
            "limit",
            "predicted, layers × width",
            "parameters",
            "layers that trained",
            "that ran out of memory",
            "prediction",
        ],
        lines,
        words=7,
    )


def numbers(found: list[int]) -> str:
    """Sizes in a cell."""
    return ", ".join(map(str, found)) or "-"


def verdict(one: Largest) -> str:
    """What the trials say of a prediction."""
    if one.wrong:
        return "**wrong**"
    if one.below and one.above:
        return "right"
    if one.below:
        return f"not too high; {one.size + 1} was not tried"
    if one.failed:
        return f"not refuted; {one.size} and {one.size + 1} were not tried"
    return "not tried"


def score() -> str:
    """How many predictions were seen from both sides, and which were not."""
    found = largests()
    both = [one for one in found if one.below and one.above and not one.wrong]
    wrong = sum(one.wrong for one in found)
    rest = [f"`{one.name}`" for one in found if one not in both and not one.wrong]
    capped = sum(one.room is not None for one in both)
    said = (
        f"{len(both)} of {len(found)} predictions were tried on both sides and are right: the "
        f"predicted size trains, the next one runs out of memory. {len(both) - capped} of them, "
        f"on the whole card, were computed before the trial; {capped}, under a cap, afterwards. "
        f"{wrong or 'None'} turned out wrong."
    )
    return f"{said} Not tried on both sides: {', '.join(rest)}." if rest else said


def pipelines() -> str:
    """Each pipeline, stage by stage."""
    lines = [
        [
            f"`{one.name}`",
            str(len(one.measured)),
            stages(one.estimated),
            stages(one.measured),
            f"{one.worst:+.2f} %",
        ]
        for one in gptlite_rows.pipelines()
    ]
    return table(
        ["", "stages", "estimated, by stage", "measured, by stage", "worst stage"], lines, words=4
    )


def stages(sizes: list[float]) -> str:
    """Figures of all stages in a cell."""
    return " · ".join(f"{size:.2f}" for size in sizes)


def first_pipeline_errors() -> list[float]:
    """How far off each stage of each pipeline was before it was measured, in percent."""
    known = {
        (row["configuration"], row["stages"]): row["measured"] for row in rows("measured_pipelines")
    }
    return [
        gptlite_rows.error(*pair)
        for row in rows("before")
        if "stages" in row
        for pair in zip(row["estimated"], known[row["configuration"], row["stages"]], strict=True)
    ]


def before() -> str:
    """What pipelines were estimated at before they were measured."""
    each = first_pipeline_errors()
    return (
        "These estimates were computed after the measurement. "
        f"{VERSION.capitalize()} gave every stage the masks of all layers and was "
        f"{min(each):.0f} to {max(each):.0f} % too high. That was fixed."
    )


def first_estimates() -> dict[str, float]:
    """What each configuration was estimated at before it was measured."""
    return {
        row["configuration"]: row["estimated"]["allocated_bytes"] / GIB
        for row in rows("before")
        if "stages" not in row
    }


def first_errors() -> list[float]:
    """How far off those estimates were, in percent."""
    then = first_estimates()
    return [gptlite_rows.error(then[one.name], one.measured) for one in gptlite_rows.memories()]


def errors() -> list[float]:
    """How far off the estimates are now."""
    return [one.off for one in gptlite_rows.memories()]


def changed() -> str:
    """What became of the estimates after the measurements."""
    now, then = {one.name: one for one in gptlite_rows.memories()}, first_estimates()
    off = dict(zip(now, first_errors(), strict=True))
    worst = max(off, key=lambda name: abs(off[name]))
    other = [f"`{name}`" for name, one in now.items() if one.estimated != then[name]]
    said = (
        f"They were estimated before they were measured: {VERSION} was off by at most "
        f"{off[worst]:+.2f} % (`{worst}`). "
    )
    if not other:
        return f"{said}Nothing has changed since."
    return f"{said}Estimates that have changed since: {', '.join(other)}."


def moved() -> str:
    """Whether the largest models are those that were predicted first."""
    first = {row["configuration"]: row["largest"] for row in rows("before") if "largest" in row}
    found = [
        f"`{one.name}` ({first[one.name]} before)"
        for one in largests()
        if one.name in first and first[one.name] != one.size
    ]
    late = [f"`{one.name}`" for one in largests() if one.name not in first]
    said = "No prediction" if not found else f"Of the predictions {', '.join(found)}"
    return (
        f"{said} changed with the estimates that are named above. Predicted only after those "
        f"changes: {', '.join(late) or 'none'}."
    )


def made() -> str:
    """With what it was measured."""
    around = rows("measured")[0]["environment"]
    said = ", ".join(f"{title} {around[key].partition('+')[0]}" for key, title in LIBRARIES.items())
    return f"Measured on one {around['gpu']}: {said}."


def trained() -> str:
    """That every configuration trains."""
    found = rows("trained")
    first = [row["losses"]["1"] for row in found if "1" in row["losses"]]
    steps = [max(map(int, row["losses"])) for row in found]
    last = [row["losses"][str(step)] for row, step in zip(found, steps, strict=True)]
    whole = sum(step == max(steps) for step in steps)
    return (
        f"`train.py` trained all {len(found)} configurations there, as one process: the loss "
        f"was {min(first):.2f} to {max(first):.2f} at the first step and {min(last):.2f} to "
        f"{max(last):.2f} at the last, which was step {max(steps)} in {whole} runs. The other "
        f"{len(found) - whole} were stopped by a time limit; the shortest reached step "
        f"{min(steps)}."
    )
