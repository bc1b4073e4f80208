"""GRPOConfig and RLOOConfig as keys of a run file: trainers that generate, score and train.

trl 1.16.0 trainer/grpo_trainer.py, rloo_trainer.py.
"""

from __future__ import annotations

from ...runfile.program import Program, Section, Setup, Translation
from ..translation.arguments import Values, filled
from .trainer import older_release, trainer_keys

RLOO = "trl.RLOOTrainer"
MODES = ("colocate", "server")  # vllm_mode
CACHES = (None, "dynamic", "static")


def translate(program: Program, values: Values, setup: Setup) -> Translation:
    """The keys of a trainer that generates its completions."""
    result = trainer_keys(program, values, setup)
    result.limits += older_release(setup)
    prompt = program.data.get("prompt")
    if not prompt:
        result.problems.append("program.data.prompt is missing; give the tokens of a prompt")
        return result
    if program.data.get("lengths") is not None:
        why = "completions have the length that they are generated with; leave it out"
        result.problems.append(f"program.data.lengths: {why}")
    result.problems += [*_batch_problems(values, setup), *_generation_problems(values)]
    if result.problems:
        return result
    training = result.training
    training.pop("seq_len", None)  # it is that of prompt and completion
    training |= {"loss": "chunked", "generation": _generation(program, values, setup)}
    if values["beta"]:
        training["reference_model"] = True
    result.assumed.append(
        "every prompt and completion has its full length, and rewards are computed on the host"
    )
    if values["sync_ref_model"] and (not values["beta"] or program.peft is not None):
        why = "TRL refuses it with adapters and with beta=0; leave it out"  # __init__
        result.problems.append(f"program.args.sync_ref_model=true: {why}")
    return result


def _asks_before(program: Program, values: Values, setup: Setup) -> bool:
    """Whether the policy is asked for its old log-probabilities before the update.

    RLOO always does. GRPO does where a generation outlives the step that follows it, and for
    completions of vLLM (_generate_and_score_completions).
    """
    if program.tool == RLOO:
        return True
    every = _updates_per_generation(values, setup) * values["num_iterations"]
    corrected = values["use_vllm"] and values["vllm_importance_sampling_correction"]
    return bool(corrected or values["gradient_accumulation_steps"] % every)


def _updates_per_generation(values: Values, setup: Setup) -> int:
    """Micro-batches that one generation is split into (grpo_config.py __post_init__)."""
    if values["generation_batch_size"] is not None:
        whole = values["per_device_train_batch_size"] * setup.num_gpus
        return max(1, int(values["generation_batch_size"] // whole))
    steps = values["steps_per_generation"] or values["gradient_accumulation_steps"]
    return int(steps)


def _generation(program: Program, values: Values, setup: Setup) -> Section:
    """`training.generation`; only what differs from its defaults."""
    batch = values["per_device_train_batch_size"]
    keys: Section = {
        "prompt": _padded(program.data["prompt"], values),
        "new_tokens": _padded(values["max_completion_length"], values),
        "sequences": batch * _updates_per_generation(values, setup),
    }
    keys |= filled(old_logprobs=_asks_before(program, values, setup))
    if values["use_vllm"]:
        return keys | _engine(values)
    if values["cache_implementation"] == "static":
        keys["cache_implementation"] = "static"
    sampling = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    return keys | {key: values[key] for key, usual in sampling.items() if values[key] != usual}


def _engine(values: Values) -> Section:
    """vLLM on other cards, or on the same card, where TRL lets it sleep at level 2
    (generation/vllm_generation.py).
    """
    if values["vllm_mode"] == "server":
        return {"engine": "elsewhere"}
    keys: Section = {
        "engine": "vllm",
        "gpu_memory_utilization": values["vllm_gpu_memory_utilization"],
        "tensor_parallel_size": values["vllm_tensor_parallel_size"],
    }
    length = values["vllm_max_model_length"]
    keys |= filled(sleep_level=2 if values["vllm_enable_sleep_mode"] else 0)
    return keys if length is None else keys | {"max_model_len": length}


def _padded(tokens: int, values: Values) -> int:
    multiple = values["pad_to_multiple_of"]
    return -(-tokens // multiple) * multiple if isinstance(multiple, int) else tokens


def _batch_problems(values: Values, setup: Setup) -> list[str]:
    """Batches that TRL refuses (grpo_config.py __post_init__)."""
    whole = values["per_device_train_batch_size"] * setup.num_gpus
    size, steps = values["generation_batch_size"], values["steps_per_generation"]
    if size is not None and steps is not None:
        return ["program.args: give generation_batch_size or steps_per_generation, not both"]
    if size is not None and size % whole:
        fix = f"must be a multiple of the {whole} sequences of all GPUs' micro-batches"
        return [f"program.args.generation_batch_size={size} {fix}"]
    total, group = whole * _updates_per_generation(values, setup), values["num_generations"]
    if group < 2:
        return [f"program.args.num_generations={group} must be at least 2: rewards are compared"]
    if total % group:
        what = f"program.args.num_generations={group} does not divide the {total} sequences"
        return [f"{what} of a generation; change it, or per_device_train_batch_size"]
    return []


def _generation_problems(values: Values) -> list[str]:
    """What is not modelled of the generation."""
    name, mode = values["cache_implementation"], values["vllm_mode"]
    if mode not in MODES:
        return [f"program.args.vllm_mode={mode!r} must be 'colocate' or 'server'"]
    if name not in CACHES:
        fix = "leave it out, or use 'static'"
        return [f"program.args.cache_implementation={name!r} is not modelled; {fix}"]
    return []
