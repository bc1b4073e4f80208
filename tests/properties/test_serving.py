"""Whatever is served, on whatever cards: a result that makes sense, or sentences."""

from __future__ import annotations

import json
import math
from functools import cache
from html.parser import HTMLParser
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gpu_mem_calculator import catalog
from gpu_mem_calculator.advice.serving.answers import answers
from gpu_mem_calculator.estimates.calculator import Estimate, full_estimate
from gpu_mem_calculator.ledger.ledger import GPU
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.report.data import answers_data
from gpu_mem_calculator.report.encode import to_json, to_yaml
from gpu_mem_calculator.report.serving.html import serving_page
from gpu_mem_calculator.run.served import WEIGHTS
from gpu_mem_calculator.run.weights.rank_weights import ROUNDED
from gpu_mem_calculator.runfile.inference_config import ServingResult
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.serving import server, server_names

from .serving_choices import CARDS, CHOICES, FIXED, NAMED, VERSIONS

QUICK = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
POOLS = tuple(name for name in server_names() if server(name).serve is not None)


@cache
def presets() -> tuple[str, ...]:
    """Every preset."""
    return tuple(catalog.names("index"))


def served(
    engine: str, model: str, card: dict[str, Any], ranks: int = 1, **keys: Any
) -> dict[str, Any]:
    """A run file of a server."""
    inference = {"engine": engine, **keys}
    hardware = dict(card)
    if "tensor_parallel_size" in server(engine).options:
        inference["tensor_parallel_size"] = ranks
    else:
        hardware["num_gpus"] = ranks
    return {"model": {"name": model}, "inference": inference, "hardware": hardware}


def tried(run: dict[str, Any]) -> Estimate:
    """The estimate; an example that is refused, in sentences, is not one."""
    try:
        return full_estimate(run, replay=False)
    except InputError as error:
        check_sentences(error)
    assume(False)
    raise AssertionError


def check_sentences(error: InputError) -> None:
    """One line each, and not a page."""
    assert error.problems
    for problem in error.problems:
        assert problem.strip()
        assert "\n" not in problem
        assert len(problem) < 400


def check(estimate: Estimate) -> None:
    """Figures that make sense, and parts that add up."""
    result = estimate.result
    assert math.isfinite(result.total_memory_per_gpu_gb)
    assert result.total_memory_per_gpu_gb >= 0
    for one in estimate.served:
        assert all(item.bytes >= 0 for item in one.items)
        assert "\n" not in one.problem
        assert one.needs_bytes >= 0
    if result.serving is None:
        return
    check_figures(estimate, result.serving)


def check_figures(estimate: Estimate, found: ServingResult) -> None:
    """What nvidia-smi shows is the sum of the figures, and not more than there is."""
    result, own = estimate.result, estimate.served[estimate.result.busiest_stage]
    figures = [
        found.weights_bytes,
        found.activation_bytes,
        found.non_torch_bytes,
        found.graph_bytes,
        found.kv_pool_bytes,
    ]
    assert min(*figures, found.kv_tokens, found.kv_bytes_per_token) >= 0
    assert found.max_concurrency >= 0
    assert sum(figures) == sum(item.bytes for item in own.items if item.place == GPU)
    assert result.device_bytes == sum(figures) + result.outside_torch_bytes
    assert result.total_memory_per_gpu_gb == pytest.approx(result.device_bytes / GIB, rel=1e-12)
    none = found.users == 0 and found.kv_tokens > 0  # not one whole user
    enough = not none and found.users >= (found.users_asked or 0)
    assert result.fits_on_gpu == (enough and not found.problem)
    assert (result.headroom_bytes >= 0) == result.fits_on_gpu
    assert 0 <= found.longest_context <= found.max_seq_len
    if found.problem:
        return
    assert result.device_bytes <= estimate.resolved.hardware.card_bytes
    assert found.command
    if own.sequence_bytes(found.max_seq_len):
        assert found.kv_tokens > 0 or not found.kv_bytes_per_token


@st.composite
def runs(draw: st.DrawFn, engines: tuple[str, ...] = server_names()) -> dict[str, Any]:
    """A preset on an engine, with a few of its options."""
    engine = draw(st.sampled_from(engines))
    known = {key: CHOICES[key] for key in server(engine).options if key in CHOICES}
    keys = draw(st.lists(st.sampled_from(sorted(known)), max_size=3, unique=True))
    options = {key: draw(st.sampled_from(known[key])) for key in keys}
    if draw(st.booleans()):
        options["engine_version"] = draw(st.sampled_from(VERSIONS[engine]))
    model, card = draw(st.sampled_from(presets())), draw(st.sampled_from(CARDS))
    return served(engine, model, card, draw(st.sampled_from([1, 1, 2, 4, 8])), **options)


