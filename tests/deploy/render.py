"""The chart as `helm template` renders it, in this process.

gotpl runs the templates with Helm's functions; loading, values and the schema follow Helm's
rules here: a file's numbers are floats, --set's whole numbers are integers, null removes a key.
"""

from __future__ import annotations

import copy
import fnmatch
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
from gotpl import TemplateError
from gotpl.exts.helm import HelmTemplateEngine

from .go_yaml import as_values, load, load_all, plain_numbers, to_yaml
from .set_line import SetError, set_into

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "gpu-mem-calculator"
KUBERNETES = "v1.37.0"
# The groups of the objects that the chart may make; the rest comes by --api-versions.
BUILT_IN = ("v1", "apps/v1", "autoscaling/v2", "batch/v1", "networking.k8s.io/v1", "policy/v1")
Values = dict[str, Any]


class ChartError(Exception):
    """What `helm template` says in place of documents."""


class ApiVersions(tuple[str, ...]):
    """`.Capabilities.APIVersions`."""

    def Has(self, name: str) -> bool:  # noqa: N802 - templates call it so
        """Whether the cluster has that group and version."""
        return name in self


class Files:
    """`.Files`: what the chart holds besides its templates."""

    def __init__(self, held: Mapping[str, str]) -> None:
        self.held = held

    def Get(self, name: str) -> str:  # noqa: N802 - templates call it so
        """A file's text, or none."""
        return self.held.get(name, "")


def kept_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """The chart's files that .helmignore does not leave out (it knows no `**` and no order)."""
    ignore = folder / ".helmignore"
    lines = ignore.read_text(encoding="utf-8").splitlines() if ignore.exists() else []
    rules = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        parents = [*reversed(name.parents[:-1]), name]
        if path.is_file() and not any(ignored(folder / p, p, rules) for p in parents):
            yield name.as_posix(), path


def ignored(path: Path, name: Path, rules: Iterable[str]) -> bool:
    """Whether a file or folder of the chart is left out by one of the rules."""
    for rule in [*rules, "templates/.?*"]:
        if rule.endswith("/") and not path.is_dir():
            continue
        pattern = rule.rstrip("/")
        whole = pattern.startswith("/") or "/" in pattern
        if fnmatch.fnmatchcase(str(name) if whole else name.name, pattern.lstrip("/")):
            return True
    return False


@cache
def chart_files(folder: Path) -> dict[str, str]:
    """Every file of the chart by its path, read once."""
    return {name: path.read_text(encoding="utf-8") for name, path in kept_files(folder)}


@cache
def engine(folder: Path) -> HelmTemplateEngine:
    """The chart's templates, compiled once."""
    templates = {k: v for k, v in chart_files(folder).items() if k.startswith("templates/")}
    named = {f"{folder.name}/{name}": text for name, text in templates.items()}
    return HelmTemplateEngine.from_sources(
        named, custom_functions={"toYaml": to_yaml, "mustToYaml": to_yaml}
    )


def over(low: Mapping[str, Any], high: Mapping[str, Any]) -> Values:
    """One file's values over another's: maps are merged, all else is replaced."""
    merged = dict(low)
    for key, value in high.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = over(merged[key], value) if both else value
    return merged


def without_nulls(values: Mapping[str, Any], given: Mapping[str, Any]) -> Values:
    """The chart's defaults under what was given: a null of either removes its key."""
    merged: Values = {}
    for key in {**values, **given}:
        low, high = values.get(key), given.get(key, values.get(key))
        if isinstance(high, dict):
            merged[key] = without_nulls(
                low if isinstance(low, dict) else {}, high if key in given else {}
            )
        elif high is not None or (key in given and low is None):
            merged[key] = high
    return merged


def merged_values(
    folder: Path, values: Mapping[str, Any] | None, files: Iterable[str | Path], sets: Iterable[str]
) -> Values:
    """values.yaml, then each file, then a mapping as one more file, then each --set."""
    given: Values = {}
    for file in files:
        path = Path(file)
        text = (path if path.is_absolute() else folder / path).read_text(encoding="utf-8")
        given = over(given, as_values(load(text) or {}))
    given = over(given, as_values(copy.deepcopy(dict(values or {}))))
    for line in sets:
        try:
            set_into(given, line)
        except SetError as problem:
            raise ChartError(f"failed parsing --set data: {problem}") from None
    return without_nulls(defaults(folder), given)


