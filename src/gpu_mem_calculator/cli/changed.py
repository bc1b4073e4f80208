"""`check --changed BASE`: the configurations that changed since a commit, before and after."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import replace

from ..catalog.hub.access import Access, access, allow
from ..estimates.changed_runs import ChangedRun, Changes, OfferedChange, Outcome, changed_runs
from ..estimates.checked import BAD_INPUT, NO_MODEL, Checked, CheckQuestion, check_reading
from ..report.changes.code_quality import code_quality
from ..report.changes.comment import comment
from ..report.changes.junit import junit
from ..report.changes.lines import changes_lines
from ..report.changes.sarif import sarif
from ..report.encode import to_json
from ..runfile.text.errors import InputError
from ..runfile.text.files import read_text
from ..tools.conversion.configuration import may_be_configuration, why_none
from ..tools.conversion.repository import Repository
from ..tools.manifests.read import NOTHING
from ..tools.read import read_all
from ..tools.reading import SCRIPTS
from ..tools.reading.reading import RUN_FILE, Reading
from ..tools.reading.tools import CARD_KEYS, UnknownToolError
from .output import show, write
from .releases import named_releases, named_texts

MOST_REMEDIES = 3
NAMES_NONE = "nothing that it starts names a model"
# Options that write a file, and what makes its text.
WRITTEN = {"comment": comment, "sarif": sarif, "junit": junit, "code_quality": code_quality}
Found = Sequence[Checked] | str  # the runs of a file, or why it is none


def run(args: argparse.Namespace, hardware: Mapping[str, Any]) -> int:
    """Report the runs of the files that changed; returns the worst exit code.

    hardware: the section that the options give; their card is for files that name none, and this
      machine's is not asked for
    """
    _check_options(args)
    texts = named_texts(args)
    named = named_releases(texts) if texts else None
    card = {key: value for key, value in hardware.items() if key in CARD_KEYS}
    sizes = {key: value for key, value in hardware.items() if key not in CARD_KEYS}
    question = CheckQuestion(hardware=sizes, machine=card, settings=args.settings, named=named)
    question.door(None)  # a card that is not known is the option's fault, not a file's
    changes = _changes(args, question)
    for option, text in WRITTEN.items():
        if getattr(args, option):
            write(text(changes), getattr(args, option), f"--{option.replace('_', '-')}")
    if args.format == "json":
        write(to_json(changes.data), args.output)
    else:
        show([*changes_lines(changes, long=args.long)], args.output)
    return changes.code


def _changes(args: argparse.Namespace, question: CheckQuestion) -> Changes:
    """The runs of the files that changed, before and now."""
    repository = Repository.around(Path.cwd(), args.changed)
    files = repository.changed()
    known = [one for one in files if may_be_configuration(one.name)]
    with _inside(repository.root):
        now = {one.path: _found(one.path, question) for one in known if one.path}
    before: dict[str, Found] = {}
    if any(one.old for one in known):
        with TemporaryDirectory(prefix="gpu-mem-calc-") as folder:
            repository.write_base(Path(folder))
            with _inside(Path(folder)):
                before = {one.old: _found(one.old, question) for one in known if one.old}
    changes = Changes(base=repository.base, runs=[], others=len(files) - len(known))
    passed: dict[str, str] = {}
    for one in known:
        runs = _runs(one.name, before.get(one.old, ""), now.get(one.path, ""))
        changes.runs.extend(runs)
        if not runs:
            passed[one.name] = str(now.get(one.path, "removed, and it was none"))
    return replace(changes, passed_over=passed)


def _check_options(args: argparse.Namespace) -> None:
    """Raise for options of --changed without it, and for those that it does not take."""
    given = [f"--{option.replace('_', '-')}" for option in WRITTEN if getattr(args, option)]
    if args.changed is None and given:
        raise InputError(f"{given[0]} is for --changed; add --changed BASE, the commit before")
    if args.changed is not None and args.launch:
        raise InputError("--changed finds the files itself; leave the command out")
    if args.changed is not None and (args.run or args.nvidia_smi):
        option = "--run" if args.run else "--nvidia-smi"
        raise InputError(f"{option} is for one command, and --changed reads files; leave it out")


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Names are of files in a folder, and nothing outside it is opened."""
    before = access()
    try:
        with chdir(folder):
            allow(Access(root=os.fspath(folder)))
            yield
    finally:
        allow(before)


def _found(path: str, question: CheckQuestion) -> Found:
    """The runs of a file, or why it is no configuration."""
    try:
        none = why_none(path, read_text(path))
    except InputError as error:
        none = error.problems[0].removeprefix(f"{path}: ")
    if none:
        return none
    try:
        asked = read_all([path], question.door(""))
        for one in asked:
            if one.reading is None or one.reading.tool == RUN_FILE:
                one.checked()  # what is wrong with a run file is its author's
    except UnknownToolError as error:
        return error.problems[0]
    except InputError as error:
        if list(error.problems) == [NOTHING] or path.lower().endswith(SCRIPTS):
            return error.problems[0]
        said = tuple(error.problems)
        reading = Reading(tool=path, problems=list(said))
        return [Checked(reading=reading, code=BAD_INPUT, data={}, problems=said)]
    readings = [one.reading or Reading(tool=RUN_FILE, run=one.run) for one in asked]
    checked = [check_reading(one, question) for one in readings]
    return NAMES_NONE if all(NO_MODEL in one.problems for one in checked) else checked


def _runs(path: str, before: Found, now: Found) -> list[ChangedRun]:
    """The runs of one file; none where it neither was nor is a configuration."""
    if isinstance(now, str) and isinstance(before, str):
        return []
    if isinstance(now, str) and now:
        said = f"it was a configuration, and is none now: {now}"
        return [ChangedRun(path=path, after=Outcome(code=BAD_INPUT, sentence=said))]
    old = () if isinstance(before, str) else before
    new = () if isinstance(now, str) else now
    return list(changed_runs(path, old, new, _remedies))


def _remedies(checked: Checked) -> tuple[OfferedChange, ...]:
    """What would make a run fit."""
    estimate = checked.estimate
    if estimate is None or estimate.result.figures_fit:
        return ()
    if estimate.served:
        from ..advice.serving.changes import Server
        from ..advice.serving.server_remedies import remedies as of_server

        found = [(f"fits with {one.title}", one.setting) for one in of_server(Server.of(estimate))]
    else:
        from ..advice.training.remedies import remedies
        from ..report.remedy_lines import label, remedy_words

        found = [(label(one) + remedy_words(one), one.settings) for one in remedies(estimate)]
    return tuple(OfferedChange(words=one, settings=given) for one, given in found[:MOST_REMEDIES])