@st.composite
def fixed(draw: st.DrawFn, engines: tuple[str, ...] = POOLS) -> dict[str, Any]:
    """A server whose own choices are made, so that one change is one change."""
    engine = draw(st.sampled_from(engines))
    options = {key: value for key, value in FIXED.items() if key in server(engine).options}
    model, card = draw(st.sampled_from(presets())), draw(st.sampled_from(NAMED))
    return served(engine, model, card, draw(st.sampled_from([1, 2, 4])), **options)


def changed(run: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """The same with other keys of the inference section."""
    return {**run, "inference": {**run["inference"], **keys}}


@given(runs())
@settings(QUICK, max_examples=60)
def test_a_server_gives_figures_that_add_up_or_sentences(run: dict[str, Any]) -> None:
    """Never a traceback, never a negative figure, never more than the card has."""
    check(tried(run))


@given(runs(POOLS))
@QUICK
def test_the_run_of_a_result_gives_the_result_again(run: dict[str, Any]) -> None:
    """`result.run` is a run file."""
    first = tried(run)
    assert full_estimate(json.loads(json.dumps(first.result.run))).result == first.result


@given(runs(POOLS))
@QUICK
def test_the_longest_context_fits_and_a_longer_one_does_not(run: dict[str, Any]) -> None:
    """By the bytes that a sequence takes of the pool."""
    for one in tried(run).served:
        most = one.longest_context
        assert most == 0 or one.sequence_bytes(most) <= one.room_bytes
        if most < one.max_seq_len:
            assert one.sequence_bytes(most + 1) > one.room_bytes


@given(fixed(), st.sampled_from([2, 4]))
@QUICK
def test_ranks_hold_at_least_the_whole_model(run: dict[str, Any], ranks: int) -> None:
    """Parts of the weights add up to all of them, or more where ranks repeat some."""
    assume("tensor_parallel_size" in server(run["inference"]["engine"]).options)
    whole, part = (weights(tried(changed(run, tensor_parallel_size=tp))) for tp in (1, ranks))
    assert whole <= ranks * part
    assert part <= whole


def weights(estimate: Estimate) -> int:
    """Of a rank, without what torch's allocator adds."""
    return sum(
        item.bytes
        for item in estimate.served[0].items
        if item.figure == WEIGHTS and item.name != ROUNDED
    )


@given(fixed())
@QUICK
def test_a_server_starts_where_it_needs_no_more_and_not_on_less(run: dict[str, Any]) -> None:
    """`needs_bytes` serves one sequence of max_seq_len; 3 % less does not."""
    if "gpu_memory_utilization" in run["inference"]:
        run = changed(run, gpu_memory_utilization=0.6)
    if run["inference"]["engine"] == "llamacpp":  # which else keeps as many layers as it can
        run = changed(run, n_gpu_layers=999)
    found = tried(run)
    needs = found.result.needs_bytes
    assert needs is not None
    if run["inference"]["engine"] == "sglang":  # gaps between buffers differ with each pool
        assume(found.served[0].figure(WEIGHTS) > 4 * GIB)
    assert serves(run, int(1.01 * needs) + 2**25)
    assert not serves(run, int(0.97 * needs))


def serves(run: dict[str, Any], memory: int) -> bool:
    """Whether a card of so many bytes serves one sequence of the longest length, all of it."""
    found = full_estimate({**run, "hardware": {**run["hardware"], "gpu_memory_bytes": memory}})
    return found.result.fits_on_gpu and not any(
        one.problem or one.longest_context < one.max_seq_len for one in found.served
    )


class Reader(HTMLParser):
    """Tags and texts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Count it."""
        self.tags.append(tag)


@given(runs())
@settings(QUICK, max_examples=10)
def test_data_and_pages_can_be_read(run: dict[str, Any]) -> None:
    """JSON without NaN or Infinity, the same in YAML, and a page."""
    estimate = tried(run)
    found = answers(estimate)
    data = answers_data(estimate, found)
    text = to_json(data)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    assert json.loads(text, parse_constant=refuse) == yaml.safe_load(to_yaml(data))
    reader = Reader()
    reader.feed(serving_page(estimate, found))
    assert "svg" in reader.tags


@pytest.mark.parametrize("engine", server_names())
def test_what_a_user_typed_is_never_markup(engine: str) -> None:
    """Names of models and engines stay text."""
    evil = "<script>alert(1)</script>&\"'"
    config = catalog.preset_config("llama3.2-1b.json")
    run = {"model": {"name": evil, "config": config}, "inference": {"engine": engine}}
    estimate = full_estimate(run, replay=False)
    page = serving_page(estimate, answers(estimate))
    reader = Reader()
    reader.feed(page)
    assert "<script>alert" not in page
    assert reader.tags.count("script") == page.count("<script>")
