"""Plans for serving: which engine, parallel sizes and formats serve most, or need fewest GPUs."""

from __future__ import annotations

import msgspec

from ....estimates.serving.speed import find_card_rates
from ....runfile.config import GPUConfig
from ....runfile.text.errors import InputError
from ..answers.plans import Plans
from ..answers.question import LARGEST_MODEL
from ..answers.serving_question import ServingQuestion
from .answer import searched_plans
from .models import largest_models_plans
from .search import Progress


def plan_serving(question: ServingQuestion, progress: Progress | None = None) -> Plans:
    """The plans of a question, best first by its goal."""
    check_question(question)
    if question.goal == LARGEST_MODEL:
        return largest_models_plans(question, progress)
    return searched_plans(question, progress)


def check_question(question: ServingQuestion) -> None:
    """Refuse targets that mean nothing, and cards whose rates are not known."""
    for name in ("users", "context", "new_tokens", "latency", "first_token", "throughput", "top"):
        value = getattr(question, name)
        if value is not None and value <= 0:
            raise InputError(f"{name}={value} must be more than 0")
    section = msgspec.convert(question.hardware, GPUConfig)
    if find_card_rates(section) is None:
        named = question.hardware.get("gpu")
        why = f"the rates of {named!r} are not known" if named else "no GPU is named"
        raise InputError(f"plans for serving need a card's rates, and {why}; add --gpu h100")
