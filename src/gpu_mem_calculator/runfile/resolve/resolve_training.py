"""A training run file becomes a run: defaults are filled in, adapters and what is assumed of an
int8 base resolved, and the rules of the engine checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.dtypes import BITS, dtype_name
from ...ledger.mesh import Mesh
from ...models.arch.adapters import DEFAULT_TARGETS, LLAMA_TARGETS, Adapter, linears, module_name
from ...models.arch.scaling import scaled
from ...pytorch.modelling.huggingface.activation_names import activation_problems
from ...pytorch.replay.settings import AllocatorSettings, AllocatorSettingsError
from ...run.cuda.capability import torch_notes
from ...run.cuda.runtimes import runtime_notes
from ...run.releases import UserRelease
from ...run.run import DEFAULT_OPTIMIZER, Run
from ...serving import spellings as servers
from ...training.engines import DEFAULT, engine, engine_names, engines, spellings
from ...training.losses import DEFAULT as DEFAULT_LOSS
from ...training.losses import LOSSES
from ...training.optimizers import OPTIMIZERS, optimizer_name
from ...training.recompute_rules import recompute_note
from ...training.rules import problems
from ..find_model.model_source import find_model
from ..program import Translation
from ..read import given_keys
from ..text.errors import InputError, Problems, nearest, quoted
from . import training_rules
from .colocated_engine import with_engine
from .hardware import Hardware, find_hardware
from .implementation import implementation_options, in_implementation
from .loss_choices import loss_choices
from .recompute_policies import find_recompute
from .resolved_run import ResolvedRun
from .step_choices import (
    checkpoint_choices,
    compile_mode,
    drawn_batches,
    find_rollout,
    reference_kind,
    stored_checkpoint,
    with_drawn,
    with_evaluation,
    with_generates,
)
from .training_defaults import default_precision, sequence

if TYPE_CHECKING:
    from ...models.arch.arch import Arch
    from ...run.engine import Engine
    from ..config import EngineConfig, ParallelismConfig, RunFile, TrainingConfig


def find_adapter(config: TrainingConfig, arch: Arch) -> Adapter | None:
    """The run's adapters, None where it has none; raises a sentence for what cannot be."""
    if config.lora is None:
        if config.quantization not in (None, "none"):
            why = "quantized weights take no gradient; add training.lora"
            raise InputError(f"training.quantization={config.quantization!r}: {why}")
        return None
    known = {module_name(one) for layer, _, _ in arch.runs for one in linears(layer)}
    if not known:
        raise InputError(f"training.lora: {arch.family} has no projection that PEFT adapts")
    modules = config.lora.target_modules
    usual = DEFAULT_TARGETS.get(arch.family, LLAMA_TARGETS)
    if modules == []:
        nothing = "training.lora.target_modules=[] adapts nothing; leave it out for"
        raise InputError(f"{nothing} {', '.join(sorted(usual))}")
    if modules == "all-linear":
        modules = sorted(known)
    elif isinstance(modules, str):
        from ..find_model.target_patterns import matched_names

        modules = matched_names(modules, arch, known)
    targets = frozenset(modules or usual)
    missing = sorted(targets - known)
    if missing:
        absent = f"{arch.family} has no {', '.join(missing)}"
        present = f"it has {', '.join(sorted(known))}"
        raise InputError(f"training.lora.target_modules: {absent}; {present}")
    lora = config.lora
    bits, initial = (BITS[name] for name in (lora.adapter_dtype, lora.initial_dtype or "fp32"))
    made = initial if lora.initial_dtype and initial != bits else 0
    dropout = 0.0 if config.disable_dropout else lora.dropout
    return Adapter(lora.r, targets, bits, dropout, lora.dora, made)


