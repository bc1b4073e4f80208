"""Reads DeepSpeed's JSON as sections of a run file, and lists what it leaves open.

The file does not contain the model, its sequence, the number of ranks, zero.Init, the stages of a
pipeline, or whether layers are recomputed: the program decides those, and what is assumed is
listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from ...ledger.units import MIB
from ...runfile.config import ModelConfig
from ...runfile.find_model.model_source import find_model
from ...runfile.program import Section
from ...runfile.read import parse, section, with_settings
from ...runfile.resolve.resolve import resolve
from ...runfile.text.errors import InputError
from ...runfile.text.text_data import load_text
from ...training.engines.deepspeed.options import OPTIONS
from ..translation.arguments import Values, tables
from .auto import ZERO, HiddenSize, auto_assumptions, auto_values
from .batch import MICRO, STEPS, TRAIN, complete_batch
from .checked_file import OLD_FORM, CheckedFile, quote
from .keys import NVME
from .names import CHECKPOINT_KEYS, ZERO_KEYS
from .optimizer import optimizer, scheduler

Source = str | Path | Values
RECOMPUTE = "activation_checkpointing"
OFFLOADS = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}
MOST_BLOCK_SIZE = MIB  # aio.block_size up to which DeepSpeed swaps the same tensors
# A model that many numbers of ranks divide, to check rules that hold for every model.
ANY_MODEL: dict[str, int] = tables(__file__)["any_model"]
# Keys of parallelism whose ranks share the same data.
MODEL_PARALLEL_KEYS = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")


class RunFileSections(TypedDict):
    """Sections of a run file, from a DeepSpeed file.

    - assumed: by key of the run file, a sentence on what the DeepSpeed file leaves open
    - no_memory: keys of the DeepSpeed file that take no memory
    """

    training: Section
    parallelism: Section
    engine: Section
    hardware: Section
    assumed: dict[str, str]
    no_memory: list[str]


class ForeignRun(NamedTuple):
    """A run file's data, what was assumed for it, and keys that take no memory."""

    data: Section
    assumed: tuple[str, ...]
    no_memory: tuple[str, ...]


def read(source: Source, *, num_gpus: int | None, model_ranks: int = 1) -> RunFileSections:
    """The sections of a DeepSpeed file, given as a path or as data; raises all problems at once,
    with those of the engine that any model would have.

    - num_gpus: None where the file's batch sizes determine it, else 1 is assumed
    - model_ranks: GPUs that share the same data: pipeline stages times tensor-parallel ranks
    """
    file_sections = sections(source, num_gpus=num_gpus, model_ranks=model_ranks)
    training, engine = file_sections["training"], file_sections["engine"]
    resolve(parse({"model": ANY_MODEL, "training": training, "engine": engine}))
    return file_sections


def sections(
    source: Source, *, num_gpus: int | None, model_ranks: int, hidden: HiddenSize = lambda: None
) -> RunFileSections:
    """The same as `read`, without the rules of the engine, which settings may still change.

    hidden: gives the model's hidden size, for "auto"; None where it is not known
    """
    data = source if isinstance(source, Mapping) else load_text(source)
    if not isinstance(data, Mapping):
        raise InputError(f"{source}: DeepSpeed's configuration is an object, not {quote(data)}")
    checked = CheckedFile(data)
    checked.values |= auto_values(checked.auto, checked.values, hidden)
    training = {**_batch(checked, num_gpus, model_ranks), **_training(checked)}
    engine = {"type": "deepspeed", **_zero(checked), **_checkpointing(checked, training)}
    checked.problems += _problems(checked, training, engine)
    if checked.problems:
        raise InputError(checked.problems)
    ranks = training.pop("ranks")
    return {
        "training": training,
        "parallelism": {"data_parallel_size": ranks},
        "engine": engine,
        "hardware": {"num_gpus": ranks * model_ranks},
        "assumed": dict(_assumed(checked, num_gpus, ranks * model_ranks, engine)),
        "no_memory": checked.free,
    }


def run_file(source: Source, *, model: str | None, settings: Iterable[str] = ()) -> ForeignRun:
    """A run file from a DeepSpeed file, the model's name, and `section.key=value` settings.

    Without a name and without settings of the model, it has no `model` section.
    """
    settings = tuple(settings)
    overrides = with_settings({}, settings)
    hidden = partial(_hidden_size, model, overrides)
    file_sections = sections(source, **_sizes(overrides), hidden=hidden)
    data: Section = {} if model is None else {"model": {"name": model}}
    for name in ("training", "parallelism", "engine", "hardware"):
        data[name] = dict(file_sections[name])
    if "dtype" in _section_settings(overrides, "training"):
        data["training"].pop("precision", None)
    keys = {f"{name}.{key}" for name in overrides for key in _section_settings(overrides, name)}
    keys |= {"training.precision"} if "training.dtype" in keys else set()
    assumed = tuple(text for key, text in file_sections["assumed"].items() if key not in keys)
    return ForeignRun(with_settings(data, settings), assumed, tuple(file_sections["no_memory"]))


