"""A question for the planner in a user's words: `plan` of the package.

Keys of a run file that a user fixes or varies, in any of their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from .... import serving
from ....ledger.extras import install
from ....runfile.config import ModelConfig
from ....runfile.find_model.model_size import sized_model
from ....runfile.own_names import is_setting, own_names, with_setting
from ....runfile.read import run_file_problems, section
from ....runfile.resolve.card_name import fast_section
from ....runfile.text.counts import parameter_count
from ....runfile.text.errors import InputError, MissingExtraError, nearest, quoted
from ....tools.read import Asked, read
from ....training import engines
from ..answers.plans import Plans, PlansSoFar, SoFar
from ..answers.question import (
    FASTEST,
    FEWEST_GPUS,
    GOALS,
    LARGEST_MODEL,
    LONGEST_CONTEXT,
    PlanQuestion,
)
from ..answers.serving_question import ServingQuestion

if TYPE_CHECKING:
    from ....tools.read import Anything

Question = TypeVar("Question", PlanQuestion, ServingQuestion)
# Short names of keys; `{}` is the section that has the sizes of parallelism.
SHORT = {
    "tp": "{}.tensor_parallel_size",
    "pp": "{}.pipeline_parallel_size",
    "cp": "{}.context_parallel_size",
    "ep": "{}.expert_parallel_size",
    "dp": "{}.data_parallel_size",
    "vpp": "{}.virtual_pipeline_size",
    "micro_batch": "training.batch_size",
    "zero": "engine.zero_stage",
    "checkpointing": "training.activation_checkpointing",
}
ENGINES = ("engine", "engine.type", "inference.engine")  # keys that name engines
SEQUENCE = "training.seq_len"


def engine_choice(names: Iterable[str], *, served: bool = False) -> tuple[str, ...]:
    """Engines by any of their spellings, once each; servers where `served`."""
    known = serving.spellings() if served else engines.spellings()
    found = []
    for name in (one.strip() for text in names for one in str(text).split(",")):
        if name.lower() not in known:
            what = "server" if served else "training engine"
            raise InputError(f"{name!r} is not a known {what}{nearest(name, known)}")
        found.append(known[name.lower()])
    return tuple(dict.fromkeys(found))


def with_keys(
    asked: Question, fix: Mapping[str, Any], vary: Mapping[str, Sequence[Any]]
) -> Question:
    """The question with keys that are fixed or varied, each checked as in a run file.

    Keys of model and hardware, the engine and the sequence become fields of the question.
    """
    served = isinstance(asked, ServingQuestion)
    engine_names = [*_listed(fix), *(one for text in _listed(vary) for one in text)]
    fixed = own_keys({k: v for k, v in fix.items() if k not in ENGINES}, served=served)
    varied = _varied({k: v for k, v in vary.items() if k not in ENGINES}, served=served)
    both = sorted(fixed.keys() & varied.keys())
    if both:
        raise InputError(f"{both[0]} is fixed and varied; leave one of them out")
    changes: dict[str, Any] = {}
    if engine_names:
        changes["engines"] = engine_choice(engine_names, served=served)
    if SEQUENCE in fixed and not served:
        changes["seq_len"] = fixed.pop(SEQUENCE)
    for name in ("model", "hardware"):
        own = {key: fixed.pop(key) for key in list(fixed) if key.startswith(f"{name}.")}
        values = {key.partition(".")[2]: value for key, value in own.items()}
        changes |= {name: {**getattr(asked, name), **values}} if own else {}
    return replace(asked, fix={**asked.fix, **fixed}, vary={**asked.vary, **varied}, **changes)


def _listed(values: Mapping[str, Any]) -> list[Any]:
    """The values of the keys that name engines."""
    return [values[key] for key in ENGINES if key in values]


def own_keys(values: Mapping[str, Any], *, served: bool = False) -> dict[str, Any]:
    """Values by a run file's own keys, as `section.key`; other names become ours."""
    data: dict[str, Any] = {"inference": {}} if served else {}
    for name, value in values.items():
        key = SHORT.get(name, name).format("inference" if served else "parallelism")
        if "." not in key and not served and not is_setting(key):
            hint = nearest(name, SHORT) or "; write section.key, as in a run file"
            raise InputError(f"{name!r} is not a known key{hint}")
        with_setting(data, key, value)
    data, problems = own_names(data)
    named = {**data, "model": {"name": "-", **(data.get("model") or {})}}
    problems = problems or list(run_file_problems(named))
    if problems:
        raise InputError(problems[0])
    return {f"{name}.{key}": one for name, keys in data.items() for key, one in keys.items()}


