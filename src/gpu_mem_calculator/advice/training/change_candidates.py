"""Changes of a run that may be worth trying, each with what it costs in words: what saves memory,
also in a policy's generation, and what uses free memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from ...estimates.calculator import Estimate
from ...pytorch.modelling.huggingface.liger import FUSED as FUSED_LOSS
from ...pytorch.modelling.huggingface.liger import LIGER
from ...run.engine_row import REPLICATE
from ...run.recompute import FULL, NONE, SELECTIVE
from ...run.rollout import TRANSFORMERS, VLLM
from ...run.run import FULL_DICT_ON_GPUS, SHARDED, Run
from ...runfile.keys.recipes import DEFAULT_RANK, TITLES, recipe_settings
from ...runfile.resolve.resolve_training import AXES
from ...runfile.resolve.training_defaults import card_dtype
from ...training.engines import SHARDING, engine, engine_knobs, engine_row, offers
from ...training.knob import MOVES, MOVES_ALL, ON_SEVERAL, POLICY, RECOMPUTES, SHARDS, Saving
from ...training.losses import DEFAULT, smaller_losses
from ...training.optimizers import FUSED, OPTIMIZERS


class Candidate(Struct, frozen=True):
    """A change to try: its title, its settings in `--set` notation, and what it costs in words.

    `weight` ranks the cost: 1 next to nothing, 2 speed, 3 and more another training or hardware.
    """

    title: str
    settings: tuple[str, ...]
    cost: str = ""
    weight: int = 1


PATH = "training.generation"


def rollout_savings(run: Run) -> Iterator[Candidate]:
    """vLLM may sleep while the policy is trained; the policy may generate for each micro-batch."""
    rollout = run.rollout
    if rollout is None:
        return
    if rollout.engine == VLLM and not rollout.sleep_level:
        yield Candidate("vLLM asleep", (f"{PATH}.sleep_level=2",), "loads its weights again", 2)
    alone = int(run.mesh.dp) == 1 and rollout.engine == TRANSFORMERS
    if alone and int(rollout.sequences) > int(run.batch):
        title, cost = f"{int(run.batch)} completions at a time", "slower generation"
        yield Candidate(title, (f"{PATH}.sequences={int(run.batch)}",), cost, 2)


ADAPTER = "trains an adapter, not the model"
RECOMPUTE = {NONE: "no", SELECTIVE: "selective", FULL: "full"}
NODES = ("num_nodes", "gpus_per_node")  # they follow from the number of GPUs


def savings(estimate: Estimate) -> Iterator[Candidate]:
    """Changes that save memory and give the same training or inference, cheapest in speed first."""
    run = estimate.resolved.run
    if run.new_tokens is not None:
        yield from _inference_savings(estimate)
        return
    optimizer = OPTIMIZERS[run.optimizer]
    if run.implementation != FUSED and FUSED in optimizer.implementations and optimizer.foreach:
        setting = f"training.optimizer_implementation={FUSED}"
        yield Candidate(f"fused {optimizer.title}", (setting,))
    yield from _checkpoint_savings(run)
    yield from rollout_savings(run)
    yield from _smaller_losses(estimate)
    yield from _sharding(estimate)
    if run.mesh.tp > 1 and not run.sequence_parallel:
        yield Candidate("sequence parallel", ("parallelism.sequence_parallel=true",))
    if run.batch > 1:
        batch, micro_batches = int(run.batch), int(run.micro_batches)
        half, twice = batch // 2, -(-batch * micro_batches // (batch // 2))
        yield _batch(half, twice, "same total batch")
    yield from _more_recompute(estimate)
    if optimizer.narrow in estimate.resolved.engine.optimizers:
        title, setting = (
            OPTIMIZERS[optimizer.narrow].title,
            f"training.optimizer={optimizer.narrow}",
        )
        yield Candidate(title, (setting,), "8-bit states", 2)
    yield from _model_parallel(estimate)
    yield from _turned(estimate, MOVES)


def _checkpoint_savings(run: Run) -> Iterator[Candidate]:
    """Shards in the place of a whole state dict on each GPU."""
    if run.saving == FULL_DICT_ON_GPUS:
        yield Candidate("sharded checkpoints", (f"training.saving={SHARDED}",), "to be merged")


def _turned(estimate: Estimate, kind: str) -> Iterator[Candidate]:
    """Savings of one kind among the engine's knobs, where the run has a value before theirs."""
    options = estimate.resolved.run.options
    for knob in engine_knobs(estimate.resolved.engine.name):
        for one in knob.savings if knob.kind == kind else ():
            met = all(options[key] == value for key, value in one.needs.items())
            if met and options[knob.key.partition(".")[2]] in one.before:
                settings = _settings({knob.key: one.value, **one.also})
                yield Candidate(one.title, settings, one.cost, one.weight)