def _hidden_size(model: str | None, overrides: Section) -> int | None:
    """The hidden size of a named model, with settings of its section; None without a model."""
    name = {} if model is None else {"name": model}
    given = {**name, **_section_settings(overrides, "model")}
    return find_model(section("model", ModelConfig, given)).arch.hidden if given else None


def _section_settings(over: Section, section: str) -> Section:
    settings = over.get(section)
    return settings if isinstance(settings, dict) else {}


def _sizes(over: Section) -> Section:
    """The arguments num_gpus and model_ranks of `sections`, from settings."""
    hardware, sizes = _section_settings(over, "hardware"), _section_settings(over, "parallelism")
    model_ranks = prod(_positive_int(sizes.get(key)) or 1 for key in MODEL_PARALLEL_KEYS)
    gpus = _positive_int(hardware.get("num_gpus"))
    if gpus is None and _positive_int(sizes.get("data_parallel_size")):
        gpus = model_ranks * sizes["data_parallel_size"]
    if gpus is None and hardware.get("num_nodes"):
        per_node = _positive_int(hardware.get("gpus_per_node")) or 8
        gpus = (_positive_int(hardware["num_nodes"]) or 1) * per_node
    return {"num_gpus": gpus, "model_ranks": model_ranks}


def _positive_int(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _batch(checked: CheckedFile, num_gpus: int | None, model_ranks: int) -> Section:
    """The batch sizes as keys of `training`, and the data-parallel `ranks`."""
    ranks = None
    if num_gpus is not None:
        ranks = max(1, num_gpus // model_ranks)
        if num_gpus % model_ranks:
            shared = f"the {model_ranks} that share the same data; use {ranks * model_ranks}"
            checked.problems.append(f"{num_gpus} GPUs are not a multiple of {shared}")
    try:
        batch = complete_batch(checked.get(TRAIN), checked.get(MICRO), checked.get(STEPS), ranks)
    except InputError as error:
        wrong = any(problem.startswith((TRAIN, MICRO, STEPS)) for problem in checked.problems)
        checked.problems += [] if wrong else error.problems
        return {"ranks": ranks or 1}
    return {"batch_size": batch.micro, STEPS: batch.steps, "ranks": batch.ranks}


def _training(checked: CheckedFile) -> Section:
    """Keys of `training`: precision, optimizer and clipping."""
    sixteen = [name for name in ("bf16", "fp16") if checked.get(f"{name}.enabled")]
    if len(sixteen) > 1:
        checked.problems.append("bf16.enabled and fp16.enabled are both true; set one to false")
    training: Section = {"precision": f"{sixteen[0]}_mixed" if sixteen else "fp32"}
    if checked.get("optimizer") is not None:
        training |= optimizer(checked.get("optimizer"), checked.problems, checked.free)
    if checked.get("scheduler") is not None:
        scheduler(checked.get("scheduler"), checked.problems, checked.free)
    zero = checked.section(ZERO)
    if zero.get("stage") == 3 and zero.get("stage3_gather_16bit_weights_on_model_save"):
        training["saving"] = "full_state_dict"
    if checked.get("gradient_clipping") is not None:
        training["gradient_clipping"] = checked.get("gradient_clipping")
    return training


def _zero(checked: CheckedFile) -> Section:
    """Keys of `engine` from the `zero_optimization` section."""
    section = checked.section(ZERO)
    options: Section = {"zero_stage": section.get("stage", 0)}
    if checked.get("allgather_size") is not None:
        options["allgather_bucket_size"] = checked.get("allgather_size")
    options |= {key: section[key] for key in ZERO_KEYS if key in section}
    pinned = {}
    for key, older in OFFLOADS.items():
        place = section.get(f"{key}.device", "none")
        if section.get(older):
            place = "cpu"
            if key in section:
                checked.problems.append(f"{ZERO}.{older} and {key} are the same; leave {older} out")
        if place != "none":
            options[key] = place
            pinned[key] = section.get(f"{key}.pin_memory", OPTIONS["pin_memory"])
    if len(set(pinned.values())) > 1:
        both = f"{ZERO}.offload_optimizer and offload_param differ in pin_memory"
        checked.problems.append(f"{both}, which is not modelled; give both the same")
    elif False in pinned.values():
        options["pin_memory"] = False
    return options


def _checkpointing(checked: CheckedFile, training: Section) -> Section:
    """Keys of `engine` from `activation_checkpointing`; assumes that the program checkpoints."""
    section = checked.section(RECOMPUTE)
    if checked.get(RECOMPUTE):
        training[RECOMPUTE] = "full"
    if section.get("contiguous_memory_optimization") and not section.get("partition_activations"):
        needs = "needs partition_activations; set that to true"
        checked.problems.append(f"{RECOMPUTE}.contiguous_memory_optimization=true {needs}")
    return {key: section[key] for key in CHECKPOINT_KEYS if section.get(key)}


def _problems(checked: CheckedFile, training: Section, engine: Section) -> Iterator[str]:
    """Settings that contradict each other or are not modelled, a sentence for each."""
    width = training["precision"].partition("_")[0]
    for key in ("communication_data_type", "data_types.grad_accum_dtype", "data_types.param_dtype"):
        if checked.get(key, width) != width:
            differs = (
                f"{key}={quote(checked.get(key))} differs from the {width} that the model is in"
            )
            yield f"{differs}, which is not modelled; set it to {width!r} or leave it out"
    nvme = [key for key in OFFLOADS if engine.get(key) == "nvme"]
    for path, default in NVME.items():
        value = checked.get(f"{ZERO}.{path}", default)
        if path.partition(".")[0] in nvme and value != default:
            fix = f"set it to {quote(default)} or leave it out"
            yield f"{ZERO}.{path}={quote(value)} is not modelled; {fix}"
    if nvme and checked.get("aio.block_size", 0) > MOST_BLOCK_SIZE:
        above = f"aio.block_size={checked.get('aio.block_size')} above {MOST_BLOCK_SIZE}"
        why = "keeps tensors off the disk, which is not modelled"
        yield f"{above} {why}; set it to {MOST_BLOCK_SIZE}"
    if checked.get("allgather_size") is not None and checked.get(ZERO) != OLD_FORM:
        yield f"allgather_size counts beside {ZERO} true; set {ZERO}.allgather_bucket_size instead"
    if checked.get("gradient_allreduce_op") == "sum" and engine["zero_stage"] == 3:
        yield 'gradient_allreduce_op="sum" is not a choice at stage 3; set it to "mean"'
    tested = checked.get("zero_allow_untested_optimizer")
    if engine["zero_stage"] and str(training.get("optimizer")).startswith("sgd") and not tested:
        allow = "zero_allow_untested_optimizer; set that to true"
        yield f'optimizer.type="SGD": DeepSpeed wraps it in ZeRO only with {allow}'


def _assumed(
    checked: CheckedFile, num_gpus: int | None, ranks: int, engine: Section
) -> Iterator[tuple[str, str]]:
    """(key of the run file, sentence) for everything that the DeepSpeed file leaves open."""
    yield from auto_assumptions(checked.auto, checked.values)
    yield "training.seq_len", "sequences as long as the model takes (training.seq_len)"
    if num_gpus is None:
        from_batch = all(checked.get(key) is not None for key in (TRAIN, MICRO, STEPS))
        gpus = f"{ranks} GPU{'s' * (ranks > 1)}{', as the batch sizes say' * from_batch}"
        yield "hardware.num_gpus", f"{gpus} (hardware.num_gpus)"
    if checked.get("optimizer") is None:
        yield "training.optimizer", "the optimizer is DeepSpeed's AdamW (training.optimizer)"
    what = "every layer is" if checked.get(RECOMPUTE) else "no layer is"
    yield f"training.{RECOMPUTE}", f"{what} checkpointed (training.{RECOMPUTE})"
    yield from _contiguous(checked)
    if engine["zero_stage"] == 3:
        yield "engine.zero_init", "the model is created under zero.Init (engine.zero_init)"


def _contiguous(checked: CheckedFile) -> Iterator[tuple[str, str]]:
    """Assumptions on the contiguous buffers for checkpoints."""
    section = checked.section(RECOMPUTE)
    assumption = ""
    if "num_checkpoints" in section and "number_checkpoints" not in section:
        passed_on = f"{RECOMPUTE}.num_checkpoints is the program's to pass on"
        assumption = f"{passed_on}, DeepSpeed's key is number_checkpoints"
    elif section.get("contiguous_memory_optimization"):
        number = section.get("number_checkpoints", "")
        assumption = f"the {number} contiguous checkpoints are one a layer"
    if assumption:
        yield f"{RECOMPUTE}.number_checkpoints", assumption
