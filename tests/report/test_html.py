"""The HTML report: one file that is whole, safe and says what the estimate says."""

import re
from functools import cache
from html.parser import HTMLParser
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import STEP, Estimate, full_estimate
from gpu_mem_calculator.estimates.verdict_words import needs_words, result_verdict
from gpu_mem_calculator.ledger.ledger import CACHE, KINDS
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.report.course import MOST
from gpu_mem_calculator.report.html import estimate_page, html_report
from gpu_mem_calculator.report.html_tables import text
from gpu_mem_calculator.report.patterns import PATTERNS, TITLES, defs
from gpu_mem_calculator.report.picture import frame

VOID = {"meta", "br", "hr", "img", "link", "input"}
ON_ONE = {"gpu": "h100-80gb-sxm", "num_gpus": 1}
SMALL = {
    "num_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "max_seq_len": 128,
}
RUNS: dict[str, dict[str, Any]] = {
    "ddp": {
        "model": {
            "name": "custom-1b",
            "num_layers": 24,
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "vocab_size": 32000,
            "max_seq_len": 2048,
        },
        "training": {"batch_size": 2, "dtype": "bf16"},
        "hardware": {"num_gpus": 4, "gpu_memory_gb": 40},
    },
    "tiny": {"model": SMALL, "hardware": ON_ONE},
    "huge": {"model": {"name": "llama3.1-405b"}, "hardware": {**ON_ONE, "num_gpus": 8}},
    "accumulation": {
        "model": SMALL,
        "training": {"gradient_accumulation_steps": 4},
        "hardware": ON_ONE,
    },
    "lora": {
        "model": {"name": "llama3.1-8b"},
        "training": {"seq_len": 512, "precision": "bf16_pure", "lora": {"r": 16}},
        "hardware": ON_ONE,
    },
    "moe": {
        "model": {"name": "deepseek-v2-lite"},
        "training": {"seq_len": 512},
        "hardware": ON_ONE,
    },
    "zero3": {
        "model": SMALL,
        "training": {"gradient_accumulation_steps": 2},
        "engine": {"type": "deepspeed", "zero_stage": 3, "offload_optimizer": "cpu"},
        "hardware": {**ON_ONE, "num_gpus": 2},
    },
    "pipeline": {
        "model": SMALL,
        "training": {"gradient_accumulation_steps": 4},
        "parallelism": {"pipeline_parallel_size": 2},
        "engine": {"type": "megatron_lm"},
        "hardware": {**ON_ONE, "num_gpus": 2},
    },
}


@cache
def made(name: str) -> tuple[Estimate, str]:
    """An estimate and its report, made once."""
    found = full_estimate(RUNS[name])
    return found, html_report(found)


class Reader(HTMLParser):
    """Checks that every tag is closed in its turn, and keeps tags, ids and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember a tag until it is closed."""
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag that closes itself."""
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Only the tag that was opened last may close."""
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Keep the text."""
        self.words.append(data)


def read(page: str) -> Reader:
    """Parse a page."""
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


def plain(page: str) -> str:
    """A page's text in one line."""
    return " ".join("".join(read(page).words).split())


def areas(picture: str) -> dict[str, list[tuple[float, float]]]:
    """The bottom and the top of each kind's area at each column of a picture."""
    found: dict[str, list[tuple[float, float]]] = {}
    for kind, path in re.findall(r'class="slice" data-kind="(\w+)" d="([^"]+)"', picture):
        if path.count("M") > 1 or "h" in path:  # bars
            bars = re.findall(r"M[\d.]+ ([\d.]+)V([\d.]+)h", path)
            found[kind] = [(float(low), float(high)) for low, high in bars]
            continue
        levels = [float(y) for y in re.findall(r"V([\d.]+)H", path)]
        half = len(levels) // 2
        found[kind] = list(zip(levels[half:][::-1], levels[:half], strict=True))
    return found


def wide_picture(page: str) -> str:
    """The picture for wide screens."""
    return page[page.index('<div class="wide">') : page.index('<div class="narrow">')]


@pytest.mark.parametrize("name", RUNS)
def test_page_is_balanced(name: str) -> None:
    """Every tag that is opened is closed, in order."""
    assert read(made(name)[1]).open == []


@pytest.mark.parametrize("name", RUNS)
def test_ids_are_unique_and_references_lead_somewhere(name: str) -> None:
    """No id appears twice, and every label, link and fill points at one that exists."""
    _, page = made(name)
    tags = read(page).tags
    ids = [a["id"] for _, a in tags if "id" in a]
    assert len(ids) == len(set(ids))
    wanted = [w for _, a in tags for w in (a.get("aria-labelledby") or "").split()]
    wanted += [(a.get("href") or "")[1:] for t, a in tags if t == "a"]
    wanted += re.findall(r"url\(#([\w-]+)\)", page)
    assert wanted
    assert set(wanted) <= set(ids)