def with_outliers(
    run: Run, training: TrainingConfig, config: Mapping[str, Any] | None
) -> tuple[Run, list[str]]:
    """The run with the share of columns that have outliers, and a sentence where it is assumed;
    `config`: the model's config.json, where there is one.
    """
    if not run.int8_threshold or training.int8_outliers is not None:
        return run, []
    from ...training.step.outliers import SPREAD, outlier_share

    spread = _initializer_range(config or {}, SPREAD)
    tokens = int(run.batch) * int(run.seq)
    share = outlier_share(run.arch, run.int8_threshold, tokens, spread)
    source = "as newly initialised weights have them; trained weights have fewer"
    return replace(run, int8_outliers=share), [f"training.int8_outliers={share:.2g}, {source}"]


def _initializer_range(config: Mapping[str, Any], usual: float) -> float:
    """The standard deviation of newly initialised weights; `usual` where a config has none."""
    text = config.get("text_config")
    inside = text if isinstance(text, Mapping) else {}
    found = config.get("initializer_range", inside.get("initializer_range", usual))
    return float(found) if isinstance(found, int | float) else usual


AXES = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_parallel_size",
}


def _not_sharded(engine: Engine, axis: str, size: int) -> str:
    """The problem of an axis that is not modelled for an engine, and the engines that have it."""
    word = AXES[axis].removesuffix("_parallel_size")
    others = " or ".join(name for name, one in engines().items() if axis in one.axes)
    return (
        f"parallelism.{AXES[axis]}={size}: {word} parallelism of {engine.title} is not modelled "
        f"here; set it to 1 or use engine {others}"
    )


def resolve_training(file: RunFile) -> ResolvedRun:
    """The run that a training run file describes; raises all its problems at once."""
    found = draft_training(file)
    run, engine = found.run, found.engine
    refused = list(problems(run, engine, training_rules.key_problems(run, file, engine)))
    if refused:
        raise InputError(refused)
    return found


def draft_training(file: RunFile) -> ResolvedRun:
    """The same before the rules of a run are asked: what can be read and made of the file."""
    refused = Problems()
    attempt = refused.attempt
    chosen = attempt(find_engine, file.engine)
    model = attempt(find_model, file.model)
    mesh_given = _ranks(file.parallelism)
    hardware = attempt(find_hardware, file.hardware, mesh_given)
    training = attempt(_training, file.training)
    mesh = attempt(_mesh, file.parallelism, hardware, chosen) if hardware and chosen else None
    options = attempt(_options, file.engine, chosen) if chosen else None
    allocator = attempt(_allocator, file.training)
    if refused or mesh is None or options is None:
        raise InputError(refused)
    if not model.arch.trains:
        raise InputError(training_rules.not_trained(model.arch))
    if unknown := list(activation_problems(model.arch)):
        raise InputError(unknown)
    packed = training_rules.packed_weights(file.model.name or "", model.config, file.training)
    if packed:
        raise InputError(packed)
    if model.record is not None:
        from .record_checks import card_problems, recorded_problems

        refused += recorded_problems(file.training, training, model.record, chosen, options)
        refused += card_problems(model.record, hardware)
        training["batch"] = model.record.batch
    adapter = attempt(find_adapter, file.training, model.arch)
    loss = attempt(loss_choices, file.training, model.arch.family)
    rollout = attempt(with_engine, file, attempt(find_rollout, file.training))
    of_loss = loss["loss"] if loss else DEFAULT_LOSS
    drawn = attempt(drawn_batches, file.training, chosen, int(mesh.dp), of_loss)
    seq, assumed = sequence(file, model.arch, recorded=model.record is not None)
    precision, card = default_precision(file.training, hardware, chosen)
    training |= precision
    arch = attempt(in_implementation, model.arch, file, chosen, seq)
    if arch is not None and loss is not None and LOSSES[loss["loss"]].scores:
        from ...models.arch.variants import scored

        arch = scored(arch)
    if arch is not None and file.training.disable_dropout:
        from ...models.arch.variants import without_dropout

        arch = without_dropout(arch)
    if refused:
        raise InputError(refused)
    run = Run(
        arch=scaled(arch, model.parameters_given),
        mesh=mesh,
        seq=seq,
        adapter=adapter,
        options={**options, **implementation_options(file)},
        virtual_stages=file.parallelism.virtual_pipeline_size or 1,
        **_copied(file.parallelism),
        **hardware.of_run,
        parameters_given=model.parameters_given,
        **stored_checkpoint(model.config),
        record=model.record,
        **{**training, **loss},
        rollout=rollout,
    )
    run = with_evaluation(run, file.training.evaluation)
    run = with_generates(run, file.training.generates)
    run, outliers = with_outliers(run, file.training, model.config)
    run, open_lengths = with_drawn(chosen.complete(run), drawn)
    program = file.translation or Translation()
    return ResolvedRun(
        run=run,
        engine=chosen,
        hardware=hardware,
        model=model,
        allocator=allocator,
        assumed=(*model.assumed, *assumed, *card, *hardware.assumed, *outliers, *program.assumed),
        meant=program.meant,
        decisive=(*hardware.decisive, *([f"{seq:,} tokens"] if assumed else ())),
        versions=_versions(file, program),
        lengths=drawn,
        limits=(
            *training_rules.image_limit(run),
            *training_rules.shared_units_limit(run),
            *training_rules.compile_limit(run),
            *open_lengths,
            *hardware.limits,
            *(file.limits or ()),
        ),
        warnings=(
            *model.warnings,
            *program.warnings,
            *training_rules.tower_note(run, chosen),
            *training_rules.expert_note(run),
            *training_rules.quantized_experts_note(run),
            *recompute_note(run, chosen),
            *training_rules.compile_note(run),
            *training_rules.long_sequence_note(run, model.assumed),
            *torch_notes(run, chosen),
            *runtime_notes(run),
        ),
    )