@cache
def defaults(folder: Path) -> Values:
    """What values.yaml says."""
    found: Values = as_values(load(chart_files(folder)["values.yaml"]) or {})
    return found


@cache
def schema_check(folder: Path) -> jsonschema.Draft7Validator | None:
    """The check of values.schema.json, which is itself checked first."""
    text = chart_files(folder).get("values.schema.json")
    if text is None:
        return None
    schema = json.loads(text)
    made = jsonschema.validators.validator_for(schema, jsonschema.Draft7Validator)
    made.check_schema(schema)
    return made(schema)


def check_schema(folder: Path, values: Values) -> None:
    """Refuse values that values.schema.json refuses."""
    check = schema_check(folder)
    found = sorted(check.iter_errors(values), key=lambda e: e.json_path) if check else []
    said = "\n".join(f"- at '/{'/'.join(map(str, e.absolute_path))}': {e.message}" for e in found)
    if said:
        raise ChartError(f"values don't meet the specifications of the schema(s):\n{said}")


@cache
def chart_yaml(folder: Path) -> Values:
    """What Chart.yaml says."""
    found: Values = load(chart_files(folder)["Chart.yaml"])
    return found


def contexts(
    folder: Path, values: Values, name: str, namespace: str, revision: int, apis: Iterable[str]
) -> dict[str, Values]:
    """What each template sees: Helm's built-in objects and the values."""
    files = chart_files(folder)
    about = chart_yaml(folder)
    fields = {key[0].upper() + key[1:]: value for key, value in about.items()}
    minor = KUBERNETES.split(".")[1]
    common: Values = {
        "Values": values,
        "Chart": {**fields, "APIVersion": about["apiVersion"]},
        "Release": {
            "Name": name,
            "Namespace": namespace,
            "Revision": revision,
            "Service": "Helm",
            "IsInstall": revision == 1,
            "IsUpgrade": revision > 1,
        },
        "Capabilities": {
            "APIVersions": ApiVersions((*BUILT_IN, *apis)),
            "KubeVersion": {
                "Version": KUBERNETES,
                "GitVersion": KUBERNETES,
                "Major": "1",
                "Minor": minor,
            },
            "HelmVersion": {"Version": "v4.2.4"},
        },
        "Files": Files({k: v for k, v in files.items() if not k.startswith("templates/")}),
        "Subcharts": {},
    }
    shown = [
        f"{folder.name}/{one}"
        for one in files
        if one.startswith("templates/")
        and not one.rsplit("/", 1)[1].startswith("_")
        and not one.endswith("NOTES.txt")
    ]
    base = f"{folder.name}/templates"
    return {one: {**common, "Template": {"Name": one, "BasePath": base}} for one in shown}


def texts(
    values: Mapping[str, Any] | None = None,
    *files: str | Path,
    name: str = "release",
    sets: Iterable[str] = (),
    revision: int = 1,
    api_versions: Iterable[str] = (),
    namespace: str = "default",
    chart: Path = CHART,
) -> dict[str, str]:
    """Every template's text; ChartError where Helm would refuse."""
    merged = merged_values(chart, values, files, sets)
    check_schema(chart, merged)
    seen = contexts(chart, copy.deepcopy(merged), name, namespace, revision, api_versions)
    try:
        return engine(chart).render(seen)
    except TemplateError as problem:
        raise ChartError(cause(problem)) from None


def render(
    values: Mapping[str, Any] | None = None, *files: str | Path, **more: Any
) -> list[Values]:
    """Every document of the chart; ChartError where Helm would refuse. Takes what `texts` does."""
    made = texts(values, *files, **more).values()
    return [document for text in made for document in objects(text)]


def objects(text: str) -> list[Values]:
    """Every object of a manifest; those of a List one by one, as a cluster gets them."""
    found = [dict(plain_numbers(one)) for one in load_all(text)]  # type: ignore[call-overload]
    return [item for one in found for item in (one["items"] if one["kind"] == "List" else [one])]


def cause(problem: BaseException) -> str:
    """The innermost sentence of a template's error, with the place it came from."""
    said = str(problem)
    return said.split("failed: ")[-1] if "function 'fail'" in said else said