@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_loaded_from_elsewhere(name: str) -> None:
    """The page needs no network: no address but SVG's name, no source, no script."""
    _, page = made(name)
    addresses = set(re.findall(r"\w+://[^\"' )<]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    tags = read(page).tags
    assert not {t for t, _ in tags} & {"script", "link", "img", "iframe", "object", "embed", "base"}
    assert not [a for _, a in tags if "src" in a or any(k.startswith("on") for k in a)]
    assert "@import" not in page


@pytest.mark.parametrize("name", RUNS)
def test_verdict_says_what_the_result_says(name: str) -> None:
    """The first figures are what the card must have and what it has."""
    estimate, page = made(name)
    result = estimate.result
    said = plain(page)
    needs = needs_words(result_verdict(estimate.result))
    assert f"needs {needs} of {result.gpu_memory_bytes / GIB:,.1f} GiB per GPU" in said
    sign = {"fits": "✓ fits", "cannot_tell": "? cannot tell", "does_not_fit": "✗ does not fit"}
    assert [word for word in sign if sign[word] in said] == [result.verdict]


@pytest.mark.parametrize("name", RUNS)
def test_peak_label_equals_the_result(name: str) -> None:
    """The picture marks the peak with the result's title and size."""
    estimate, page = made(name)
    result = estimate.result
    card = (result.allocated_bytes + result.outside_torch_bytes) / GIB
    label = f"peak {card:,.2f} GiB: {result.peak_instant}"
    assert f'text-anchor="middle">{label}</text>' in page


@pytest.mark.parametrize("name", RUNS)
def test_heights_at_the_peak_add_up(name: str) -> None:
    """The slices of the peak stand on each other and reach allocated plus outside torch."""
    estimate, page = made(name)
    result = estimate.result
    shown = estimate_page(estimate)
    exact = result.allocated_bytes + result.outside_torch_bytes
    assert shown.columns[shown.peak].bytes == exact == max(one.bytes for one in shown.columns)
    place = frame(shown.columns, result.gpu_memory_bytes, width=1000, wide=True)
    level = place.bottom
    for each in areas(wide_picture(page)).values():
        assert len(each) == len(shown.columns)
        low, high = each[shown.peak]
        assert low == pytest.approx(level, abs=0.011)
        level = high
    assert place.bottom - level == pytest.approx(place.height * exact / place.top_bytes, abs=0.02)


@pytest.mark.parametrize("name", RUNS)
def test_every_instant_has_a_column_and_a_row(name: str) -> None:
    """The picture and its table have each layer of the step, forward and back, in order."""
    estimate, page = made(name)
    titles = [one.title for one in estimate_page(estimate).columns]
    layers = estimate.result.stages[estimate.result.busiest_stage].num_layers
    peak = estimate.result.peak_instant
    for phase in ("forward", "backward") if 2 * layers + 8 <= MOST else ():
        for layer in range(1, layers + 1):
            title = f"{phase}, layer {layer} of {layers}"
            assert any(one.startswith(title) for one in titles) or phase in peak
    assert titles[-1].startswith("optimizer step") or titles[-1] == peak
    assert wide_picture(page).count('class="hit"') == len(titles)
    table = page[page.index("at each instant of a step</caption>") :]
    rows = re.findall(r'<th scope="row">(.*?)</th>', table[: table.index("</table>")])
    assert rows == [text(title) for title in titles]


@pytest.mark.parametrize("name", RUNS)
def test_breakdown_adds_up_to_the_total(name: str) -> None:
    """The exact bytes of the breakdown's rows sum to its last row."""
    _, page = made(name)
    table = page[page.index('id="h-parts"') :]
    table = table[: table.index("</table>")]
    sizes = [int(n.replace(",", "")) for n in re.findall(r'title="([\d,]+) bytes"', table)]
    assert sum(sizes[:-1]) == sizes[-1] > 0


@pytest.mark.parametrize("name", RUNS)
def test_ledger_lists_every_entry_alive_at_the_peak(name: str) -> None:
    """Each entry's exact bytes and source are on the page."""
    estimate, page = made(name)
    instant = estimate.ledger.peak_instant(phases=STEP)
    listed = page[page.index('id="h-ledger"') :]
    alive = [e for e in estimate.ledger.entries if int(e.at(instant.name))]
    assert alive
    for entry in alive:
        assert text(entry.name) in listed
        assert f'title="{int(entry.at(instant.name)):,} bytes"' in listed
        assert text(entry.source) in listed


@pytest.mark.parametrize("name", RUNS)
def test_nothing_has_a_style_of_its_own(name: str) -> None:
    """All looks are in the style sheet, as a strict page asks."""
    assert not [tag for tag, attributes in read(made(name)[1]).tags if "style" in attributes]


def test_legend_has_every_kind() -> None:
    """Each kind has a title in the legend, a colour and a pattern; the cache is serving's own."""
    _, page = made("tiny")
    legend = page[page.index('<ul class="legend">') :]
    legend = legend[: legend.index("</ul>")]
    assert set(KINDS) == set(TITLES) == set(PATTERNS)
    for kind in KINDS:
        assert (TITLES[kind] in legend) == (kind != CACHE)
        assert f".k-{kind} {{" in page
        assert re.search(rf"--{kind}: light-dark\(#\w{{6}}, #\w{{6}}\);", page)
        assert f'id="p-{kind}"' in defs()


def test_user_text_is_escaped_everywhere() -> None:
    """A model's name cannot close a tag, open one, or leave an attribute."""
    name = "</title><script>alert(1)</script>\"'><img src=x onerror=y>&\x00\ud800$title"
    page = html_report(full_estimate({"model": {**SMALL, "name": name}, "hardware": ON_ONE}))
    reader = read(page)
    assert reader.open == []
    assert not {tag for tag, _ in reader.tags} & {"script", "img"}
    assert page.count("&lt;/title&gt;&lt;script&gt;") >= 3  # title, heading, run file
    page.encode()


def test_run_file_is_there_to_copy() -> None:
    """The run file on the page gives the same estimate again."""
    import json

    estimate, page = made("ddp")
    block = page[page.index('<pre class="all"') :]
    data = json.loads(plain(block[: block.index("</pre>") + 6]))
    assert full_estimate(data).result == estimate.result


def test_what_was_not_replayed_is_said() -> None:
    """Numbers without a value are called so and never shown as 0; the verdict says so, too."""
    _, page = made("ddp")
    assert "not replayed" not in page
    alone = html_report(full_estimate(RUNS["ddp"], replay=False))
    assert alone.count(">not replayed<") == 5
    assert "allocator was not replayed" in alone
    assert "allocator</th>" not in alone
    assert "? cannot tell" in alone
    assert "✓" not in alone


@pytest.mark.parametrize("name", RUNS)
def test_needs_beyond_the_peak_is_the_allocators(name: str) -> None:
    """The breakdown has a row for what torch needs above its tensors, and one for the margin."""
    estimate, page = made(name)
    result = estimate.result
    assert result.needs_bytes is not None
    rest = result.needs_bytes - result.allocated_bytes
    assert rest >= 0
    for head, size in (("fragmentation</th>", rest), ("margin</th>", result.margin_bytes)):
        assert (head in page) == (size > 0)
        if size:
            row = page[page.index(head) :]
            assert f'title="{size:,} bytes"' in row[: row.index("</tr>")]


@pytest.mark.parametrize(
    ("beyond", "tone", "mark"), [(2, "fits", False), (0.5, "unsure", True), (-1, "fails", True)]
)
def test_a_tight_run_has_its_own_tone(beyond: float, tone: str, mark: bool) -> None:
    """Cards that have margins beyond what the run needs; the gauge marks a limit that is passed."""
    result = made("tiny")[0].result
    assert result.needs_bytes is not None
    assert result.margin_bytes is not None
    has = result.needs_bytes + result.outside_torch_bytes + int(beyond * result.margin_bytes)
    card = {**ON_ONE, "gpu_memory_bytes": has}
    page = html_report(full_estimate({**RUNS["tiny"], "hardware": card}))
    assert f'<div class="verdict {tone}">' in page
    assert ('<rect class="mark"' in page) == mark


def test_libraries_on_the_host_are_listed() -> None:
    """With their source, as an entry in host RAM."""
    estimate, page = made("tiny")
    name, size, source = estimate.resolved.host_libraries
    listed = page[page.index('id="h-ledger"') :]
    row = listed[listed.index(name) :]
    row = row[: row.index("</tr>")]
    assert "in host RAM" in row
    assert f'title="{size:,} bytes"' in row
    assert text(source) in row


def test_pipeline_stages_are_listed() -> None:
    """With several stages each has its row; with one there is no such section."""
    estimate, page = made("pipeline")
    assert len(estimate.result.stages) == 2
    table = page[page.index('id="h-stages"') :]
    table = table[: table.index("</table>")]
    for stage in estimate.result.stages:
        assert f'title="{stage.allocated_bytes:,} bytes"' in table
    assert f"{estimate.result.busiest_stage}, the busiest" in table
    assert "h-stages" not in made("ddp")[1]