def _smaller_losses(estimate: Estimate) -> Iterator[Candidate]:
    """Losses that never hold all logits, for a run with transformers' own loss."""
    run, framework = estimate.resolved.run, estimate.resolved.engine
    if not framework.transformers or run.loss != DEFAULT or run.label_smoothing or run.liger:
        return
    has = LIGER.get(run.arch.family)
    if has is not None and FUSED_LOSS in has.default:
        yield Candidate("Liger kernels", ("training.liger=true",), "needs liger-kernel")
    else:
        for name, row in smaller_losses().items():
            if not row.needs_kernel:
                yield Candidate(row.title, (f"training.loss={name}",), f"needs {row.package}")


def _batch(size: int, micro_batches: int, cost: str) -> Candidate:
    return Candidate(
        f"batch {size} × {micro_batches} micro-batch{'es' * (micro_batches > 1)}",
        (f"training.batch_size={size}", f"training.gradient_accumulation_steps={micro_batches}"),
        cost,
    )


def _more_recompute(estimate: Estimate) -> Iterator[Candidate]:
    """Policies that recompute more than the run does, or keep less of it on the GPU."""
    run = estimate.resolved.run
    every = run.recompute == FULL and run.recompute_quarters == 4
    every = every and run.rule.every == 1 and run.rule.first_layers is None
    if run.recompute != SELECTIVE and not estimate.resolved.engine.transformers:
        yield _recompute(estimate, SELECTIVE, "little extra compute")
    if not every:
        yield _recompute(estimate, FULL, "33 % more compute", 2)
    kept = every and not run.rule.offload and run.record is None
    changed = run.adapter is not None or run.record is not None or run.liger
    now = FULL if kept else NONE if run.recompute == NONE and not changed else ""
    for knob in engine_knobs(estimate.resolved.engine.name):
        for one in knob.savings if knob.kind == RECOMPUTES else ():
            if now in one.before:
                yield _policy(estimate, one)


def _policy(estimate: Estimate, one: Saving) -> Candidate:
    """A policy by its name; the coarser key is removed where the run has it."""
    settings = (f"{POLICY}={one.value}", *_removed(estimate, "activation_checkpointing"))
    return Candidate(one.title, settings, one.cost, one.weight)


def _removed(estimate: Estimate, key: str) -> tuple[str, ...]:
    """A setting that removes a key of the training section, where the run has it."""
    given = estimate.result.run.get("training") or {}
    return (f"training.{key}=null",) if key in given else ()


def _recompute(estimate: Estimate, level: str, cost: str = "", weight: int = 1) -> Candidate:
    settings = (f"training.activation_checkpointing={level}", *_removed(estimate, "recompute"))
    return Candidate(f"{RECOMPUTE[level]} recompute", settings, cost, weight)


def _inference_savings(estimate: Estimate) -> Iterator[Candidate]:
    """Changes that save memory in an inference run."""
    run = estimate.resolved.run
    if run.attention == "eager":
        yield Candidate("SDPA", ("inference.attention=sdpa",))
    if run.precision == "fp32":
        yield Candidate("bf16", ("inference.dtype=bf16",), "16-bit weights and cache")
    if run.batch > 1:
        half = run.batch // 2
        yield Candidate(
            f"batch {half}", (f"inference.batch_size={half}",), "fewer concurrent sequences", 4
        )


def _sharding(estimate: Estimate) -> Iterator[Candidate]:
    """Changes that shard more of the states over the data-parallel ranks."""
    run, name = estimate.resolved.run, estimate.resolved.engine.name
    if run.mesh.dp == 1:
        return
    if engine_row(name).ranks == REPLICATE:
        several = offered(estimate, ON_SEVERAL)
        yield from (one for one in several if one.settings[0] == f"engine.type={SHARDING}")
    yield from _turned(estimate, SHARDS)


def offered(estimate: Estimate, to: str) -> Iterator[Candidate]:
    """What other engines offer to runs of some kind."""
    for name, one in offers(to):
        if name != estimate.resolved.engine.name:
            settings = to_engine(estimate, name, one.options)
            yield Candidate(one.title, settings, one.cost, one.weight)


