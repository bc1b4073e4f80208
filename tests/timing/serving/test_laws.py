"""What is true of every server's seconds, whatever the model, the engine, the card and the link."""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import Any

import pytest

from gpu_mem_calculator import catalog
from gpu_mem_calculator.estimates.serving.speed import find_card_rates, timed_replica
from gpu_mem_calculator.runfile.config import GPUConfig
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.serving import server_names
from gpu_mem_calculator.timing.serving.roofline import first_token_time, step_rates
from gpu_mem_calculator.timing.serving.seconds import (
    ServingSeconds,
    TimedReplica,
    first_token_seconds,
    prompt_seconds,
    step_seconds,
)
from gpu_mem_calculator.tools.read import read
from tests.corpus import sampled
from tests.timing.training.test_laws import LESS, figures, same_curves

NEARLY = 0.995  # where a product turns from memory to compute, its share may rise by as much
TOKENS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CARDS = ("h100-80gb-sxm", "a100-80gb-sxm", "b200-180gb-sxm", "rtx-4090", "l4", "mi300x")


def timed(model: str, engine: str, ranks: int = 1, **hardware: Any) -> TimedReplica:
    """A replica; InputError where the engine refuses it."""
    sizes = {"tensor_parallel_size": ranks} if ranks > 1 else {}
    inference = {"engine": engine, **sizes}
    given = {"num_gpus": ranks, **hardware}
    file = read({"model": {"name": model}, "inference": inference, "hardware": given}).file
    resolved = resolve(file, headers=False)
    section = GPUConfig(**given)
    card = find_card_rates(section, ranks, resolved.hardware.gpus_per_node)
    if card is None:
        raise InputError("its rates are not known")
    return timed_replica(resolved, section, card)


def check(seconds: ServingSeconds, where: object) -> None:
    """No part is negative or above the whole, and parts add up."""
    parts = seconds.parts.values()
    assert min(parts) >= 0, where
    assert max(parts) <= seconds.estimate, where
    assert sum(parts) == pytest.approx(seconds.estimate), where
    assert 0 < seconds.low <= seconds.estimate <= seconds.high, where


PRESETS = [row["name"] for row in catalog.rows("index")]


@pytest.mark.parametrize("model", sampled(PRESETS, 3))
def test_servers_of_every_preset(model: str) -> None:
    """Longer prompts, longer contexts and more users never take less time."""
    for number, engine in enumerate(server_names()):
        gpu = CARDS[(PRESETS.index(model) + number) % len(CARDS)]
        try:
            one = timed(model, engine, gpu=gpu)
        except InputError:
            continue
        where = (engine, gpu)
        for users in (1, 16, 256):
            prompts = [prompt_seconds(one, tokens, users) for tokens in TOKENS]
            steps = [step_seconds(one, tokens, users) for tokens in TOKENS]
            first = [first_token_seconds(one, tokens) for tokens in TOKENS]
            for line in (prompts, steps, first):
                for seconds in line:
                    check(seconds, where)
                for short, long in pairwise(line):
                    assert long.estimate >= short.estimate * NEARLY, (*where, users)
        together = [step_seconds(one, 2048, users).estimate for users in USERS]
        for few, many in pairwise(together):
            assert many >= few * LESS, where


@pytest.mark.parametrize("engine", sampled(list(server_names()), 2))
def test_no_server_is_faster_over_a_slower_link(engine: str) -> None:
    """Tensor parallelism over two nodes, by estimate and by bound."""
    rows = [row for row in catalog.rows("links") if row["scope"] == "node"]
    times: dict[tuple[float, ...], tuple[float, ...]] = {}
    for row in rows:
        for nics in (8, 1):
            link = {"interconnect": row["name"], "nics_per_node": nics}
            try:
                one = timed("llama3.1-70b", engine, 16, gpu="h100-80gb-sxm", **link)
            except InputError:
                return
            _, each, _ = step_rates(one.replica, 2048, 16)
            times[row["bandwidth_gb_per_s"], -row["latency_us"], nics] = (
                step_seconds(one, 2048, 16).estimate,
                first_token_seconds(one, 2048).estimate,
                1 / each,
                first_token_time(one.replica.alone, 2048, one.chunk).seconds,
            )
    for (fast, a), (slow, b) in permutations(times.items(), 2):
        if all(x >= y for x, y in zip(fast, slow, strict=True)):
            assert all(y >= x * LESS for x, y in zip(a, b, strict=True)), (fast, slow)


@pytest.mark.parametrize(
    ("model", "ranks"), sampled([("llama3.2-1b", 1), ("llama3.1-8b", 8), ("gpt-oss-20b", 2)], 1)
)
def test_no_card_serves_faster_that_is_slower_in_every_figure(model: str, ranks: int) -> None:
    """Of cards of one generation, which follow the same curves: small products and attention of
    another were measured apart.
    """
    found = {}
    for row in catalog.rows("gpus"):
        try:
            one = timed(model, "vllm", ranks, gpu=row["name"])
        except InputError:
            continue
        found[row["name"]] = one, step_seconds(one, 2048, 16).estimate, row.get("vendor")
    assert len(found) > 50
    for (name, (fast, a, vendor)), (other, (slow, b, others)) in permutations(found.items(), 2):
        pairs = zip(figures(fast.gpu.machine), figures(slow.gpu.machine), strict=True)
        alike = vendor == others and fast.gpu.capability == slow.gpu.capability
        if (
            alike
            and same_curves(fast.gpu.machine, slow.gpu.machine)
            and all(x >= y for x, y in pairs)
        ):
            assert b >= a * LESS, (name, other)
