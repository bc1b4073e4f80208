"""Scores the estimated seconds of servers against published benchmarks, and estimates what engines
add to their kernels.

Each figure is predicted with constants from the other sources only (leave one source out).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import product
from math import log, sqrt
from statistics import median

import speed
from msgspec import Struct
from msgspec.structs import replace

from gpu_mem_calculator.estimates.serving.speed import find_card_rates, timed_replica
from gpu_mem_calculator.run.cuda.runtimes import ROCM
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.timing.serving.measured import (
    ALONE,
    PROMPTS,
    TOGETHER,
    V0,
    EngineCosts,
    SecondsInterval,
)
from gpu_mem_calculator.timing.serving.seconds import TimedReplica, prompt_seconds, step_seconds
from gpu_mem_calculator.tools.read import read

FREE = EngineCosts()
STEPS = (0.0, 0.0002, 0.0005, 0.001, 0.0015, 0.002, 0.003)
SEQUENCES = (0.0, 0.000005, 0.00001, 0.00002, 0.00004, 0.00008)
REQUESTS = (0.0, 0.001, 0.002, 0.005)  # vLLM serves gpt-oss-20b on an H100 in 4.7 ms a request
LAYERS = (0.0004, 0.0005, 0.0006, 0.0007, 0.0008, 0.0009)
PROMPT_SHARES = (0.4, 0.5, 0.6, 0.8, 1.0)
AMD_SHARES = (0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.8, 1.0)
V1_FIRST = (0, 8)
FAR = log(2)
ALIKE = 0.01  # errors that differ less are the same; then the engine that adds least is taken
UNSEEN = EngineCosts(step=0.001, sequence=0.00002, request=0.005)


class Figure(Struct, frozen=True, kw_only=True):
    """A figure with the seconds of its kernels: one pass over its prompts, one decode step."""

    compared: speed.Compared
    engine: str
    prompt: float
    step: float
    sequences: float
    copies: int
    layers: int
    amd: bool

    @property
    def source(self) -> str:
        """Who published it."""
        return str(self.compared.row["source"])

    def ratio(self, costs: EngineCosts, amd_share: float = 1.0) -> float:
        """Estimated tokens per second over measured ones."""
        row, many = self.compared.row, self.sequences
        share = amd_share if self.amd else 1.0
        step = max(self.step / share, costs.layer * self.layers)
        step += costs.step + costs.sequence * many
        first = max(self.prompt / share / costs.prompt_share, costs.layer * self.layers)
        first += costs.step + costs.request * many
        new, prompt = row["new"], max(1, row["prompt"])
        tokens, seconds = new + (prompt if row["counted"] == "both" else 0), first
        if row["what"] == "prefill":
            tokens = prompt
        elif row["what"] == "decode":
            tokens, seconds = 1, step
        else:
            seconds += (new - 1) * step
        return float(self.copies * many * tokens / seconds / row["tokens_per_second"])


@cache
def figures() -> tuple[Figure, ...]:
    """Every figure that is believed."""
    return tuple(map(_figure, speed.compared()))


def _figure(compared: speed.Compared) -> Figure:
    row = compared.row
    file = read(row["config"]).file
    resolved = resolve(file)
    card = find_card_rates(file.hardware, int(resolved.run.mesh.tp))
    assert card is not None
    timed = replace(timed_replica(resolved, file.hardware, card), costs=FREE, share=1.0)
    copies, batch = int(resolved.run.mesh.dp), float(row["batch"])
    if batch < copies:
        timed, copies = replace(timed, replica=timed.replica.alone), 1
    many = batch / copies
    if row["what"] == "full load":
        middle = row["prompt"] + row["new"] // 2
        many = min(many, speed.room(timed.replica, resolved.run.card_bytes, middle))
    return Figure(
        compared=compared,
        engine=_costs_name(compared),
        prompt=_prompts(timed, max(1, row["prompt"]), many),
        step=step_seconds(timed, row["prompt"] + row["new"] / 2, many).estimate,
        sequences=many,
        copies=copies,
        layers=sum(stage.layers for stage in timed.replica.stages),
        amd=resolved.hardware.runtime == ROCM,
    )


def _prompts(timed: TimedReplica, prompt: int, sequences: float) -> float:
    """Seconds of the prompts of a batch; a batch of one waits for every stage."""
    alone = replace(timed, replica=replace(timed.replica, overlapped=sequences > 1))
    return float(prompt_seconds(alone, prompt, sequences).estimate)


def _costs_name(compared: speed.Compared) -> str:
    """The engine in the table of costs. Versions that are a date are of 2024."""
    if compared.engine != "vllm":
        return compared.engine
    numbers = str(compared.row["version"]).split(".")
    is_v1 = numbers[0].isdigit() and (int(numbers[0]), int(numbers[1])) >= V1_FIRST
    return "vllm" if is_v1 else V0


def error(found: Iterable[Figure], costs: EngineCosts, amd_share: float) -> float:
    """Mean error of the logarithm; one beyond a factor of two counts as two, and a source with
    many figures by the root of their number.
    """
    groups: dict[str, list[float]] = {}
    for one in found:
        wrong = min(FAR, abs(log(one.ratio(costs, amd_share))))
        groups.setdefault(one.source, []).append(wrong)
    weights = [sqrt(len(values)) for values in groups.values()]
    means = (sum(values) / len(values) for values in groups.values())
    return sum(w * mean for w, mean in zip(weights, means, strict=True)) / max(1.0, sum(weights))


def choices(engine: str) -> list[EngineCosts]:
    """The constants that are tried for an engine."""
    if engine == "transformers":
        return [EngineCosts(layer=layer) for layer in LAYERS]
    if engine == "llamacpp":
        return [EngineCosts(step=s, prompt_share=p) for s, p in product(STEPS, PROMPT_SHARES)]
    return [
        EngineCosts(step=s, sequence=q, request=r)
        for s, q, r in product(STEPS, SEQUENCES, REQUESTS)
    ]


def fit_amd(found: Sequence[Figure]) -> float:
    """The share of kernels' speed on AMD's cards."""
    amd = [one for one in found if one.amd]
    return min(AMD_SHARES, key=lambda share: error(amd, UNSEEN, share))


def fit_costs(found: Sequence[Figure], engine: str, amd_share: float) -> EngineCosts:
    """The constants of an engine with the least error; of an unseen engine those of servers."""
    own = [one for one in found if one.engine == engine and _tells(one)]
    if not own:
        return EngineCosts(layer=0.0007) if engine == "transformers" else UNSEEN
    errors = [(error(own, costs, amd_share), costs) for costs in choices(engine)]
    least = min(wrong for wrong, _ in errors)
    return min((c for wrong, c in errors if wrong <= least + ALIKE), key=_added)


def _added(costs: EngineCosts) -> tuple[float, float]:
    """Host seconds of a step of 64 users, a quarter of whom have a new prompt; sort key."""
    users = 64
    step = costs.step + users * costs.sequence + users / 4 * costs.request
    return step + costs.layer, -costs.prompt_share


def _tells(one: Figure) -> bool:
    """Whether a figure tells what its engine adds, because its kernels follow the curves.

    Those of AMD's cards do not, nor those of DeepSeek-V3 a month after it was published, nor
    SGLang's on an H20: the larger the model, the more seconds are missing there.
    """
    config = one.compared.row["config"]
    if one.amd or config["model"]["name"] == "deepseek-v3":
        return False
    return (one.engine, config["hardware"]["gpu"]) != ("sglang", "h20-96gb-sxm")


@cache
def all_costs() -> tuple[dict[str, EngineCosts], float]:
    """The constants from all sources."""
    share = fit_amd(figures())
    names = sorted({one.engine for one in figures()})
    return {name: fit_costs(figures(), name, share) for name in names}, share


@cache
def left_out_ratios() -> tuple[tuple[Figure, float], ...]:
    """Each figure with its ratio by constants from other sources."""
    found = []
    for source in dict.fromkeys(one.source for one in figures()):
        others = [one for one in figures() if one.source != source]
        share = fit_amd(others)
        costs = {
            name: fit_costs(others, name, share)
            for name in {one.engine for one in figures() if one.source == source}
        }
        found += [
            (one, one.ratio(costs[one.engine], share)) for one in figures() if one.source == source
        ]
    return tuple(found)


def by_share(one: Figure) -> float:
    """The ratio of the bound times the median share of the other sources."""

    def shares(same: Callable[[Figure], bool]) -> list[float]:
        return [two.compared.share for two in figures() if two.source != one.source and same(two)]

    kind, engine = one.compared.regime, one.compared.engine
    own = shares(lambda two: (two.compared.regime, two.compared.engine) == (kind, engine))
    share = median(own or shares(lambda two: two.compared.regime == kind))
    return share / one.compared.share


def quantile(values: Iterable[float], part: float) -> float:
    """The value below which a part of the values is."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


TAIL = 0.07  # of the figures on each side; then 80 % of those of a source left out are inside


def intervals(ratios: Iterable[tuple[Figure, float]]) -> dict[str, SecondsInterval]:
    """Measured over estimated seconds, by kind, without the tails."""
    kinds: dict[str, list[float]] = {PROMPTS: [], ALONE: [], TOGETHER: []}
    for one, ratio in ratios:
        kinds[one.compared.regime].append(ratio)
    return {
        kind: SecondsInterval(*(round(quantile(values, part), 2) for part in (TAIL, 1 - TAIL)))
        for kind, values in kinds.items()
    }


def inside(found: Iterable[tuple[Figure, float]]) -> float:
    """The part of figures inside the interval of the other sources."""
    results = []
    for one, ratio in found:
        interval = intervals_without(one.source)[one.compared.regime]
        results.append(interval.low <= ratio <= interval.high)
    return sum(results) / max(1, len(results))


@cache
def intervals_without(source: str) -> dict[str, SecondsInterval]:
    """The intervals of all other sources."""
    return intervals(pair for pair in left_out_ratios() if pair[0].source != source)
