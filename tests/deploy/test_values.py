"""Values as Helm reads them, and no value that is accepted and ignored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator import __version__

from .cases import CASES, Case, rendered
from .go_yaml import load, to_yaml
from .render import CHART, ChartError, kept_files, merged_values, over, render, texts
from .set_line import SetError, set_into

# --- --set, files and defaults ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a=1", {"a": 1}),
        ("a=-1,b=0,c=007", {"a": -1, "b": 0, "c": "007"}),
        ("a=70e9,b=1.5", {"a": "70e9", "b": "1.5"}),
        ("a=true,b=FALSE,c=null,d=", {"a": True, "b": False, "c": None, "d": ""}),
        ("a.b.c=x,a.b.d=y", {"a": {"b": {"c": "x", "d": "y"}}}),
        ("a={x,1,true}", {"a": ["x", 1, True]}),
        ("a={x},b=2", {"a": ["x"], "b": 2}),
        (r"a=x\,y,b=z", {"a": "x,y", "b": "z"}),
        (r"a\.b=c", {"a.b": "c"}),
        ("a[1]=x", {"a": [None, "x"]}),
        (
            "a[0].name=x,a[0].value=y,a[1].name=z",
            {"a": [{"name": "x", "value": "y"}, {"name": "z"}]},
        ),
        ("a[0][1]=x", {"a": [[None, "x"]]}),
        ("a=k=v", {"a": "k=v"}),
    ],
)
def test_set_is_read_as_helm_reads_it(line: str, expected: dict[str, Any]) -> None:
    """Types, lists, escapes and depths."""
    values: dict[str, Any] = {}
    set_into(values, line)
    assert values == expected


@pytest.mark.parametrize("line", ["a", "a,b=1", "a.b", "a={x", "a[x]=1", "a[0]x=1"])
def test_set_refuses_what_helm_refuses(line: str) -> None:
    """A key without a value, a list without an end, an index that is none."""
    with pytest.raises(SetError):
        set_into({}, line)


def small_chart(folder: Path, **files: str) -> Path:
    """A chart of these files."""
    given = {"Chart.yaml": "apiVersion: v2\nname: small\nversion: 1.0.0\n", "values.yaml": "{}"}
    for name, text in {**given, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_values_are_merged_and_nulls_remove(tmp_path: Path) -> None:
    """Defaults, then files, then --set; a map is merged, a list replaced, null removes."""
    chart = small_chart(tmp_path)
    (chart / "values.yaml").write_text("a: {b: 1, c: 2, d: null}\nl: [1, 2]\nn:\nk: {x: 1}\n")
    (chart / "more.yaml").write_text("a: {b: 3}\nl: [4]\nk: null\n")
    found = merged_values(chart, {"a": {"e": 5}}, ["more.yaml"], ["a.c=null", "l[0]=9"])
    assert found == {"a": {"b": 3.0, "e": 5.0}, "l": [9]}
    assert isinstance(found["a"]["b"], float)
    assert isinstance(found["l"][0], int)


def test_ignored_files_are_left_out(tmp_path: Path) -> None:
    """Folders, endings and names of .helmignore, and dotfiles among the templates."""
    chart = small_chart(
        tmp_path,
        **{
            ".helmignore": "# a\nover/\n*.tgz\n/top.txt\n",
            "over/a": "",
            "a.tgz": "",
            "top.txt": "",
            "in/top.txt": "",
            "templates/.hidden": "",
            "b": "",
        },
    )
    kept = {name for name, _ in kept_files(chart)}
    assert kept == {".helmignore", "Chart.yaml", "values.yaml", "in/top.txt", "b"}


def test_numbers_and_text_survive_to_yaml() -> None:
    """Text that looks like a number stays text; a whole float is written as an integer."""
    value = {"n": 500_000_000.0, "t": "1e6", "y": "yes", "o": "n", "f": 1.5, "d": "2020-01-01"}
    assert to_yaml(
        value
    ) == 'd: 2020-01-01\nf: 1.5\n"n": 500000000\no: "n"\nt: "1e6"\n"y": "yes"'.replace('"', "'")
    assert load(to_yaml(value)) == value


def test_a_key_twice_is_refused() -> None:
    """The second would win silently."""
    with pytest.raises(Exception, match="twice"):
        load("a: 1\na: 2\n")


# --- the chart's own values ------------------------------------------------------------------


def test_images_have_the_programs_version() -> None:
    """The chart's own version, and the tags of both images."""
    chart, values = (
        load((CHART / name).read_text("utf-8")) for name in ("Chart.yaml", "values.yaml")
    )
    assert chart["version"] == chart["appVersion"] == __version__
    assert values["image"] == f"gpu-mem-calculator:{__version__}"
    assert values["measure"]["image"] == f"gpu-mem-calculator:{__version__}-torch"


