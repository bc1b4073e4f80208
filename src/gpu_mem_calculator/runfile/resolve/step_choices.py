"""What a run does beside its training step: a generation before it, an evaluation after it, a
reference model, torch.compile. The keys of a run file, resolved, and those without effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ...ledger.dtypes import BITS, dtype_name
from ...run.evaluation import Evaluation, Generates
from ...run.rollout import ELSEWHERE, TRANSFORMERS, VLLM, Rollout
from ...run.run import BASE, COPY, PRECOMPUTED, Run
from ...training.rules import COMPILED, EVALUATION
from ...training.rules import GENERATION as PATH
from ..config import EvaluationConfig, GeneratesConfig, GenerationConfig, TrainingConfig
from ..read import given_keys
from ..text.errors import InputError

if TYPE_CHECKING:
    from ...run.engine import Engine
    from ...run.limits import Limit
    from ...training.lengths.batches import DrawnBatches

# Keys that act on each engine.
COMMON = ("engine", "prompt", "new_tokens", "sequences", "old_logprobs")
OF_VLLM = ("gpu_memory_utilization", "sleep_level", "tensor_parallel_size", "max_model_len")
OWN_KEYS = {
    TRANSFORMERS: (*COMMON, "cache_implementation", "temperature", "top_k", "top_p"),
    VLLM: (*COMMON, *OF_VLLM),
    ELSEWHERE: COMMON,
}


def find_rollout(config: TrainingConfig) -> Rollout | None:
    """The run's generation; raises a sentence for what is missing."""
    given = config.generation
    if given is None:
        return None
    if given.prompt is None or given.new_tokens is None:
        missing = [key for key in ("prompt", "new_tokens") if getattr(given, key) is None]
        raise InputError(f"{PATH}.{key} is missing; give its tokens" for key in missing)
    step = (config.batch_size or 1) * (config.gradient_accumulation_steps or 1)
    return Rollout(
        engine=given.engine,
        sequences=given.sequences or step,
        prompt=given.prompt,
        new_tokens=given.new_tokens,
        static=given.cache_implementation == "static",
        temperature=given.temperature,
        top_k=given.top_k,
        top_p=given.top_p,
        scores=given.old_logprobs,
    )


def trained_tokens(config: TrainingConfig) -> int | None:
    """Tokens of a sequence that a generation gives, prompt and completion; None without one."""
    given = config.generation
    if given is None or given.prompt is None or given.new_tokens is None:
        return None
    return given.prompt + given.new_tokens


def with_generates(run: Run, given: GeneratesConfig | None) -> Run:
    """The run with a program's own generation between steps."""
    if given is None:
        return run
    found = Generates(
        batch=given.batch_size,
        prompt=given.prompt,
        new_tokens=given.new_tokens,
        use_cache=given.use_cache,
    )
    return replace(run, generates=found)


def with_evaluation(run: Run, given: EvaluationConfig | None) -> Run:
    """The run with its evaluation, whose sequences are as long as the run's unless given."""
    if given is None:
        return run
    keeps = given.keep_logits or given.keep_tokens
    rows = given.rows or given.batches * given.batch_size
    batch = min(given.batch_size, rows)
    batches = min(-(-rows // batch), given.accumulation_steps or rows)
    found = Evaluation(
        batch=batch,
        seq=given.seq_len or run.seq,
        rows=rows,
        kept=batches if keeps else 0,
        last=min(rows - (batches - 1) * batch, batch),
        tokens=given.keep_tokens,
    )
    return replace(run, evaluation=found)


def checkpoint_choices(config: TrainingConfig) -> dict[str, str]:
    """How the run saves, what it begins from, and where an averaged copy is; "": as the engine
    does, or none.
    """
    given = {"saving": config.saving, "resuming": config.resuming, "ema": config.ema}
    return {key: "" if one in (None, "none") else str(one) for key, one in given.items()}


def stored_checkpoint(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Bits of a weight in a checkpoint by its config.json, 16 where that does not say; and whether
    its experts are packed, so that who trains them unpacks them.
    """
    whole = config or {}
    inner = whole.get("text_config")
    places = (whole, inner if isinstance(inner, Mapping) else {})
    words = (str(place.get(key)) for place in places for key in ("dtype", "torch_dtype"))
    bits = next((BITS[name] for name in map(dtype_name, words) if name in BITS), 16)
    packed = (whole.get("quantization_config") or {}).get("quant_method") == "mxfp4"
    return {"stored_bits": bits, "packed_experts": packed}


def reference_kind(config: TrainingConfig) -> str:
    """The run's reference model. With adapters, it is the model itself while they are off."""
    if config.reference_model == PRECOMPUTED:
        return PRECOMPUTED
    if config.reference_model:
        return BASE if config.lora is not None else COPY
    return ""


def compile_mode(config: TrainingConfig) -> str:
    """The mode of torch.compile; "" where the model is not compiled."""
    if isinstance(config.compile, str):
        return config.compile
    return COMPILED if config.compile else ""


def step_key_problems(run: Run, config: TrainingConfig) -> Iterator[str]:
    """A sentence for each key without effect, and where a model has no cache to generate with."""
    generation, evaluation = config.generation, config.evaluation
    if generation is not None or config.generates is not None:
        from ...serving.transformers.row import ROW

        where = PATH if generation is not None else "training.generates"
        if run.record is not None or run.arch.family in ROW.no_code:
            yield f"{where}: {run.arch.family} has no KV cache that is modelled; leave it out"
    if generation is not None:
        default, engine = GenerationConfig(), generation.engine
        for key, value in given_keys(generation).items():
            if key not in OWN_KEYS[engine] and value != getattr(default, key):
                yield f"{PATH}.{key} has no effect with engine {engine!r}; leave it out"
    keeps = evaluation and (evaluation.keep_logits or evaluation.keep_tokens)
    if evaluation and evaluation.accumulation_steps is not None and not keeps:
        why = "is for logits that are kept; set keep_logits to true"
        yield f"{EVALUATION}.accumulation_steps {why}"


def drawn_batches(
    config: TrainingConfig, engine: Engine, ranks: int, loss: str
) -> DrawnBatches | None:
    """The batches of examples that differ in length; None where all are alike."""
    needing = (config.padding, config.pad_to_multiple_of, config.packing, config.padding_free)
    if config.lengths is None and not any(needing):
        return None
    from .lengths import find_batches

    return find_batches(config, engine, ranks, loss)


def with_drawn(run: Run, drawn: DrawnBatches | None) -> tuple[Run, list[Limit]]:
    """The run with the longest of its batches, and what is not modelled of them."""
    if drawn is None:
        return run, []
    from .lengths import length_limits, with_batches

    run = with_batches(run, drawn)
    return run, list(length_limits(run, drawn))
