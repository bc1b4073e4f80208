"""Writes reliability.md: how many drawn questions kept which law, from stored tallies.

python docs/reliability.py                      the page, from reliability.json
python docs/reliability.py TALLY.json ...       the tallies of `python -m tests.questions` first
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STORED, TARGET = HERE / "reliability.json", HERE / "reliability.md"
RESULTS = HERE.parent / "tests" / "questions" / "results.jsonl"
RAN = HERE.parent / "tests" / "tools" / "corpora" / "ran.json"
REFUSED = RAN.with_name("refused.json")
KEPT = ("command", "questions", "replayed", "ended", "laws")  # keys of a tally that are stored
ORDER = ("answered", "cannot tell", "refused", "too long", "traceback")
INTRO = """# Reliability

Does every question end in an answer or in a sentence, and do the answers agree with themselves?
Questions are drawn at random, the same ones for the same number: run files of all engines,
servers and programs,
commands of every verb with spellings and mistakes as people make them, commands of other tools
after `check` (public ones, half of them changed), requests to the service. Each is asked in
process, and laws that hold for any answer are held against it
([`tests/questions`](../tests/questions)). None of this says that a number is true: see
[accuracy](accuracy.md).

Since these runs four causes were fixed: LoRA of opt-350m, models of one layer,
drafts of models without attention, and `check` of Megatron's commands, which asked for the model.
"""
AGAIN = """## Again

    python -m tests.questions --seeds 1-16 --count 250 --replay 0.5 --workers 16 --out tally.json
    python -m tests.questions --ledger --seeds 1-16 --count 7000 --workers 16 --out ledger.json
    python docs/reliability.py tally.json ledger.json

The same number draws the same questions every time. The tally has the first questions that broke
each law;
`--ask` asks one of them again. `make test` asks a few, `make proof` some thousand.
"""
SOAK = """## A service under load

    python -m benchmarks.soak --minutes 9 --rate 40

19 November 2026, one worker at `nice -n 19` on two cores that other programs kept busy: 3,796
requests in 9 minutes to eight addresses, with bodies that differ. 3,360 were answered and 392
refused as bad input; 44 were not answered in time or were turned away as busy (504 and 503). The
median took 0.1 s, and 95 % took less than 3.1 s.

Memory of all processes together (Pss) was 148 MiB at the start, 210 MiB after half a minute, 241
MiB after 7 minutes and 240 MiB at the end. An hour and 100,000 requests have not been tried, so
this does not show that memory stays flat for longer.
"""
NATURAL = """\
{every} commands were written down before any of them was run, from README alone. Each answer was
read: {right} are right (the answer asked for, or one helpful sentence), {unclear} are unclear,
{wrong} are wrong. All of them are in [`results.jsonl`](../tests/questions/results.jsonl).

| command | judged | why |
|---|---|---|"""

ENDS = ("accepted", "not here", "unknown", "other")
PEOPLE = """\
Commands word for word, stored before `check` was tried on any of them: of those of 280 public
threads about memory that state one and were found (a third had been tried at 0.9.0, shortened); of
other threads about memory that the same look-ups showed; and drawn at random from public
repositories of 2023 to 2025 (none of the last two was seen before). *At first* is the first try,
with the newest releases; *now* is today's; *at its releases* is today's with `--at`, the month of
the command and the release that is said of its tool; *a model named* is today's where a model that
is not here is said with `--set model.name=`. *accepted*: any verdict; *not here*: the model
or a file that the command names is not on this machine, which had no network; *unknown*: a name, a
value or a tool is not known.