def _varied(vary: Mapping[str, Sequence[Any]], *, served: bool) -> dict[str, list[Any]]:
    """The values of each varied key, by a run file's own keys."""
    found: dict[str, list[Any]] = {}
    for name, values in vary.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise InputError(f"vary {name}={quoted(values)} must be a list of values to try")
        for value in values:
            for key, one in own_keys({name: value}, served=served).items():
                found.setdefault(key, []).append(one)
    return found


MISSING = f"plan needs numpy: {install('plan')}"
ANY = "any"  # every server
Source = str | Mapping[str, Any]  # of a model
Progress = Callable[[str, float], None]  # what is done, and which part of it is


def plan(
    model: Source | None = None,
    *,
    gpus: int | None = None,
    gpu: str | None = None,
    seq_len: int | None = None,
    global_batch: int | None = None,
    engine: str | Sequence[str] | None = None,
    fix: Mapping[str, Any] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    price: float | None = None,
    tokens: int | str | None = None,
    top: int = 10,
    candidates: Sequence[Anything | Asked] | None = None,
    goal: str = FASTEST,
    serve: str | None = None,
    progress: Progress | None = None,
    found: Callable[[Plans], None] | None = None,
    changed: Callable[[SoFar], None] | None = None,
    **targets: Any,
) -> Plans:
    """The set-ups of a model that fit on GPUs, fastest first; or `candidates` ranked.

    - model: a preset, a Hugging Face id, a path, a size such as "7B", or a `model` section
    - gpus, gpu: how many GPUs, and which card
    - seq_len: tokens of a sequence; 4,096 or the model's limit without it
    - global_batch: sequences of a step over all GPUs
    - engine: the engines to search; all of them without it
    - fix, vary: keys of a run file with one value, and with several values to try
    - price: of a GPU for an hour; tokens: of the whole training, such as "1T"
    - candidates: run files, commands or files of other tools, ranked as they are
    - goal: "fastest", "fewest_gpus", "largest_batch", "longest_context" or "largest_model"
    - serve: a server, or "any", instead of training; its targets are users, context, new_tokens,
      latency, first_token and throughput (`ServingQuestion`)
    - progress: called with what is done, and which part of it is
    - found: called with the plans for training so far, whenever a faster one is found
    - changed: called whenever more is known with a function that gives the plans so far, with those
      for training that wait for their replay

    Ctrl-C raises `PlansSoFar`, a KeyboardInterrupt with the plans that were found before it.
    """
    check_numpy()
    if goal not in GOALS:
        raise InputError(f"goal={quoted(goal)} is not one of {', '.join(GOALS)}")
    total = None if tokens is None else parameter_count(tokens, "tokens")
    if candidates is not None:
        return _ranked(list(candidates), price, total, top)
    named = [engine] if isinstance(engine, str) else engine or ()
    given: dict[str, Any] = {
        "model": model_section(model, goal),
        "hardware": _given({"gpu": gpu, "num_gpus": gpus}),
        **{"goal": goal, "price": price, "tokens": total, "top": top},
    }
    if serve is None:
        asked = PlanQuestion(
            **given, engines=engine_choice(named), **_training(seq_len, global_batch, targets)
        )
        return _planned(
            _one_card(with_keys(asked, fix or {}, vary or {})), progress, found, changed
        )
    servers = engine_choice([one for one in (serve, *named) if one != ANY], served=True)
    question = ServingQuestion(**given, engines=servers, **_served(seq_len, global_batch, targets))
    return _served_plans(_one_card(with_keys(question, fix or {}, vary or {})), progress, changed)


def _one_card(question: Question) -> Question:
    """A question with the name of one card, where its name means several."""
    return replace(question, hardware=fast_section(question.hardware))


def check_numpy() -> None:
    """Raise a sentence where numpy is not installed."""
    try:
        import numpy  # noqa: F401
    except ImportError:
        raise MissingExtraError(MISSING) from None