def find_engine(config: EngineConfig) -> Engine:
    """The training engine that `engine.type` names."""
    name = (config.type or DEFAULT).lower()
    if name in servers():
        fix = "use inference.engine, or gpu-mem-calc infer"
        raise InputError(f"engine.type={config.type!r} serves models; {fix}")
    if name not in spellings():
        hint = nearest(name, spellings()) or f"; choose {', '.join(engine_names())}"
        raise InputError(f"engine.type={config.type!r} is not a known engine{hint}")
    return engine(spellings()[name])


def _options(config: EngineConfig, engine: Engine) -> dict[str, Any]:
    """The given options over the engine's defaults; options that it does not have are refused."""
    given = given_keys(config)
    given.pop("type", None)
    foreign = [f"engine.{key}={quoted(given[key])}" for key in given if key not in engine.options]
    if foreign:
        why = f"is not an option of {engine.title}; leave it out"
        raise InputError(f"{setting} {why}" for setting in foreign)
    return {**engine.options, **given}


def _ranks(config: ParallelismConfig) -> int | None:
    """The number of ranks, where the parallelism section has data_parallel_size; else None."""
    if config.data_parallel_size is None:
        return None
    ranks = config.data_parallel_size
    for key in ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size"):
        ranks *= getattr(config, key) or 1
    return ranks