| commands | tried | accepted | not here | unknown | other |
|---|---|---:|---:|---:|---:|"""
TRIES = {
    "first": "at first",
    "now": "now",
    "at": "now, at its releases",
    "named": "now, a model named",
}
SHARE = (
    "Of {name}, at their releases: {missing} name a model or a file that is not here, and are "
    "asked for it; {rightly} are refused rightly; of the other {counted} {accepted} are accepted "
    "({share:.0f} %)."
)
PEOPLE_REFUSED = """
| refused now | why |
|---|---|"""


def stored_tallies(paths: list[str]) -> list[dict[str, Any]]:
    """The tallies of files, condensed and kept in reliability.json; without files the kept ones."""
    if paths:
        found = [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
        kept = [{key: tally[key] for key in KEPT} for tally in found]
        for tally in kept:
            tally["command"] = re.sub(r" --out \S+", "", tally["command"])
        STORED.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    tallies: list[dict[str, Any]] = json.loads(STORED.read_text(encoding="utf-8"))
    return tallies


def outcome_table(tallies: list[dict[str, Any]]) -> list[str]:
    """Questions by kind, and how they ended."""
    rows: dict[str, Counter[str]] = {}
    for tally in tallies:
        for name, ended in tally["ended"].items():
            rows.setdefault(name, Counter()).update(ended)
    lines = [f"| question | number | {' | '.join(ORDER)} |", f"|---|---:|{'---:|' * len(ORDER)}"]
    every: Counter[str] = Counter()
    for name, ended in sorted(rows.items()):
        every.update(ended)
        lines.append(_row(f"`{name}`", ended))
    return [*lines, _row("all", every)]


def _row(name: str, ended: Counter[str]) -> str:
    counts = " | ".join(f"{ended[how]:,}" if ended[how] else "" for how in ORDER)
    return f"| {name} | {ended.total():,} | {counts} |"


def law_table(tallies: list[dict[str, Any]]) -> list[str]:
    """Laws, how often each was looked at, and how often it was broken."""
    laws: dict[str, Counter[str]] = {}
    for tally in tallies:
        for law, (seen, broken) in tally["laws"].items():
            laws.setdefault(law, Counter()).update(seen=seen, broken=broken)
    lines = ["| law | looked at | broken |", "|---|---:|---:|"]
    return lines + [
        f"| {law} | {n['seen']:,} | {n['broken']:,} |" for law, n in sorted(laws.items())
    ]


def natural_lines() -> list[str]:
    """The commands that were written down before any was run, as a person judged their answers."""
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    judged = {"right": 0, "unclear": 0, "wrong": 0, **Counter(row["judged"] for row in rows)}
    shown = [row for row in rows if row["judged"] != "right"]
    return [
        NATURAL.format(every=len(rows), **judged),
        *(f"| `{_cell(row['command'])}` | {row['judged']} | {row['note']} |" for row in shown),
    ]


def people_lines() -> list[str]:
    """How `check` ended for commands that people ran, at first, now, and at their releases."""
    ran = json.loads(RAN.read_text(encoding="utf-8"))
    lines = [PEOPLE]
    for name, rows in ran.items():
        title = f"[{name}](../tests/tools/corpora/{name}.jsonl), {len(rows)}"
        for when, tried in TRIES.items():
            ends = Counter(row[when] for row in rows)
            cells = [title, tried, *(str(ends[kind]) for kind in ENDS)]
            lines.append(f"| {' | '.join(cells)} |")
            title = ""
    rightly = json.loads(REFUSED.read_text(encoding="utf-8"))
    lines += ["", *(_share(name, ran[name], rightly) for name in ("threads", "neighbours"))]
    refused = [row for rows in ran.values() for row in rows if row["now"] != "accepted"]
    told = [(row, rightly.get(row["id"])) for row in refused]
    why = (
        f"| {row['id']} | {row['why']}{f' (right: {own})' if own else ''} |" for row, own in told
    )
    return [*lines, PEOPLE_REFUSED, *why]


def _share(name: str, rows: list[dict[str, Any]], rightly: dict[str, str]) -> str:
    """How many of the commands that have all that is needed are accepted."""
    missing = [row for row in rows if row["at"] == "not here"]
    right = [row for row in rows if row["id"] in rightly and row not in missing]
    counted = [row["at"] for row in rows if row not in missing and row not in right]
    accepted = counted.count("accepted")
    return SHARE.format(
        name=name,
        missing=len(missing),
        rightly=len(right),
        counted=len(counted),
        accepted=accepted,
        share=100 * accepted / len(counted),
    )


def _cell(command: str) -> str:
    """A command in a table's cell."""
    return command.removeprefix("gpu-mem-calc ").replace("|", "\\|")[:90]


def page(tallies: list[dict[str, Any]]) -> str:
    """The document."""
    total = sum(tally["questions"] for tally in tallies)
    replayed = sum(tally["replayed"] for tally in tallies)
    commands = [f"    {tally['command']}" for tally in tallies]
    return "\n".join(
        [
            INTRO,
            f"{total:,} questions, {replayed:,} of them run files with a replay:\n",
            *commands,
            "\n## How they ended\n",
            *outcome_table(tallies),
            "\n## Laws\n",
            *law_table(tallies),
            "\n## Commands that people type\n",
            *natural_lines(),
            "\n## Commands that people ran\n",
            *people_lines(),
            "",
            SOAK,
            AGAIN,
        ]
    )


if __name__ == "__main__":
    TARGET.write_text(page(stored_tallies(sys.argv[1:])), encoding="utf-8")
