"""What a client asks of the planner, and its reply."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, structs

from ..advice.planner.answers.plans import Plans
from ..advice.planner.asking.ask import plan
from ..report.plan.page import plan_body
from ..report.plan.summary import plans_line, plans_verdict
from ..runfile.field_types import Card, Count, Object, Parameters, Positive, Text
from ..runfile.read import section
from ..runfile.text.errors import InputError
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


def plans_reply(body: Any, *, page: bool) -> PlansReply:
    """The plans for a client's question."""
    if not isinstance(body, dict):
        raise InputError('the body must be an object, such as {"model": "llama3.1-8b", "gpus": 8}')
    question = structs.asdict(section("plan", PlanAsked, body))
    given = {key: value for key, value in question.items() if value is not None}
    candidates = given.pop("candidates", None)
    if "gpu" in given:
        given["gpu"] = str(given["gpu"])
    if candidates is not None:
        given["candidates"] = [asked(one) for one in candidates]
    found = plan(given.pop("model", None), **given)
    html = plan_body(found) if page else None
    return PlansReply(
        **structs.asdict(found), html=html, verdict=plans_verdict(found), summary=plans_line(found)
    )
