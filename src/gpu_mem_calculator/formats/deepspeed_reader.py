"""DeepSpeed's JSON as a run: the sections of a run file that it says, and what it leaves open.

The file knows nothing of the model, its sequence, the number of ranks, zero.Init, the stages of a
pipeline, or whether layers run twice: the program decides those, and what is assumed is listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from ..core.errors import InputError
from ..core.resolve import resolve
from ..core.runfile import load_text, with_settings
from ..core.runfile import read as read_run
from ..engines.deepspeed.options import OPTIONS
from ..jobs.deepspeed import CHECKPOINT_KEYS, ZERO_KEYS
from ..ledger.units import MIB
from .deepspeed_batch import MICRO, STEPS, TRAIN, complete
from .deepspeed_check import OLD_FORM, CheckedFile, shown
from .deepspeed_optimizer import optimizer, scheduler
from .deepspeed_zero_keys import NVME

Source = str | Path | Mapping[str, Any]
ZERO = "zero_optimization"
RECOMPUTE = "activation_checkpointing"
OFFLOADS = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}
SWAPPED = MIB  # aio.block_size up to which DeepSpeed swaps the same tensors
# A model that ranks divide, however many: for rules that hold for every model.
ANY_MODEL = {"num_layers": 840, "hidden_size": 1680, "num_attention_heads": 840,
             "vocab_size": 107_520, "max_seq_len": 1024}  # fmt: skip
# Sizes of a run that share one rank's data, by their keys.
CUTS = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")


class RunFileSections(TypedDict):
    """Sections of a run file; `assumed` says by key of the run file what the file leaves open,
    `no_memory` lists keys of the file that take none.
    """

    training: dict[str, Any]
    parallelism: dict[str, Any]
    engine: dict[str, Any]
    hardware: dict[str, Any]
    assumed: dict[str, str]
    no_memory: list[str]


class ForeignRun(NamedTuple):
    """A whole run file, and what was assumed for it."""

    data: dict[str, Any]
    assumed: tuple[str, ...]
    no_memory: tuple[str, ...]


def read(source: Source, *, num_gpus: int | None, cut: int = 1) -> RunFileSections:
    """A DeepSpeed file, by path or as data, for so many GPUs; raises every problem at once, those
    of the engine too that any model would have.

    `cut` is the number of GPUs that share the same data: a pipeline's stages, times
    tensor-parallel ranks. Where `num_gpus` is None the file's batch sizes say it, else it is 1.
    """
    found = sections(source, num_gpus=num_gpus, cut=cut)
    resolve(
        read_run({"model": ANY_MODEL, "training": found["training"], "engine": found["engine"]})
    )
    return found


def sections(source: Source, *, num_gpus: int | None, cut: int) -> RunFileSections:
    """The same without the engine's rules, which settings may still change."""
    data = source if isinstance(source, Mapping) else load_text(source)
    if not isinstance(data, Mapping):
        raise InputError([f"{source}: DeepSpeed's configuration is an object, not {shown(data)}"])
    checked = CheckedFile(data)
    training = {**_batch(checked, num_gpus, cut), **_training(checked)}
    engine = {"type": "deepspeed", **_zero(checked), **_checkpointing(checked, training)}
    checked.problems += _problems(checked, training, engine)
    if checked.problems:
        raise InputError(checked.problems)
    ranks = training.pop("ranks")
    return {
        "training": training,
        "parallelism": {"data_parallel_size": ranks},
        "engine": engine,
        "hardware": {"num_gpus": ranks * cut},
        "assumed": dict(_assumed(checked, num_gpus, ranks * cut, engine)),
        "no_memory": checked.free,
    }


def run_file(source: Source, *, model: str | None, settings: Iterable[str] = ()) -> ForeignRun:
    """A whole run file: DeepSpeed's file, the model's name, and `section.key=value` over them.

    Without a name, and without settings of the model, it has no `model` section.
    """
    settings = tuple(settings)
    over = with_settings({}, settings)
    found = sections(source, **_sizes(over))
    data: dict[str, Any] = {} if model is None else {"model": {"name": model}}
    data |= {name: dict(found[name]) for name in ("training", "parallelism", "engine", "hardware")}
    said = {f"{section}.{key}" for section in over for key in _given(over, section)}
    assumed = tuple(text for key, text in found["assumed"].items() if key not in said)
    return ForeignRun(with_settings(data, settings), assumed, tuple(found["no_memory"]))