def model_section(model: Source | None, goal: str = FASTEST) -> dict[str, Any]:
    """The `model` section of a name, a path, a size or a section; empty where it is looked for."""
    if goal == LARGEST_MODEL and model is not None:
        raise InputError(f"{goal} looks for a model, and {quoted(model)} names one; leave it out")
    if isinstance(model, Mapping) or goal == LARGEST_MODEL:
        return dict(model or {})  # type: ignore[arg-type]
    if model is None:
        raise InputError("plan needs a MODEL, such as llama3.1-8b or 7B; see gpu-mem-calc presets")
    sized = sized_model(model)
    if sized is None:
        return {"name": model}
    return {"name": sized.name, **_given({"num_parameters": sized.num_parameters})}


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _training(
    seq_len: int | None, global_batch: int | None, targets: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of a training question; a server's target is refused."""
    for name in _given(targets):
        raise InputError(f"{name} is for servers; add --serve any, or leave it out")
    return {"seq_len": seq_len, "global_batch": global_batch}


def _served(
    seq_len: int | None, global_batch: int | None, targets: Mapping[str, Any]
) -> dict[str, Any]:
    """The targets of a serving question; what belongs to training is refused."""
    known = ("users", "context", "new_tokens", "latency", "first_token", "throughput")
    for name in _given({"seq_len": seq_len, "global_batch": global_batch}):
        raise InputError(f"{name} is for training; leave it out, or leave --serve out")
    for name in targets:
        if name not in known:
            raise InputError(f"{name} is not a target of a server; it has {', '.join(known)}")
    return _given(targets)


def _check_hardware(hardware: Mapping[str, Any], goal: str) -> None:
    """Raise where the card is not named, or the number of GPUs is neither given nor looked for."""
    if "gpu" not in hardware:
        raise InputError("plan needs the card; add --gpu h100, or another of gpu-mem-calc gpus")
    if "num_gpus" not in hardware and goal != FEWEST_GPUS:
        raise InputError("plan needs the number of GPUs; add --gpus 8, or --fewest-gpus")


def _planned(
    asked: PlanQuestion,
    progress: Progress | None,
    found: Callable[[Plans], None] | None,
    changed: Callable[[SoFar], None] | None,
) -> Plans:
    _check_hardware(asked.hardware, asked.goal)
    from ..training.best import plan_training

    assumed = _assumed(asked)

    def of_question(plans: Plans) -> Plans:
        question = {**plans.question, "goal": asked.goal, "assumed": assumed}
        return replace(plans, question=question)

    shown = found and (lambda plans: found(of_question(plans)))
    news = changed and (lambda known: changed(lambda: of_question(known())))
    try:
        return of_question(plan_training(replace(asked, **assumed), progress, shown, news))
    except PlansSoFar as interrupted:
        raise PlansSoFar(of_question(interrupted.plans)) from None


def _assumed(asked: PlanQuestion) -> dict[str, Any]:
    """The sequence where none is given, as every command assumes it."""
    if asked.seq_len is not None or asked.goal in (LONGEST_CONTEXT, LARGEST_MODEL):
        return {}
    from ....runfile.find_model.model_source import find_model
    from ....runfile.resolve.training_defaults import default_sequence

    given = section("model", ModelConfig, asked.model)
    return {"seq_len": default_sequence(find_model(given).arch.max_seq_len, given.max_seq_len)}


def _served_plans(
    asked: ServingQuestion, progress: Progress | None, changed: Callable[[SoFar], None] | None
) -> Plans:
    _check_hardware(asked.hardware, asked.goal)
    from ..serving.best import plan_serving

    def told(done: int, total: int, text: str) -> None:
        if progress is not None:
            progress(text, done / max(1, total))

    return plan_serving(asked, told, changed)


def _ranked(
    candidates: list[Anything | Asked], price: float | None, tokens: int | None, top: int
) -> Plans:
    from ..training.candidates import rank_candidates

    plans = rank_candidates(candidates, price, tokens)
    plans = replace(plans, question={**plans.question, "top": top})
    return with_files(plans, {one: one for one in candidates if isinstance(one, str)})


def _is_within(source: Any, run: Any) -> bool:
    """Whether a run has every key of another, with its value."""
    if isinstance(source, Mapping):
        given = run if isinstance(run, Mapping) else {}
        return all(_is_within(value, given.get(key, {})) for key, value in source.items())
    return bool(source == run)


def with_files(plans: Plans, sources: Mapping[str, Anything]) -> Plans:
    """The plans of candidates with the names of their files; `sources` by name."""
    from ....runfile.read import as_dict

    runs = {name: as_dict(read(source).file) for name, source in sources.items()}
    named = []
    for one in plans.plans:
        file = next((name for name, run in runs.items() if _is_within(run, one.run)), None)
        named.append(replace(one, file=file or one.file))
        runs.pop(file or "", None)
    return replace(plans, plans=named)