def test_every_override_is_a_case() -> None:
    """Both spellings of the guide's, too."""
    there = {f"overrides/{path.name}" for path in (CHART / "overrides").iterdir()}
    assert there == {file for case in CASES.values() for file in case.files}


def test_both_spellings_of_the_guides_override_say_the_same() -> None:
    """`overrides/hf-token`, as the guide has it, and with its ending."""
    assert rendered(CASES["guide-hub"]) == rendered(CASES["guide-hub-yaml"])


def leaves(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every key of values.yaml that holds no further keys, with its default."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield ".".join((*path, key)), value


DEFAULTS = dict(leaves(load((CHART / "values.yaml").read_text(encoding="utf-8"))))
# Which cases use a key, by what it begins with; the first that fits.
USED_BY = {
    "estimate.": ["estimate-all", "override-estimate"],
    "run": ["estimate-configmap", "override-estimate"],
    "measure.": ["measure-one", "measure-node", "measure-job", "measure-one-all"],
    "web.": ["web-all", "web-default", "web-least"],
    "hfEndpoint": ["guide-hub", "web-all"],
    "": ["guide-hub", "guide-number", "guide-bucket", "stage-3-numbers", "web-all", "measure-job"],
}
# Values that a key might take besides its default, by the default's type ...
OTHERS: dict[type, list[Any]] = {
    str: ["other", "2Gi", "3", "http://other.example:9000", "example/other:1.2.3", "9.9.9"],
    list: [
        [{"name": "OTHER", "value": "1"}],
        [{"name": "other"}],
        [{"host": "other.example"}],
        [{"key": "other", "operator": "Exists"}],
        [{"podSelector": {}}],
        ["engine.x=1"],
        [{"name": "other", "emptyDir": {"sizeLimit": "1Gi"}}],
        [{"name": "tmp", "mountPath": "/other"}],
        [{"ports": [{"port": 1, "protocol": "TCP"}]}],
        [{"secretName": "other", "hosts": ["other.example"]}],
    ],
    dict: [
        {"other": "value"},
        {"name": "other", "key": "token"},
        {"GPU_MEM_CALC_SLOW_SECONDS": 5},
        {"model": {"name": "llama2-13b"}},
    ],
    type(None): [9, "other"],
}
# ... and of keys that take only certain ones.
OTHER = {
    "affinity": {"nodeAffinity": {}},
    "estimate.format": "yaml",
    "imagePullPolicy": "Never",
    "measure.allocConf": "backend:native",
    "measure.cap": "8GiB",
    "measure.format": "json",
    "measure.gpuResource": "amd.com/gpu",
    "measure.launcher": "trainjob",
    "measure.ranks": "all",
    "mode": "web",
    "runConfigMap.key": "other.json",
    "web.resources.limits.memory": "3Gi",
    "web.service.type": "LoadBalancer",
}


def others(path: str) -> list[Any]:
    """Values of a key besides its default."""
    default = DEFAULTS[path]
    if path in OTHER:
        return [OTHER[path]]
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int | float):
        return [default + 1, default + 2]
    return [one for one in OTHERS[type(default)] if one != default]


def nested(path: str, value: Any) -> dict[str, Any]:
    """A value under its keys."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return dict(value)


def shown(case: Case) -> str | None:
    """What a case renders or a template says of it; nothing where the schema refuses it."""
    try:
        return json.dumps(texts(case.values, *case.files, **case.options()))
    except ChartError as problem:
        return None if "specifications of the schema" in str(problem) else str(problem)


@pytest.mark.parametrize("path", DEFAULTS)
def test_no_value_is_accepted_and_ignored(path: str) -> None:
    """Some other value of each key changes a case that uses it, or is refused for a reason."""
    names = next(cases for start, cases in USED_BY.items() if path.startswith(start))
    for name in names:
        case, before = CASES[name], unchanged(name)
        for other in others(path):
            after = shown(replace(case, values=over(case.values, nested(path, other))))
            if after not in (None, before):
                return
    pytest.fail(f"{path}: no other value changes anything")


@cache
def unchanged(name: str) -> str | None:
    """What a case renders as it is."""
    return shown(CASES[name])


def test_a_key_that_is_ignored_would_be_found(tmp_path: Path) -> None:
    """The test above can fail: a chart that never reads its key renders the same."""
    chart = small_chart(tmp_path, **{"templates/a.yaml": "kind: A\nof: {{ .Values.b }}\n"})
    assert render({"a": 1}, chart=chart) == render({"a": 2}, chart=chart)
    assert render({"b": 1}, chart=chart) != render({"b": 2}, chart=chart)
