"""Plans for training: a question's space is searched, and the best set-ups are estimated in full.

A question for the most or the least of something becomes one for the fastest set-up. Where nothing
fits, the smallest changes of the question are found with which something would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from .... import catalog
from ....models.arch.blocks import Moe
from ....run.run import DEFAULT_OPTIMIZER
from ....runfile.config import ModelConfig
from ....runfile.find_model.model_source import find_model
from ....runfile.resolve.hardware import find_hardware
from ....runfile.resolve.training_defaults import default_sequence
from ....runfile.text.errors import InputError
from ....tools.read import read
from ....training.engines import engine_names
from ....training.knob import IMPLEMENTATION, LOSS
from ....training.optimizers import OPTIMIZERS
from ..answers.plans import Plan, Plans, SearchedSpace, SmallestChange, pareto_front
from ..answers.question import (
    FASTEST,
    FEWEST_GPUS,
    LARGEST_BATCH,
    LARGEST_MODEL,
    LONGEST_CONTEXT,
    PlanQuestion,
)
from .axes import (
    BATCH,
    DERIVED,
    KEYS,
    MOST_BATCH,
    NUMERIC,
    OVERLAPPED,
    PIPE,
    RANK,
    axis_values,
    engine_axes,
)
from .full import full_plan
from .limits import plan_limits
from .reasons import explained
from .search import Found, SetUp, named_settings, search
from .structures import Sizes, Structure, by_program, choices, find_structure, run_file

SIZE_KEYS = {key: axis for axis, key in (*KEYS.items(), *DERIVED.items())}


def base_file(question: PlanQuestion) -> dict[str, Any]:
    """What every set-up of a question has: model, hardware, sequence and what is fixed."""
    base: dict[str, Any] = {"model": question.model, "hardware": dict(question.hardware)}
    training: dict[str, Any] = {}
    if question.seq_len is not None:
        training["seq_len"] = question.seq_len
    base["training"] = training
    for key, value in question.fix.items():
        if key not in SIZE_KEYS:
            section, _, name = key.partition(".")
            base.setdefault(section, {})[name] = value
    return base


def structures(question: PlanQuestion, refused: list[str] | None = None) -> Iterator[Structure]:
    """Every structure that an engine of the question accepts; `refused` gets why others are not."""
    base, why = base_file(question), [] if refused is None else refused
    file = read({k: v for k, v in base.items() if k in ("model", "hardware", "training")})
    arch, hardware = find_model(file.model).arch, find_hardware(file.hardware, None)
    seq = question.seq_len or default_sequence(arch.max_seq_len, file.model.max_seq_len)
    batch = question.sequences
    base["hardware"]["num_gpus"] = hardware.num_gpus
    values = axis_values(
        arch,
        num_gpus=hardware.num_gpus,
        gpus_per_node=hardware.gpus_per_node,
        seq=seq,
        global_batch=batch,
    )
    given, chosen = _given(question)
    has_experts = any(isinstance(layer.mlp, Moe) for layer, _, _ in arch.runs)
    values |= {axis: given[axis] for axis in given if axis in NUMERIC}
    derived = {axis: tuple(given[axis]) for axis in given if axis in DERIVED}
    for engine in question.engines or engine_names():
        if not _has_sizes(engine, given):
            continue
        accepted: list[Sizes] = []
        optimizer = str(base["training"].get("optimizer", DEFAULT_OPTIMIZER))
        for settings in choices(engine, chosen, experts=has_experts, optimizer=optimizer):
            found = find_structure(base, arch, engine, settings, values, batch, accepted, why)
            if found is not None:
                yield from by_program(replace(found, derived=derived), arch)


def _has_sizes(engine: str, given: dict[str, list[int]]) -> bool:
    """Whether an engine has every size that is given, or may leave it at 1."""
    has = (*engine_axes(engine).sizes, BATCH, *DERIVED)
    return all(axis in has or 1 in values for axis, values in given.items())


def _given(question: PlanQuestion) -> tuple[dict[str, list[int]], dict[str, list[Any]]]:
    """Values of sizes, and of choices, that the question gives."""
    numeric: dict[str, list[int]] = {}
    choose: dict[str, list[Any]] = {}
    every = map(engine_axes, engine_names())
    choices = {key for axes in every for key in (*axes.choices, *axes.of_experts, OVERLAPPED)}
    for key, values in [*((k, [v]) for k, v in question.fix.items()), *question.vary.items()]:
        if key in SIZE_KEYS:
            numeric[SIZE_KEYS[key]] = [int(value) for value in values]
        elif key in choices or key in question.vary:
            choose[key] = list(values)
    return numeric, choose


def searched_axes(structures: list[Structure]) -> dict[str, list[Any]]:
    """Each axis with the values that some structure has."""
    axes: dict[str, dict[Any, None]] = {}
    for structure in structures:
        for key, value in structure.settings.items():
            axes.setdefault(key, {})[value] = None
        for names, rows in ((PIPE, structure.pipes), (RANK, structure.ranks)):
            for row in rows:
                for axis, size in zip(names, row, strict=True):
                    axes.setdefault(KEYS[axis], {})[size] = None
    return {key: list(values) for key, values in axes.items()}


GPU_COUNTS = (1, 2, 4, 8, *(8 << n for n in range(1, 12)))  # up to 16,384
CONTEXTS = tuple(1024 << n for n in range(11))  # up to 1 M tokens
BATCHES = tuple(1 << n for n in range(MOST_BATCH.bit_length()))  # micro-batches of one GPU
EIGHTHS = range(8, 16)  # of the longest sequence that fits, up to twice as long

Fits = Callable[[PlanQuestion], bool]


def with_goal(question: PlanQuestion, fits: Fits) -> PlanQuestion:
    """The question whose answer is the fastest set-up at the goal; `fits` decides for each."""
    plain = replace(question, goal=FASTEST)
    if question.goal == FEWEST_GPUS:
        return _first_that_fits([_on_gpus(plain, count) for count in GPU_COUNTS], fits)
    if question.goal == LONGEST_CONTEXT:
        longer = [replace(plain, seq_len=length) for length in CONTEXTS]
        found = _last_that_fits(longer, fits).seq_len or CONTEXTS[0]
        finer = [replace(plain, seq_len=found * eighths // 8) for eighths in EIGHTHS]
        return _last_that_fits(finer, fits)
    if question.goal == LARGEST_BATCH:
        gpus = int(question.hardware["num_gpus"])
        larger = [
            replace(
                plain,
                global_batch=gpus * size,
                fix={**plain.fix, "training.gradient_accumulation_steps": 1},
            )
            for size in BATCHES
        ]
        return _last_that_fits(larger, fits)
    assert question.goal == LARGEST_MODEL
    return _last_that_fits([replace(plain, model={"name": n}) for n in _models()], fits)


def _on_gpus(question: PlanQuestion, count: int) -> PlanQuestion:
    batch = max(question.global_batch or count, count)
    return replace(
        question,
        hardware={**question.hardware, "num_gpus": count},
        global_batch=-(-batch // count) * count,
    )


def _models() -> list[str]:
    """Presets that can be trained, smallest first."""
    rows = [row for row in catalog.rows("index") if row.get("num_parameters")]
    names = [row["name"] for row in sorted(rows, key=lambda row: int(row["num_parameters"]))]
    return [name for name in names if find_model(ModelConfig(name=name)).arch.trains]


def _first_that_fits(questions: Sequence[PlanQuestion], fits: Fits) -> PlanQuestion:
    """The first question of a growing ladder that fits; later ones are taken to fit as well."""
    low, high = -1, len(questions)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(questions[middle]) else (middle, high)
    if high == len(questions):
        raise InputError(f"no number of GPUs up to {GPU_COUNTS[-1]:,} fits; try a larger card")
    return questions[high]


def _last_that_fits(questions: Sequence[PlanQuestion], fits: Fits) -> PlanQuestion:
    """The last question of a ladder that fits; later ones are taken not to fit."""
    low, high = 0, len(questions)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(questions[middle]) else (low, middle)
    return questions[low]


MOST_DOUBLINGS = 6


def smallest_changes(question: PlanQuestion, found: Found) -> list[SmallestChange]:
    """Changes with which a set-up fits by its ledger; each is the least of its kind that does."""
    if found.smallest is None:
        return []
    least = found.smallest.total_bytes
    changes = []
    for ladder in (_more_gpus(question), _shorter(question), _smaller_states(question)):
        for change, other in ladder:
            smaller = _smallest(other)
            if smaller is not None and smaller <= _card_bytes(found):
                changes.append(SmallestChange(change=change, saves_bytes=least - smaller))
                break
    needed = {"hardware.gpu_memory_bytes": least}
    return [*changes, SmallestChange(change=needed, saves_bytes=0)]


def _card_bytes(found: Found) -> int:
    assert found.smallest is not None
    return found.smallest.structure.resolved.hardware.memory_bytes


def _smallest(question: PlanQuestion) -> int | None:
    """Bytes of the set-up that takes least; None where the question has none."""
    try:
        found = search(list(structures(question)), question.sequences)
    except InputError:
        return None
    return None if found.smallest is None else found.smallest.total_bytes


Changed = Iterator[tuple[dict[str, Any], PlanQuestion]]


def _more_gpus(question: PlanQuestion) -> Changed:
    """Twice, four times ... as many GPUs, with a sequence for each of them at least."""
    count, batch = int(question.hardware["num_gpus"]), question.sequences
    for doubling in range(1, MOST_DOUBLINGS + 1):
        gpus = count << doubling
        hardware = {k: v for k, v in question.hardware.items() if k != "num_nodes"}
        yield (
            {"hardware.num_gpus": gpus},
            replace(
                question, hardware={**hardware, "num_gpus": gpus}, global_batch=max(batch, gpus)
            ),
        )


def _shorter(question: PlanQuestion) -> Changed:
    """Half, a quarter ... of the sequence."""
    seq = question.seq_len or 0
    for halving in range(1, MOST_DOUBLINGS + 1):
        if seq >> halving >= 256:
            shorter = seq >> halving
            yield {"training.seq_len": shorter}, replace(question, seq_len=shorter)


def _smaller_states(question: PlanQuestion) -> Changed:
    """8-bit states of the optimizer, else an adapter."""
    for change in (
        {"training.optimizer": OPTIMIZERS[DEFAULT_OPTIMIZER].narrow},
        {"training.lora": {"r": 16}, "training.precision": "bf16_pure"},
    ):
        yield change, replace(question, fix={**question.fix, **change})


IN_FULL = 20  # set-ups that are estimated in full, besides those of the front
STEP = 0.05  # of the memory, between two set-ups of the front
MOST_TRIED = 60  # set-ups that are estimated in full to find as many that fit
KERNELS = (LOSS, IMPLEMENTATION)
Progress = Callable[[str, float], None]  # what is done, and which part of it is


def plan_training(question: PlanQuestion, progress: Progress | None = None) -> Plans:
    """The answer to a question about training."""
    if question.goal != FASTEST:
        question = with_goal(question, fits)
    return fastest(question, progress)


def fits(question: PlanQuestion) -> bool:
    """Whether a set-up of a question fits, with replay and margin."""
    try:
        found = search(list(structures(question)), question.sequences)
        return bool(best_plans(question, found, lambda text, part: None, wanted=1))
    except InputError:
        return False


def fastest(question: PlanQuestion, progress: Progress | None = None) -> Plans:
    """The set-ups that fit, fastest first, and the front of memory against time."""
    report = progress or (lambda text, part: None)
    refused: list[str] = []
    every = list(structures(question, refused))
    if not every:
        raise InputError(nothing_possible(question, refused))
    batch = question.sequences
    found = search(every, batch, lambda done: report("searching", done / len(every)))
    left_out: list[str] = []
    plans = best_plans(question, found, report, left_out=left_out)
    return Plans(
        question=to_builtins(question),
        space=SearchedSpace(
            set_ups=found.set_ups,
            feasible=found.feasible,
            seconds=found.seconds,
            axes=searched_axes(every),
        ),
        plans=explained(plans, found, every, batch),
        front=pareto_front(plans),
        if_nothing_fits=[] if plans else smallest_changes(question, found),
        limits=plan_limits(plans, every, left_out),
    )


def nothing_possible(question: PlanQuestion, refused: list[str]) -> str:
    """Why no set-up is possible: what refused each, else that no sizes make up GPUs and batch."""
    if refused:
        return f"no set-up is possible: {refused[0]}"
    gpus, batch = int(question.hardware["num_gpus"]), question.sequences
    below, above = batch // gpus * gpus, -(-batch // gpus) * gpus
    near = f"{below} or {above}" if below else str(above)
    fix = f"try --global-batch {near}" if batch % gpus else "try fewer --fix, or other --gpus"
    return f"no set-up is possible: no sizes make up {gpus} GPUs and {batch} sequences; {fix}"


def best_plans(
    question: PlanQuestion,
    found: Found,
    report: Progress,
    wanted: int = 0,
    left_out: list[str] | None = None,
) -> list[Plan]:
    """The fastest set-ups that fit with replay and margin, and those of the front, in full.

    `wanted`: only as many, and those of the front only where no faster one fits. `left_out` gets
    why a set-up that the search accepted is refused after all.
    """
    base, batch = base_file(question), question.sequences
    order = sorted(found.kept, key=lambda one: (one.seconds, one.total_bytes))
    count = wanted or max(IN_FULL, question.top)
    plans: list[Plan] = []
    shown: set[str] = set()
    tried = 0

    def add(set_up: SetUp) -> None:
        nonlocal tried
        if (name := _without_kernels(set_up)) in shown:
            return
        tried += 1
        run = run_file(base, set_up.structure.settings, set_up.sizes, batch)
        try:
            named = named_settings(set_up)
            plan = full_plan(run, named, price=question.price, tokens=question.tokens)
        except InputError as error:
            if left_out is not None:
                left_out.append(error.problems[0])
            return
        if plan.fits_on_gpu:
            plans.append(plan)
            shown.add(name)

    for set_up in order:
        if len(plans) >= count or tried >= MOST_TRIED:
            break
        add(set_up)
        report("estimating in full", len(plans) / count)
    for set_up in [] if wanted and plans else ledger_front(order):
        add(set_up)
    plans.sort(key=lambda plan: (plan.step_seconds.estimate, plan.needs_bytes))
    return [replace(plan, rank=rank) for rank, plan in enumerate(plans, 1)]


def _without_kernels(set_up: SetUp) -> str:
    """What a set-up is called without its kernels: of those that differ in nothing else, the
    fastest that fits is shown.
    """
    settings = named_settings(set_up)
    return str({key: value for key, value in settings.items() if key not in KERNELS})


def ledger_front(order: Iterable[SetUp]) -> list[SetUp]:
    """Of set-ups sorted by time, those that take less memory than every faster one.

    Each takes less than the one before by a few percent at least (`STEP`).
    """
    front: list[SetUp] = []
    for set_up in order:
        if not front or set_up.total_bytes < front[-1].total_bytes * (1 - STEP):
            front.append(set_up)
    return front