def _given(over: dict[str, Any], section: str) -> dict[str, Any]:
    found = over.get(section)
    return found if isinstance(found, dict) else {}


def _sizes(over: dict[str, Any]) -> dict[str, Any]:
    """GPUs, and those that share the same data, as settings have them."""
    hardware, sizes = _given(over, "hardware"), _given(over, "parallelism")
    cut = 1
    for key in CUTS:
        cut *= _whole(sizes.get(key)) or 1
    gpus = _whole(hardware.get("num_gpus"))
    if gpus is None and _whole(sizes.get("data_parallel_size")):
        gpus = cut * sizes["data_parallel_size"]
    if gpus is None and hardware.get("num_nodes"):
        gpus = (_whole(hardware["num_nodes"]) or 1) * (_whole(hardware.get("gpus_per_node")) or 8)
    return {"num_gpus": gpus, "cut": cut}


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _batch(checked: CheckedFile, num_gpus: int | None, cut: int) -> dict[str, Any]:
    """The batch sizes, whole; `ranks` beside them."""
    ranks = None
    if num_gpus is not None:
        ranks = max(1, num_gpus // cut)
        if num_gpus % cut:
            checked.problems.append(f"{num_gpus} GPUs are not a multiple of the {cut} that share "
                                    f"the same data; use {ranks * cut}")  # fmt: skip
    try:
        batch = complete(checked.get(TRAIN), checked.get(MICRO), checked.get(STEPS), ranks)
    except InputError as error:
        wrong = any(problem.startswith((TRAIN, MICRO, STEPS)) for problem in checked.problems)
        checked.problems += [] if wrong else error.problems
        return {"ranks": ranks or 1}
    return {"batch_size": batch.micro, "gradient_accumulation_steps": batch.steps,
            "ranks": batch.ranks}  # fmt: skip


def _training(checked: CheckedFile) -> dict[str, Any]:
    """Precision, optimizer and clipping."""
    sixteen = [name for name in ("bf16", "fp16") if checked.get(f"{name}.enabled")]
    if len(sixteen) > 1:
        checked.problems.append("bf16.enabled and fp16.enabled are both true; set one to false")
    found: dict[str, Any] = {"precision": f"{sixteen[0]}_mixed" if sixteen else "fp32"}
    if checked.get("optimizer") is not None:
        found |= optimizer(checked.get("optimizer"), checked.problems, checked.free)
    if checked.get("scheduler") is not None:
        scheduler(checked.get("scheduler"), checked.problems, checked.free)
    if checked.get("gradient_clipping") is not None:
        found["gradient_clipping"] = checked.get("gradient_clipping")
    return found


def _zero(checked: CheckedFile) -> dict[str, Any]:
    """The engine's options of ZeRO."""
    given = checked.section(ZERO)
    found: dict[str, Any] = {"zero_stage": given.get("stage", 0)}
    if checked.get("allgather_size") is not None:
        found["allgather_bucket_size"] = checked.get("allgather_size")
    found |= {key: given[key] for key in ZERO_KEYS if key in given}
    pinned = {}
    for key, older in OFFLOADS.items():
        place = given.get(f"{key}.device", "none")
        if given.get(older):
            place = "cpu"
            if key in given:
                checked.problems.append(f"{ZERO}.{older} and {key} are the same; leave {older} out")
        if place != "none":
            found[key] = place
            pinned[key] = given.get(f"{key}.pin_memory", OPTIONS["pin_memory"])
    if len(set(pinned.values())) > 1:
        checked.problems.append(f"{ZERO}.offload_optimizer and offload_param differ in pin_memory, "
                                "which is not modelled; give both the same")  # fmt: skip
    elif False in pinned.values():
        found["pin_memory"] = False
    return found


def _checkpointing(checked: CheckedFile, training: dict[str, Any]) -> dict[str, Any]:
    """What DeepSpeed's own checkpoints do; that the program makes them is assumed."""
    given = checked.section(RECOMPUTE)
    if checked.get(RECOMPUTE):
        training[RECOMPUTE] = "full"
    if given.get("contiguous_memory_optimization") and not given.get("partition_activations"):
        checked.problems.append(f"{RECOMPUTE}.contiguous_memory_optimization=true needs "
                                "partition_activations; set that to true")  # fmt: skip
    return {key: given[key] for key in CHECKPOINT_KEYS if given.get(key)}


def _problems(
    checked: CheckedFile, training: dict[str, Any], engine: dict[str, Any]
) -> Iterator[str]:  # fmt: skip
    """What does not go together, or would do what is not modelled."""
    width = training["precision"].partition("_")[0]
    for key in ("communication_data_type", "data_types.grad_accum_dtype", "data_types.param_dtype"):
        if checked.get(key, width) != width:
            yield (f"{key}={shown(checked.get(key))} differs from the {width} that the model is "
                   f"in, which is not modelled; set it to {width!r} or leave it out")  # fmt: skip
    nvme = [key for key in OFFLOADS if engine.get(key) == "nvme"]
    for path, default in NVME.items():
        value = checked.get(f"{ZERO}.{path}", default)
        if path.partition(".")[0] in nvme and value != default:
            yield (f"{ZERO}.{path}={shown(value)} is not modelled; set it to {shown(default)} or "
                   "leave it out")  # fmt: skip
    if nvme and checked.get("aio.block_size", 0) > SWAPPED:
        yield (f"aio.block_size={checked.get('aio.block_size')} above {SWAPPED} keeps tensors off "
               f"the disk, which is not modelled; set it to {SWAPPED}")  # fmt: skip
    if checked.get("allgather_size") is not None and checked.get(ZERO) != OLD_FORM:
        yield f"allgather_size counts beside {ZERO} true; set {ZERO}.allgather_bucket_size instead"
    if checked.get("gradient_allreduce_op") == "sum" and engine["zero_stage"] == 3:
        yield 'gradient_allreduce_op="sum" is not a choice at stage 3; set it to "mean"'
    tested = checked.get("zero_allow_untested_optimizer")
    if engine["zero_stage"] and str(training.get("optimizer")).startswith("sgd") and not tested:
        yield ("optimizer.type=\"SGD\": DeepSpeed wraps it in ZeRO only with "
               "zero_allow_untested_optimizer; set that to true")  # fmt: skip


def _assumed(
    checked: CheckedFile, num_gpus: int | None, ranks: int, engine: dict[str, Any]
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """What the file does not say, by the key of a run file that does."""
    yield "training.seq_len", "sequences as long as the model takes (training.seq_len)"
    if num_gpus is None:
        said = all(checked.get(key) is not None for key in (TRAIN, MICRO, STEPS))
        yield "hardware.num_gpus", (f"{ranks} GPU{'s' * (ranks > 1)}"
                                    f"{', as the batch sizes say' * said} (hardware.num_gpus)"
                                    )  # fmt: skip
    if checked.get("optimizer") is None:
        yield "training.optimizer", "the optimizer is DeepSpeed's AdamW (training.optimizer)"
    what = "every layer is" if checked.get(RECOMPUTE) else "no layer is"
    yield f"training.{RECOMPUTE}", f"{what} checkpointed (training.{RECOMPUTE})"
    yield from _contiguous(checked)
    if engine["zero_stage"] == 3:
        yield "engine.zero_init", "the model is made under zero.Init (engine.zero_init)"


def _contiguous(checked: CheckedFile) -> Iterator[tuple[str, str]]:
    """Buffers for checkpoints, which DeepSpeed makes at the first of them."""
    given = checked.section(RECOMPUTE)
    key = f"{RECOMPUTE}.number_checkpoints"
    if "num_checkpoints" in given and "number_checkpoints" not in given:
        yield key, (f"{RECOMPUTE}.num_checkpoints is the program's to pass on, DeepSpeed's key is "
                    "number_checkpoints")  # fmt: skip
    elif given.get("contiguous_memory_optimization"):
        yield (
            key,
            f"the {given.get('number_checkpoints', '')} contiguous checkpoints are one a layer",
        )
