"""Whether another release is why: the run at two releases, and which arguments' defaults differ.

The releases are those that the one who asks names and those of the text; of a package that only one
is known of, the other is the newest that is modelled. A default that changed is a reason where the
run, with that argument set as the other release has it, takes something else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...estimates.calculator import Estimate, full_estimate
from ...estimates.fit_verdict import FITS, SHORT
from ...ledger.frameworks import FRAMEWORKS
from ...ledger.units import MIB
from ...run.releases import package_name
from ...runfile.read import RELEASES, with_settings
from ...runfile.text.errors import InputError
from ...tools.logs.read import Log
from ...tools.read import Asked
from ...tools.releases.apply import packages_of
from ...tools.releases.in_text import releases_in_text, span
from ...tools.releases.named import Named
from ...tools.releases.release import PACKAGES, Release
from ...tools.translation.releases import arguments_at, nearest, order, package_releases, tables_of
from ...tools.translation.tools import program_values
from .cause_rows import made_cause
from .crash import Crash, told
from .diagnosis import CERTAIN, LIKELY, POSSIBLE, Advice, Cause

ROW = "other_release"
LEAST = 64 * MIB  # bytes below which two releases take the same
MOST_TRIED = 40  # arguments whose default changed
MOST_NAMED = 3  # of those that make a difference
MOST_FIGURES = 2
SECTIONS = ("training", "parallelism", "engine", "inference")  # of a run, which readers fill in
OF_PROGRAM = ("load", "data", "peft", "quantization", "fsdp_config")
LOADING = "program.load.dtype"
# How the weights are loaded, by what the run file calls it; the others keep them in float32.
LOADED = {"bf16_pure": "bfloat16", "fp16_pure": "float16"}
# What people say where one release ran it and another did not.
UPGRADED = re.compile(
    r"(?i)\b(up|down)grad\w+|\bregression\b|\b(after|since) (the )?(upgrad|updat)\w*"
    r"|\b(works?|worked|runs?|ran|fine|ok|fits?)\b[^.\n]{0,40}\b(with|on|in|until|before)\b[^.\n]{0,20}\d+\.\d+"
    r"|\b(worked|ran|fit|was fine) before\b"
)


class ChangedDefault(Struct, frozen=True, kw_only=True):
    """An argument whose default changed, and what that makes: the setting of a run, its name in the
    tool, its value with the release that takes more, and with the other; `effect` in bytes.
    """

    setting: str
    name: str
    more: Any
    less: Any
    effect: int


class TwoReleases(Struct, frozen=True, kw_only=True):
    """A run at two releases.

    - `older`, `newer`: the releases of both, by package; `asked`: the run at them
    - `estimates`: of both; `worse`: the place of the one that takes more
    - `is_named`: both are known, and not the newest is one of them for want of a second
    - `changed`: the arguments that make the difference, the largest first
    """

    older: Mapping[str, str]
    newer: Mapping[str, str]
    asked: tuple[Asked, Asked]
    estimates: tuple[Estimate, Estimate]
    worse: int
    is_named: bool
    changed: tuple[ChangedDefault, ...]

    @property
    def turns(self) -> bool:
        """Whether one of them does not fit, and the other does."""
        verdicts = [one.result.verdict for one in self.estimates]
        named = self.estimates[0].resolved.hardware.named
        return named and verdicts[self.worse] == SHORT and verdicts[1 - self.worse] == FITS

    @property
    def words(self) -> str:
        """What differs, with both figures."""
        names = [
            f"{_title(name)} {old} to {self.newer[name]}"
            for name, old in self.older.items()
            if old != self.newer[name]
        ]
        figures = " and ".join([*_figure_words(*self.estimates)][:MOST_FIGURES])
        return f"from {' and '.join(names)} {self._defaults}; it {figures}"

    @property
    def _defaults(self) -> str:
        if not self.changed:
            return "no argument's default explains it, so what the release does changed"
        pairs = []
        for one in self.changed[:MOST_NAMED]:
            values = (one.more, one.less) if self.worse == 0 else (one.less, one.more)
            before, after = map(_shown, values)
            pairs.append(f"of {one.name} went from {before} to {after}")
        more = len(self.changed) - MOST_NAMED
        rest = f", and {more} more" if more > 0 else ""
        return f"the default {', that '.join(pairs)}{rest}"

    @property
    def settings(self) -> list[str]:
        """What makes the one that takes more as the other is."""
        return [f"{one.setting}={json.dumps(one.less)}" for one in self.changed]

    def advice(self) -> Iterator[Advice]:
        """To set the arguments explicitly, with what that gives."""
        if not self.changed:
            return
        from .own_words import changed_words

        asked = self.asked[self.worse]
        run = with_settings(asked.run, self.settings)
        server = "inference" in asked.run
        words = changed_words(asked, self.settings) if server else _options(self.changed)
        names = " and ".join(one.name for one in self.changed)
        release = " and ".join(f"{_title(k)} {v}" for k, v in self._less.items())
        fits = full_estimate(replace(asked, run=run)).result.verdict == FITS
        yield Advice(sentence=f"Set {names} as {release} has it", command=words, fits=fits)

    @property
    def _less(self) -> Mapping[str, str]:
        both = (self.older, self.newer)
        less, more = both[1 - self.worse], both[self.worse]
        return {name: one for name, one in less.items() if one != more[name]}


def compared(crash: Crash) -> tuple[TwoReleases | None, str]:
    """The run at two releases; or why it was not estimated at one of them, which may be empty."""
    asked = crash.asked
    if asked is None:
        return None, ""
    pair = _pair(asked, crash.text)
    if pair is None:
        return None, ""
    before, after, is_named = pair
    try:
        runs = _at(asked, before), _at(asked, after)
        older, newer = (full_estimate(one) for one in runs)
    except InputError as error:
        return None, f"the run was not compared with another release: {error.problems[0]}"
    if all(abs(a - b) < LEAST for a, b in zip(_figures(older), _figures(newer), strict=True)):
        return None, f"{_pair_words(before, after)} take the same by an estimate"
    worse = max((0, 1), key=lambda place: _order((older, newer)[place], crash.log))
    found = TwoReleases(
        older=before,
        newer=after,
        asked=runs,
        estimates=(older, newer),
        worse=worse,
        is_named=is_named,
        changed=(),
    )
    return replace(found, changed=tuple(_changed(found))), ""


def other_release(crash: Crash) -> Iterator[Cause]:
    """Where it died or did not start: by words and figures likely, by one of them possible."""
    found = crash.releases
    if found is None or not (crash.is_told or crash.starts_not):
        return
    named = found.is_named or bool(UPGRADED.search(crash.prose))
    on_card = crash.estimate is not None and crash.estimate.resolved.hardware.named
    turns = (on_card and found.turns) or _wants_more(found, crash.log)
    if not (named or turns):
        return
    told_both = found.is_named and _wants_more(found, crash.log)
    certainty = POSSIBLE if not (named and turns) else CERTAIN if told_both else LIKELY
    words = f"releases differ in what they take by default: {found.words}"
    yield made_cause(crash, ROW, certainty, phase=crash.when, release=words)


def restores(causes: Iterable[Cause]) -> bool:
    """Whether the defaults of the other release are what helps."""
    for place, one in enumerate(causes):
        if one.id == ROW:
            return not place or one.certainty != POSSIBLE
    return False


def _wants_more(found: TwoReleases, log: Log) -> bool:
    """Whether what a server found free is enough for one of them alone."""
    takes = sorted(one.result.device_bytes or 0 for one in found.estimates)
    free = [line.bytes_of("free") for line in log.of("too_little_free")]
    return any(one is not None and takes[0] <= one < takes[1] for one in free)


def _pair(asked: Asked, text: str) -> tuple[dict[str, str], dict[str, str], bool] | None:
    """The two releases of each package that is known, and whether both are; None where they are the
    same.
    """
    packages = _packages(asked)
    named = (*_asked_releases(asked), *releases_in_text(text, packages))
    older: dict[str, str] = {}
    newer: dict[str, str] = {}
    for package in packages:
        own = span(named, lambda one, package=package: one.package == package)  # type: ignore[misc]
        if own:
            older[package], newer[package] = own[0].version, own[-1].version
    is_named = older != newer
    if not is_named:  # one release of each: the other is the newest
        newer = {name: max(one, newest_of(name), key=order) for name, one in older.items()}
    return (older, newer, is_named) if older != newer else None


def _packages(asked: Asked) -> tuple[str, ...]:
    """The packages whose releases decide: of the tool that was read, and those below it."""
    tool = "" if asked.reading is None else re.split(r"[ .]", asked.reading.tool)[0]
    own = PACKAGES.get(package_name(tool), "")
    return tuple(dict.fromkeys(filter(None, (own, *packages_of(asked.run)))))


def _asked_releases(asked: Asked) -> Iterator[Release]:
    """The releases that the one who asks names, or the run file does."""
    run, known = asked.run, asked.door.releases
    if known is not None:
        yield from known.all.values()
    elif asked.source is None:
        for name, one in (run.get(RELEASES) or {}).items():
            version = one["release"] if isinstance(one, Mapping) else one
            yield Release(name, str(version), RELEASES)
    own = next(iter(_packages(asked)), "")
    for section, key in (("inference", "engine_version"), ("program", "version")):
        version = (run.get(section) or {}).get(key)
        if version and own:
            yield Release(own, str(version), f"{section}.{key}")


def newest_of(package: str) -> str:
    """The newest release of a package that is modelled."""
    for row in FRAMEWORKS:
        if row.package == package and "." in row.version:
            return row.version
    return max(package_releases(package), key=order, default="")


def _at(asked: Asked, releases: Mapping[str, str]) -> Asked:
    named = Named(tuple(Release(name, one, "the text") for name, one in releases.items()))
    found = asked.at(named)
    kept = {
        f"hardware.{key}={json.dumps(value)}"
        for key, value in (asked.run.get("hardware") or {}).items()
        if key not in (found.run.get("hardware") or {})
    }
    return replace(found, run=with_settings(found.run, sorted(kept)))


def _figures(one: Estimate) -> tuple[int, ...]:
    """What is compared: of a server also what it leaves for its cache."""
    result = one.result
    if result.serving is not None:
        return (result.device_bytes or 0, result.serving.kv_pool_bytes, result.needs_bytes or 0)
    return (result.needs_bytes or result.allocated_bytes,)


def _figure_words(older: Estimate, newer: Estimate) -> Iterator[str]:
    """Both figures, of those that differ."""
    served = older.result.serving is not None
    titles = ("takes {} of a GPU", "leaves {} for the KV cache", "needs a card of {}")
    for title, *both in zip(
        titles if served else ("needs {}",), _figures(older), _figures(newer), strict=True
    ):
        if abs(both[0] - both[1]) >= LEAST:
            yield f"{title.format(f'{told(both[1])} instead of {told(both[0])}')}"


def _order(one: Estimate, log: Log) -> tuple[int, int]:
    """What is larger where it is worse: short ones, then what it takes, or needs to start."""
    result, taken = one.result, log.of("too_little_free", "card_oom", "torch_oom")
    server = result.serving is not None
    least = result.device_bytes if server and taken else result.needs_bytes
    return int(result.verdict == SHORT), int(least or 0)


def _changed(found: TwoReleases) -> Iterator[ChangedDefault]:
    """The arguments whose default changed, and makes what the run takes another; largest first."""
    worse, better = found.asked[found.worse], found.asked[1 - found.worse]
    more, less = (
        _values(asked, found.estimates[place])
        for asked, place in ((worse, found.worse), (better, 1 - found.worse))
    )
    before = _quick(worse, [])
    tried = []
    names = [name for name in less if name in more and less[name] != more[name]]
    for name in names[:MOST_TRIED]:
        after = _quick(worse, [f"{name}={json.dumps(less[name])}"])
        effect = max((abs(a - b) for a, b in zip(before, after, strict=False)), default=0)
        if effect >= LEAST:
            one, other = more[name], _explicit(worse, name, more[name], less[name], after)
            own = _own_name(found, name, one, other)
            tried.append(
                ChangedDefault(setting=name, name=own, more=one, less=other, effect=effect)
            )
    yield from sorted(tried, key=lambda one: -one.effect)


def _quick(asked: Asked, settings: Iterable[str]) -> tuple[int, ...]:
    """The figures of a run with settings, without the allocator; none where it is refused."""
    try:
        run = with_settings(asked.run, settings)
        return _figures(full_estimate(replace(asked, run=run), replay=False))
    except InputError:
        return ()


def _values(asked: Asked, estimate: Estimate) -> dict[str, Any]:
    """What a run has by settings: those of its reader, of its program, and what a server chose."""
    written = asked.run.get("program") or {}
    sections = {name: asked.run.get(name) for name in SECTIONS}
    sections |= {f"program.{name}": written.get(name) for name in OF_PROGRAM}
    found: dict[str, Any] = {
        f"{section}.{key}": value
        for section, values in sections.items()
        for key, value in (values or {}).items()
    }
    for one in estimate.served[:1]:
        found |= {f"inference.{key}": value for key, value in one.chosen.items()}
    program = asked.file.program
    if program is not None:
        have = {name: one.release for name, one in (asked.file.releases or {}).items()}
        values = program_values(program, have)
        found |= {f"program.args.{key}": value for key, value in values.items()}
        precision = str((estimate.result.run.get("training") or {}).get("precision"))
        if program.quantization is None and "dtype" not in program.load:
            found[LOADING] = LOADED.get(precision, "float32")
    return found


def _title(package: str) -> str:
    """A package as it writes itself."""
    return next((row.name for row in FRAMEWORKS if row.package == package), package)


def _pair_words(older: Mapping[str, str], newer: Mapping[str, str]) -> str:
    pairs = ((name, one, newer[name]) for name, one in older.items())
    return " and ".join(f"{_title(name)} {a} and {b}" for name, a, b in pairs if a != b)


def _explicit(asked: Asked, name: str, more: Any, less: Any, figures: tuple[int, ...]) -> Any:
    """A value that can be set: of one that is left open, the switch that does the same."""
    if less is None and isinstance(more, bool):
        same = _quick(asked, [f"{name}={json.dumps(not more)}"])
        return not more if same == figures else None
    return less


def _own_name(found: TwoReleases, setting: str, more: Any, less: Any) -> str:
    """What the tool calls a setting: its own argument whose default went the same way."""
    name = setting.rpartition(".")[2]
    if setting.startswith("inference."):
        from .own_words import changed_words

        option = changed_words(found.asked[found.worse], [f"{setting}={json.dumps(less)}"])
        return option.split(" ")[0].lstrip("-").replace("-", "_") or name
    package = next(iter(_packages(found.asked[0])), "")
    if setting == LOADING or package not in found.older:
        return "dtype at loading" if setting == LOADING else name
    values = (more, less) if found.worse == 0 else (less, more)
    same = []
    for path in tables_of(package):
        old, new = (
            arguments_at(path, nearest(path, one[package])) for one in (found.older, found.newer)
        )
        if name in old.keys() & new.keys():
            return name
        both = (one for one in old if one in new)
        same += [one for one in both if (old[one].default, new[one].default) == values]
    return same[0] if len(set(same)) == 1 else name


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and type(value) is int else str(value)


def _options(changed: Iterable[ChangedDefault]) -> str:
    """The arguments as options of a command."""
    pairs = (("dtype" if one.setting == LOADING else one.name, one.less) for one in changed)
    return " ".join(
        f"--{name} {str(value).lower() if isinstance(value, bool) else value}"
        for name, value in pairs
        if value is not None
    )