def _mesh(config: ParallelismConfig, hardware: Hardware, engine: Engine) -> Mesh:
    sizes = {axis: getattr(config, key) or 1 for axis, key in AXES.items()}
    problems = [
        _not_sharded(engine, axis, size)
        for axis, size in sizes.items()
        if size > 1 and axis not in engine.axes
    ]
    if config.sequence_parallel and "tp" not in engine.axes:
        problems.append(f"parallelism.sequence_parallel=true: {engine.title} does not have it")
    if problems:
        raise InputError(problems)
    model_ranks = sizes["tp"] * sizes["pp"] * sizes["cp"]
    count = hardware.num_gpus
    dp = config.data_parallel_size or max(1, count // model_ranks)
    if dp * model_ranks != count:
        fix = f"set hardware.num_gpus={max(1, count // model_ranks) * model_ranks}"
        if count % model_ranks == 0:
            fix = f"set data_parallel_size={count // model_ranks}"
        product = f"dp {dp} x tp {sizes['tp']} x pp {sizes['pp']} x cp {sizes['cp']}"
        ranks = f"{dp * model_ranks} ranks, but hardware.num_gpus={count}"
        raise InputError(f"parallelism: {product} is {ranks}; {fix}")
    return Mesh(dp=dp, **sizes)


def _copied(section: Struct) -> dict[str, Any]:
    """The given keys that are fields of `Run` by the same name; the others have `Run`'s default."""
    return {key: one for key, one in given_keys(section).items() if key in Run.__struct_fields__}


def _training(config: TrainingConfig) -> dict[str, Any]:
    """The choices of the training section as fields of `Run`: copied, or worked out."""
    optimizer = optimizer_name(config.optimizer or DEFAULT_OPTIMIZER)
    problems = Problems()
    if optimizer not in OPTIMIZERS:
        unknown = f"training.optimizer={config.optimizer!r} is not a known optimizer"
        hint = nearest(optimizer, OPTIMIZERS) or f"; choose {', '.join(OPTIMIZERS)}"
        problems.append(unknown + hint)
    precision = problems.attempt(_precision, config)
    workspace = problems.attempt(_cublas_workspace, config)
    policy = problems.attempt(find_recompute, config)
    if problems:
        raise InputError(problems)
    quantization = None if config.quantization in (None, "none") else config.quantization
    return {
        **_copied(config),
        "batch": config.batch_size or 1,
        "micro_batches": config.gradient_accumulation_steps or 1,
        "precision": precision,
        "optimizer": optimizer,
        "implementation": config.optimizer_implementation or "",
        **checkpoint_choices(config),
        "clipping": config.gradient_clipping != 0,
        "recompute": policy.recompute,
        "recompute_quarters": policy.quarters,
        "rule": policy.rule,
        "reentrant": bool(config.checkpoint_reentrant),
        "quantization": quantization,
        "nf4_compute_bits": BITS[config.nf4_compute_dtype or "bf16"],
        "cublas_workspace": workspace,
        "reference": reference_kind(config),
        "documents": config.packed_documents or 1,
        "compile": compile_mode(config),
        "evaluation": None,  # made for the whole run
        "generates": None,
    }


def _allocator(config: TrainingConfig) -> AllocatorSettings:
    """The settings of torch's allocator, parsed from training.pytorch_alloc_conf."""
    if not config.pytorch_alloc_conf:
        return AllocatorSettings()
    try:
        return AllocatorSettings.parse(config.pytorch_alloc_conf)
    except AllocatorSettingsError as error:
        where = "training.pytorch_alloc_conf"
        raise InputError(f"{where}: {problem}" for problem in error.problems) from None


def _cublas_workspace(config: TrainingConfig) -> int | None:
    """Bytes of training.cublas_workspace_config; None where it is not set."""
    text = config.cublas_workspace_config
    if text is None:
        return None
    from ...training.step.workspaces import config_bytes

    found = config_bytes(text)
    if found is None:
        form = "pairs of KiB and count, such as ':4096:8' or ':4096:2:16:8'"
        raise InputError(f"training.cublas_workspace_config={text!r} must be {form}")
    return found


def _precision(config: TrainingConfig) -> str | None:
    """The precision that the section gives; None where it gives none."""
    if config.dtype is None:
        return config.precision
    dtype = dtype_name(config.dtype)
    if dtype not in ("fp32", "fp16", "bf16"):
        hint = nearest(dtype, ("fp32", "fp16", "bf16"))
        raise InputError(f"training.dtype={config.dtype!r} must be 'fp32', 'fp16' or 'bf16'{hint}")
    if config.precision is None:
        return "fp32" if dtype == "fp32" else f"{dtype}_mixed"
    if not config.precision.startswith(dtype):
        other = f"training.precision={config.precision!r}; leave dtype out"
        raise InputError(f"training.dtype={config.dtype!r} contradicts {other}")
    return config.precision


def _versions(file: RunFile, program: Translation) -> dict[str, UserRelease]:
    """The releases whose defaults a program has, where somebody says them."""
    have, own = file.releases or {}, file.program.version if file.program else None
    stated = {name: UserRelease(one) for name, one in program.releases.items() if one == own}
    named = {k: v for k, v in have.items() if k in program.releases or file.program is None}
    return {**stated, **named}