def to_engine(estimate: Estimate, name: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings that select another engine and remove the options that it does not have."""
    given, known = estimate.result.run.get("engine", {}), engine(name).options
    foreign = [f"engine.{key}=null" for key in given if key != "type" and key not in known]
    own = (f"engine.{key}={value}" for key, value in options.items())
    return (f"engine.type={name}", *own, *foreign)


def _model_parallel(estimate: Estimate) -> Iterator[Candidate]:
    """Twice the tensor or pipeline parallelism, with half the data-parallel ranks."""
    run, axes = estimate.resolved.run, estimate.resolved.engine.axes
    if run.mesh.dp % 2:
        return
    if "tp" in axes and run.mesh.tp * 2 <= run.gpus_per_node:
        sequence = () if run.sequence_parallel else ("sequence_parallel",)
        yield _twice_as_wide(run, "tp", "more communication", *sequence)
    if "pp" in axes:
        yield _twice_as_wide(run, "pp", "a longer pipeline")


def _twice_as_wide(run: Run, axis: str, cost: str, *more: str) -> Candidate:
    """Twice the ranks of an axis, with half the data-parallel ones and twice their micro-batches:
    the batch of a step stays. `more` is switched on, and the title says so.
    """
    size, half = 2 * getattr(run.mesh, axis), run.mesh.dp // 2
    sizes = (f"parallelism.{AXES[axis]}={size}", f"parallelism.data_parallel_size={half}")
    batches = 2 * int(run.micro_batches)
    on = (f"parallelism.{key}=true" for key in more)
    settings = (*sizes, f"training.gradient_accumulation_steps={batches}", *on)
    title = ", ".join((f"{axis} {size}", *(key.replace("_", " ") for key in more)))
    return Candidate(title, settings, f"{cost}; {batches} micro-batches for the same batch", 2)


def further_savings(estimate: Estimate) -> Iterator[Candidate]:
    """What saves memory and trains otherwise: another framework, precision, adapters, more GPUs."""
    run, framework = estimate.resolved.run, estimate.resolved.engine
    if framework.transformers and run.mesh.dp > 1 and run.mesh.pp == 1:
        yield from offered(estimate, ON_SEVERAL)
    if "cp" in framework.axes and run.mesh.dp % 2 == 0:
        yield _twice_as_wide(run, "cp", "shards sequences across GPUs; more communication")
    if run.attention == "eager" and framework.transformers:
        yield Candidate("SDPA", ("training.attention=sdpa",))
    if not estimate.serves:
        yield from _turned(estimate, MOVES_ALL)
    yield from _precision(estimate)
    trains = run.new_tokens is None
    if trains and run.adapter is None:
        yield adapters(estimate, "lora")
    if trains and (run.adapter is None or run.quantization is None):
        yield adapters(estimate, "qlora")
    yield more_gpus(estimate)


def _precision(estimate: Estimate) -> Iterator[Candidate]:
    """Precisions with fewer bits; `training.dtype` is removed, because it would contradict."""
    precision = estimate.resolved.run.precision
    given = estimate.result.run.get("training", {})
    no_dtype = ("training.dtype=null",) if "dtype" in given else ()
    if precision == "fp32":
        yield Candidate(
            "bf16 mixed", ("training.precision=bf16_mixed", *no_dtype), "16-bit matmuls"
        )
    if not precision.endswith("_pure"):
        kind = "fp16" if precision.startswith("fp16") else "bf16"
        yield Candidate(
            f"{kind} pure",
            (f"training.precision={kind}_pure", *no_dtype),
            "weights and states in 16 bits: small updates get lost",
            6,
        )


def adapters(estimate: Estimate, recipe: str, on: str = "") -> Candidate:
    """The usual settings for LoRA or QLoRA, `on` another engine if that is given; an adapter that
    the run has keeps its rank.
    """
    run, name = estimate.resolved.run, on or estimate.resolved.engine.name
    rank = DEFAULT_RANK if run.adapter is None else int(run.adapter.rank)
    keys = recipe_settings(recipe, rank, name, card_dtype(estimate.resolved.hardware))
    dtype = ("training.dtype=null",) * ("dtype" in estimate.result.run.get("training", {}))
    title = f"{TITLES[recipe]} r={rank}" if recipe == "lora" else TITLES[recipe]
    cost = ADAPTER if run.adapter is None else "4-bit base"
    return Candidate(title, (*_settings(keys), *dtype), cost, 4 if recipe == "lora" else 5)


def _settings(keys: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys and their values in `--set` notation."""
    texts = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in keys.items()}
    return tuple(f"{key}={text}" for key, text in texts.items())


def more_gpus(estimate: Estimate, times: int = 2, *settings: str, title: str = "") -> Candidate:
    """Several times the GPUs, all of them data-parallel; keys for nodes are removed."""
    given, count = estimate.result.run, times * estimate.resolved.hardware.num_gpus
    changes = [*settings, f"hardware.num_gpus={count}"]
    changes += [f"hardware.{key}=null" for key in NODES if key in given.get("hardware", {})]
    if "data_parallel_size" in given.get("parallelism", {}):
        changes.append(f"parallelism.data_parallel_size={times * estimate.resolved.run.mesh.dp}")
    cost = "twice the GPUs" if times == 2 else f"{times} times the GPUs"
    weight = 2 + times.bit_length() - 1
    return Candidate(f"{title}{count} GPUs", tuple(changes), cost, weight)


def uses_of_free_memory(estimate: Estimate) -> Iterator[Candidate]:
    """Changes that take more memory and are wanted where some is free."""
    run = estimate.resolved.run
    if run.recompute != NONE:
        yield _recompute(estimate, NONE, "faster")
    if run.micro_batches % 2 == 0:
        half = int(run.micro_batches // 2)
        yield _batch(int(2 * run.batch), half, "same batch in fewer micro-batches")
    else:
        yield Candidate(
            f"batch {2 * run.batch}",
            (f"training.batch_size={2 * run.batch}",),
            "a batch twice as large",
        )
