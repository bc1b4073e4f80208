"""What a client asks of the planner, and its reply: whole, or as events while it searches."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field, structs

from ..advice.planner.answers.plans import INTERRUPTED, Plans, PlansSoFar, SoFar
from ..advice.planner.asking.ask import check_numpy, plan
from ..report.plan.page import plan_body
from ..report.plan.summary import plans_line, plans_verdict
from ..runfile.field_types import Card, Count, Object, Parameters, Positive, Text
from ..runfile.read import section
from ..runfile.text.errors import InputError, MissingExtraError
from ..training.engines import DEFAULT
from .pasted_text import asked

Name = Annotated[str | dict[str, Any], Meta(description="a model's name, or a `model` section")]
Listed = Annotated[
    dict[str, list[Any]], Meta(description="an object with a list of values for each key")
]
Runs = Annotated[
    list[dict[str, Any]], Meta(max_length=100, description="a list of run files or texts")
]
Top = Annotated[int, Meta(ge=1, le=100, description="a whole number from 1 to 100")]
Goal = Literal["fastest", "fewest_gpus", "largest_batch", "longest_context", "largest_model"]


class PlanAsked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question for the planner: the options of `gpu-mem-calc plan`, or `candidates` to rank."""

    model: Name | None = None
    gpus: Count | None = None
    gpu: Card | None = None
    seq_len: Count | None = None
    global_batch: Count | None = None
    engine: Text | None = None
    fix: Object | None = None
    vary: Listed | None = None
    price: Positive | None = None
    tokens: Parameters | None = None
    top: Top | None = None
    goal: Goal | None = None
    candidates: Runs | None = None
    serve: Text | None = None
    users: Count | None = None
    context: Count | None = None
    new_tokens: Count | None = None
    latency: Positive | None = None
    first_token: Positive | None = None
    throughput: Positive | None = None


class PlansReply(Plans, frozen=True, kw_only=True):
    """Plans, fastest first; `html` shows them on the page, where it was asked for."""

    html: str | None = None
    verdict: str
    summary: str


class PlanProgress(Struct, frozen=True, kw_only=True):
    """What a search does, which part of that is done, 0 to 1, and its seconds until now."""

    text: str
    part: float
    seconds: float


class PlansDone(PlansReply, frozen=True, kw_only=True):
    """The last event: the plans, and whether they are all; `problems` says why not. Where there are
    none, `status` is that of the refusal.
    """

    complete: bool = True
    problems: list[str] = field(default_factory=list)


OPTION = re.compile(r"--([a-z][a-z-]*)")
TOLD_AGAIN = 0.1  # seconds between two events of progress
SHOWN_AGAIN = 0.4  # seconds between two events with plans
COST = 4  # times the seconds that making the plans so far takes pass before they are made again
# The planner's words for what it does, in the words of one who waits.
DOING = {
    "searching": "{} groups of set-ups searched",
    "replaying": "{} replayed",
    "replaying the front": "{} of the Pareto front replayed",
}
STOPPED = "the search was stopped after {:g} seconds, the limit of this service"
Tell = Callable[[str, Any], None]


class PlanListener:
    """Tells a client of a search that goes on, as often as is cheap; ends it after `seconds`."""

    def __init__(self, tell: Tell, *, page: bool, seconds: float) -> None:
        self.tell, self.page, self.seconds = tell, page, seconds
        self.begun = time.monotonic()
        self.so_far: SoFar | None = None
        self.tells_at = self.shows_at = 0.0
        self.doing = ""

    def progress(self, text: str, part: float) -> None:
        """Tell what is done; raises KeyboardInterrupt after the last second."""
        passed = time.monotonic() - self.begun
        if passed > self.seconds:
            raise KeyboardInterrupt
        doing, _, done = text.partition(", ")
        if doing != self.doing:
            self.doing, self.tells_at, self.shows_at = doing, 0.0, 0.0
        if passed < self.tells_at:
            return
        self.tells_at = passed + TOLD_AGAIN
        words = DOING[doing].format(done) if doing in DOING else text
        self.tell("progress", PlanProgress(text=words, part=part, seconds=round(passed, 2)))

    def changed(self, so_far: SoFar) -> None:
        """Show the plans so far."""
        self.so_far = so_far
        before = time.monotonic() - self.begun
        if before < self.shows_at:
            return
        self.tell("plan", reply(so_far(), page=self.page))
        after = time.monotonic() - self.begun
        self.shows_at = after + max(SHOWN_AGAIN, COST * (after - before))


def plan_events(body: Any, *, page: bool, seconds: float, tell: Tell) -> PlansDone:
    """The plans for a client's question, who is told of them meanwhile; after `seconds` those that
    are known by then. TimeoutError where there are none.
    """
    listener = PlanListener(tell, page=page, seconds=seconds)
    problems: list[str] = []
    try:
        found = asked_plans(body, progress=listener.progress, changed=listener.changed)
    except KeyboardInterrupt as stopped:
        problems = [STOPPED.format(seconds)]
        if listener.so_far is not None:
            found = structs.replace(listener.so_far(), limits=[INTERRUPTED])
        elif isinstance(stopped, PlansSoFar):
            found = stopped.plans
        else:
            raise TimeoutError from None
    done = reply(found, page=page)
    return PlansDone(**structs.asdict(done), complete=not problems, problems=problems)


def plans_reply(body: Any, *, page: bool) -> PlansReply:
    """The plans for a client's question."""
    return reply(asked_plans(body), page=page)


def reply(found: Plans, *, page: bool) -> PlansReply:
    """Plans as they are sent; with `page` also as HTML."""
    html = plan_body(found, asked=True) if page else None
    return PlansReply(
        **structs.asdict(found), html=html, verdict=plans_verdict(found), summary=plans_line(found)
    )


def asked_plans(body: Any, **listeners: Any) -> Plans:
    """The plans for a client's question; what is wrong with it is said in the names of its body."""
    if not isinstance(body, dict):
        raise InputError('the body must be an object, such as {"model": "llama3.1-8b", "gpus": 8}')
    question = structs.asdict(section("plan", PlanAsked, body))
    given = {key: value for key, value in question.items() if value is not None}
    candidates = given.pop("candidates", None)
    if "gpu" in given:
        given["gpu"] = str(given["gpu"])
    if candidates is not None:
        given["candidates"] = [asked(one) for one in candidates]
    try:
        return plan(given.pop("model", None), **given, **listeners)
    except MissingExtraError:
        raise
    except InputError as error:
        raise InputError(map(own_words, error.problems)) from None


def own_words(sentence: str) -> str:
    """A sentence with the names of a question in place of the command's options."""
    return OPTION.sub(lambda found: found[1].replace("-", "_"), sentence)


def warm_plan(_body: Any, _options: Any) -> Any:
    """Plan a small run, so that the first client does not wait for imports."""
    try:
        check_numpy()
    except InputError:
        return {}  # who asks is told
    return plan("gpt2", gpus=1, gpu="h200", seq_len=256, global_batch=1, engine=DEFAULT)
