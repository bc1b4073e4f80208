"""The generation before each step of a policy: the keys of a run file, resolved and checked."""

from __future__ import annotations

from collections.abc import Iterator

from ...run.engine import Engine
from ...run.rollout import ELSEWHERE, TRANSFORMERS, VLLM, Rollout
from ...run.run import Run
from ...serving.transformers.row import ROW
from ...training.losses import LOSSES, PER_TOKEN
from ...training.step.reference import PRECOMPUTED
from ..config import TrainingConfig
from ..generation_config import GenerationConfig
from ..read import given_keys
from ..text.errors import InputError

PATH = "training.generation"
# Keys that act on each engine.
COMMON = ("engine", "prompt", "new_tokens", "sequences", "old_logprobs")
OWN_KEYS = {
    TRANSFORMERS: (*COMMON, "cache_implementation", "temperature", "top_k", "top_p"),
    VLLM: (
        *COMMON,
        "gpu_memory_utilization",
        "sleep_level",
        "tensor_parallel_size",
        "max_model_len",
    ),
    ELSEWHERE: COMMON,
}


def find_rollout(config: TrainingConfig) -> Rollout | None:
    """The run's generation; raises a sentence for what is missing."""
    given = config.generation
    if given is None:
        return None
    missing = [key for key in ("prompt", "new_tokens") if getattr(given, key) is None]
    if missing:
        raise InputError(f"{PATH}.{key} is missing; give its tokens" for key in missing)
    return _rollout(given, (config.batch_size or 1) * (config.gradient_accumulation_steps or 1))


def _rollout(given: GenerationConfig, sequences: int) -> Rollout:
    assert given.prompt is not None
    assert given.new_tokens is not None
    return Rollout(
        engine=given.engine,
        sequences=given.sequences or sequences,
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


def rollout_problems(run: Run, config: TrainingConfig, engine: Engine) -> Iterator[str]:
    """A sentence for each setting that is not modelled."""
    rollout = run.rollout
    if rollout is None:
        return
    if engine.name != "pytorch_ddp":
        yield f"{PATH} is not modelled under {engine.title}; use engine pytorch_ddp"
    if run.record is not None or run.arch.family in ROW.no_code:
        yield f"{PATH}: {run.arch.family} has no KV cache that is modelled; leave it out"
    if run.zero_grad != "after_step":
        yield f"training.zero_grad with {PATH} is not modelled; leave it out"
    if run.reference == PRECOMPUTED:
        yield f"training.reference_model='precomputed' with {PATH} does not exist; use true"
    total = int(rollout.prompt) + int(rollout.new_tokens)
    if run.seq != total:
        what = f"training.seq_len={run.seq} is not prompt + new_tokens = {total}"
        yield f"{what} of {PATH}; leave seq_len out"
    if not LOSSES[run.loss].per_token:
        fix = f"leave loss out: it is {PER_TOKEN!r}, on the completion's tokens"
        yield f"training.loss={run.loss!r} with {PATH} is not modelled; {fix}"
    elif run.labelled != rollout.new_tokens:
        yield f"training.labelled_tokens={run.labelled} is not new_tokens of {PATH}; leave it out"
    if int(rollout.sequences) % int(run.batch):
        fix = f"use a multiple of training.batch_size={run.batch}"
        yield f"{PATH}.sequences={rollout.sequences} does not fill its micro-batches; {fix}"
    elif int(rollout.sequences) < int(run.batch * run.micro_batches) and run.mesh.dp > 1:
        fix = f"use at least {int(run.batch * run.micro_batches)}, those of a step"
        why = "would be generated between micro-batches, which is not modelled on several GPUs"
        yield f"{PATH}.sequences={rollout.sequences} {why}; {fix}"
    given = config.generation
    keys = OWN_KEYS[rollout.engine]
    for key in given_keys(given) if given is not None else ():
        if key not in keys and getattr(given, key) != getattr(GenerationConfig(), key):
            yield f"{PATH}.{key} has no effect with engine {rollout.engine!r}; leave it out"
    if rollout.engine == VLLM and run.quantization == "int8":
        yield f"{PATH}.engine='vllm' does not load int8 weights; use quantization 'nf4'"
    if run.quantization is not None and rollout.static:
        yield f"{PATH}.cache_implementation='static' is not modelled with quantized weights"
