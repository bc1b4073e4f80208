"""The picture as a file: self-contained, with literal colours and the given width."""

import re
from functools import cache
from xml.etree import ElementTree

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.report.standalone import THEMES, _paragraph, rules, standalone, tokens
from tests.report.test_html import ON_ONE, SMALL
from tests.report.test_live import ALL, estimated

SVG = "{http://www.w3.org/2000/svg}"


@cache
def drawn(name: str, width: int = 900, theme: str = "light") -> ElementTree.Element:
    """A run's picture, read as XML."""
    return ElementTree.fromstring(standalone(estimated(name), width=width, theme=theme))


def said(picture: ElementTree.Element) -> str:
    """Every word that is written on it."""
    return " ".join(one.text or "" for one in picture.iter(f"{SVG}text"))


@pytest.mark.parametrize("name", ALL)
def test_it_says_what_it_is_of(name: str) -> None:
    """The model, the card, the verdict and the GiB are written above the picture."""
    estimate = estimated(name)
    result, words = estimate.result, said(drawn(name))
    assert estimate.resolved.model.title in words
    assert estimate.resolved.hardware.title in words
    sign = {"fits": "✓ fits", "cannot_tell": "? cannot tell", "does_not_fit": "✗ does not fit"}
    assert sign[result.verdict] in words
    assert f" {result.total_memory_per_gpu_gb:,.1f} " in words
    assert ("allocator adds" in words) == (result.needs_bytes is None)


def test_with_a_replay_it_has_the_verdict() -> None:
    """In the words of the other reports."""
    picture = standalone(estimated("ddp", True), width=900, theme="light")
    needs = r"needs [\d.]+ of 39.4 GiB"
    assert re.search(rf"✓ fits, [\d.]+ GiB to spare {needs}", said(ElementTree.fromstring(picture)))


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", ["zero3", "vllm"])
def test_nothing_is_left_to_look_up(name: str, theme: str) -> None:
    """Plain colours, every fill has its pattern, nothing is loaded from elsewhere."""
    text = standalone(estimated(name), width=900, theme=theme)
    assert not re.search(r"var\(|light-dark|currentColor|inherit|@import|href", text)
    assert set(re.findall(r"\w+://[^\"' )<]+", text)) == {"http://www.w3.org/2000/svg"}
    ids = {one.get("id") for one in drawn(name, theme=theme).iter()}
    assert set(re.findall(r"url\(#([\w-]+)\)", text)) <= ids
    own, other = tokens(theme), tokens(THEMES[1 - THEMES.index(theme)])
    assert own["param"] in text
    assert not [colour for colour in set(other.values()) - set(own.values()) if colour in text]


@pytest.mark.parametrize("name", ["zero3", "vllm"])
def test_every_class_has_a_rule(name: str) -> None:
    """What the page's style sheet says of a picture came along."""
    style = rules("light")
    used = {word for one in drawn(name).iter() for word in (one.get("class") or "").split()}
    plain = {word for word in used if word.startswith("on-") and word not in ("on-heat", "on-act")}
    for word in used - plain - {"axis"}:
        assert f".{word} " in style


@pytest.mark.parametrize("width", [320, 500, 740, 1000, 1600])
@pytest.mark.parametrize("name", ["zero3", "vllm", "generate"])
def test_it_is_as_wide_as_asked(name: str, width: int) -> None:
    """And everything drawn is inside; a narrow map has fewer columns instead of smaller cells."""
    picture = drawn(name, width)
    assert picture.get("width") == str(width)
    for one in picture.iter(f"{SVG}rect"):
        assert float(one.get("x", "0")) + float(one.get("width", "0")) <= width
    cells = [one for one in picture.iter(f"{SVG}g") if one.get("class") == "heat"]
    assert len(cells) == (name != "zero3")
    for one in cells:
        assert min(float(r.get("width", "0")) for r in one.iter(f"{SVG}rect")) >= 42


def test_a_server_that_does_not_start_has_no_map() -> None:
    """A server that does not start has no capacity map."""
    assert not [one for one in drawn("too large").iter() if one.get("class") == "heat"]


def test_names_of_users_are_words() -> None:
    """Markup, characters that XML lacks and endless names stay text, in few lines."""
    name = "</text><script>\"'&\x00\ufffe" + "x" * 4000
    found = full_estimate({"model": {**SMALL, "name": name}, "hardware": ON_ONE}, replay=False)
    picture = ElementTree.fromstring(standalone(found, width=400, theme="light"))
    assert not list(picture.iter(f"{SVG}script"))
    assert "</text><script>" in said(picture)
    assert int(picture.get("height") or 0) < 900


@pytest.mark.parametrize("words", ["short", "many words " * 12])
def test_a_paragraph_ends_below_its_last_line(words: str) -> None:
    """Lines are 1.4 times the type apart, and what follows begins below the last one."""
    made = _paragraph(words, 300, 20, "#000000")
    lines = [float(y) for y in re.findall(r' y="([\d.]+)"', "".join(made.lines))]
    assert lines == pytest.approx([20 + 28 * number for number in range(len(lines))])
    assert made.height == pytest.approx(28 * len(lines))
