"""How a program of transformers is launched: one GPU, DDP, FSDP or DeepSpeed, as engine keys.

transformers 5.17.0 training_args.py (_process_fsdp_args), integrations/deepspeed.py;
accelerate 1.15.0 utils/fsdp_utils.py, utils/dataclasses.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runfile.program import Program, Section, Setup, Translation
from ..deepspeed.auto import AUTO, ZERO, auto_values
from ..deepspeed.names import ZERO_KEYS
from ..translation.arguments import Values, tables
from ..translation.at_release import before
from .accelerate import accelerate_problems, add_compile, flat_settings, mesh_keys
from .loading import name_strangers

TABLES = tables(__file__)
GATHERS = ("stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save")
OFFLOADS = ("offload_optimizer", "offload_param")
# Keys of `zero_optimization` without effect on GPU memory (deepspeed 0.19.8 zero/config.py).
ZERO_FREE = tuple(TABLES["zero_free"])
# Keys of `zero_optimization` that are modelled where they are off.
ZERO_OFF = tuple(TABLES["zero_off"])
# Keys of a DeepSpeed file that Trainer completes or that repeat its arguments.
DEEPSPEED_FREE = tuple(TABLES["deepspeed_free"])
# Keys of fsdp_config: those that are read, or say how layers are found, or change no byte.
FSDP_KEYS = tuple(TABLES["fsdp_keys"])
FSDP1_FLAGS: Mapping[str, bool] = TABLES["fsdp1_flags"]  # Accelerate's defaults
FSDP1_KEYS = ("backward_prefetch", *FSDP1_FLAGS)
# Keys of Accelerate's fsdp_config that it does not read, or that are refused unless they are off.
LAUNCHER_ONLY = tuple(TABLES["launcher_only"])
STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")


def add_launch(program: Program, values: Values, setup: Setup, result: Translation) -> None:
    """Add the engine of a program on top of transformers.Trainer."""
    accelerate = program.accelerate or {}
    result.problems += accelerate_problems(accelerate)
    add_compile(program, result)
    kind = str(accelerate.get("distributed_type", "")).upper()
    deepspeed = program.deepspeed or values["deepspeed"]
    if kind == "DEEPSPEED":
        deepspeed = deepspeed or _accelerate_deepspeed(accelerate.get("deepspeed_config") or {})
    fsdp = program.fsdp_config or values["fsdp_config"]
    if kind in ("", "FSDP"):
        fsdp = fsdp or launched_fsdp(accelerate)
    if deepspeed:
        _add_deepspeed(deepspeed, setup, result)
        launched = accelerate.get("deepspeed_config") or {}
        if not _flag(launched.get("zero3_init_flag", True)) and result.engine["zero_stage"] == 3:
            result.engine["zero_init"] = False
    elif values["fsdp"] or kind == "FSDP" or fsdp:
        version = 1 if kind == "FSDP" and not values["fsdp"] else 2
        config = _without_prefix(fsdp or {})
        config |= _legacy_words(values["fsdp"])
        version = config.get("version", version)
        if str(version) not in ("1", "2"):
            result.problems.append(f"program.fsdp_config.version={version!r} must be 1 or 2")
            return
        if int(version) == 1:
            launched = _without_prefix(launched_fsdp(accelerate)) if kind else {}
            _set_version1_strategy(config, launched, result)
        _add_fsdp(config, int(version), setup, result)
        if str(values["save_strategy"]) == "no":
            result.training.pop("saving", None)
        result.engine |= mesh_keys(accelerate)
        if not _syncs_each_batch(values["accelerator_config"]):
            result.engine["sync_each_batch"] = False
    else:
        device = first_device(program)
        result.engine |= {"type": "pytorch_ddp", "init_device": device}
        result.training |= {"from_pretrained": True} if device == "cuda" else {}


def _syncs_each_batch(config: Any) -> bool:
    """Whether every micro-batch reduces its gradients; else Trainer calls no_sync for all but the
    last one of a step (trainer.py _run_epoch).
    """
    given = config.get("gradient_accumulation_kwargs") if isinstance(config, Mapping) else None
    return _flag((given or {}).get("sync_each_batch", False))


def first_device(program: Program) -> str:
    """Where from_pretrained puts the weights: on the host, unless a device_map names GPUs.

    A quantized model is loaded onto the GPU (quantizers/quantizer_bnb_4bit.py update_device_map).
    """
    placed = program.load.get("device_map") not in (None, "cpu", {"": "cpu"})
    return "cuda" if program.quantization or placed else "cpu"


def launched_fsdp(accelerate: Values) -> Section:
    """The keys of the launcher's fsdp_config that its FSDP version reads
    (FullyShardedDataParallelPlugin.__post_init__).
    """
    flat = flat_settings({"fsdp_config": accelerate.get("fsdp_config") or {}})
    config = {key.removeprefix("fsdp_config."): value for key, value in flat.items()}
    ignored: tuple[str, ...] = LAUNCHER_ONLY
    if str(config.get("fsdp_version", 1)) == "2":
        ignored = (*ignored, *FSDP1_KEYS, "sharding_strategy")
    elif str(config.get("fsdp_reshard_after_forward")).lower() in ("true", "false"):
        ignored = (*ignored, "reshard_after_forward")
    return {key: config[key] for key in config if key.removeprefix("fsdp_") not in ignored}


def _without_prefix(config: Values) -> Section:
    return {str(key).removeprefix("fsdp_"): value for key, value in config.items()}


def _legacy_words(fsdp: Any) -> Section:
    """`fsdp` as a text of words, as before version 5 (_apply_legacy_fsdp_to_config)."""
    words = fsdp.replace(",", " ").split() if isinstance(fsdp, str) else fsdp or ()
    found: Section = {}
    for word in words if isinstance(words, list | tuple) else ():
        if word in STRATEGIES:
            found["reshard_after_forward"] = word
        elif word == "offload":
            found["cpu_offload"] = True
    return found


def _set_version1_strategy(config: Section, launched: Section, result: Translation) -> None:
    """Version 1 shards as the launcher's environment says, by default fully: Accelerate reads
    `reshard_after_forward` only where no sharding_strategy is set, and it always sets one
    (accelerate 1.15.0 utils/dataclasses.py FullyShardedDataParallelPlugin.__post_init__).
    """
    asked = str(config.pop("reshard_after_forward", "full_shard")).lower()
    used = str(launched.get("sharding_strategy", "full_shard")).lower()
    used = dict(zip("12345", STRATEGIES, strict=True)).get(used, used)
    config["sharding_strategy"] = used
    if asked in ("true", "false"):
        result.problems.append(
            f"program.fsdp_config.reshard_after_forward={asked}: FSDP version 1 takes the name of "
            "a strategy; use 'full_shard', or set version to 2"
        )
    elif asked != used:
        result.warnings.append(
            f"fsdp_config.reshard_after_forward={asked!r} has no effect with FSDP version 1: "
            f"Accelerate 1.15 uses sharding_strategy {used!r}, which accelerate launch sets"
        )


def _flag(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "yes")


def _add_fsdp(config: Section, version: int, setup: Setup, result: Translation) -> None:
    """FSDP as Accelerate prepares it.

    Version 2 shards the embedding and the tail (final norm, head) as units that are not resharded;
    tied ones are one unit (utils/fsdp_utils.py fsdp2_prepare_model). Weights are upcast to fp32
    under mixed precision, and autocast is around the forward pass as well (accelerator.py
    prepare_model).
    """
    reshard = config.get("reshard_after_forward", config.get("sharding_strategy", True))
    words = {"true": "full_shard", "false": "shard_grad_op"}
    strategy = words.get(str(reshard).lower(), str(reshard).lower())
    engine: Section = {"type": "fsdp", "fsdp_version": version, "sharding_strategy": strategy}
    engine["init_device"] = "cpu"
    if _flag(config.get("cpu_offload", config.get("offload_params", False))):
        engine["cpu_offload"] = True
        if version == 2:  # one weight at a time is on the GPU at start-up, less than in a step
            del engine["init_device"]
    if _flag(config.get("activation_checkpointing", False)):
        result.training["activation_checkpointing"] = "full"
    known = FSDP_KEYS if version == 2 else (*FSDP_KEYS, *FSDP1_KEYS)
    if version == 1:
        engine |= _version1_keys(config)
    elif setup.model().tied and engine.get("cpu_offload"):
        engine["reshard_root_after_forward"] = False
    else:
        engine["wrap_embedding_and_head"] = True
    name_strangers(result, "fsdp_config", config, known)
    result.engine |= engine
    result.training |= _checkpoints(config, version, setup)
    training = result.training
    if training.get("autocast") and str(training.get("precision")).endswith("_pure"):
        if version == 1 and not engine.get("cpu_offload"):
            result.engine["init_dtype"] = training["precision"].removesuffix("_pure")
        training["precision"] = training["precision"].replace("_pure", "_mixed")
    elif str(training.get("precision")).endswith("_mixed"):
        training["autocast"] = True


def _checkpoints(config: Section, version: int, setup: Setup) -> Section:
    """How weights are loaded and saved: by default whole with version 1, and sharded with version 2
    (set_state_dict_type); which ranks read them (transformers 5.17.0 modeling_utils.py
    _move_missing_keys_from_meta_to_device, 4.57.1 _move_missing_keys_from_meta_to_cpu).
    """
    usual = "FULL_STATE_DICT" if version == 1 else "SHARDED_STATE_DICT"
    kind = str(config.get("state_dict_type") or usual).upper()
    whole = kind in ("1", "FULL_STATE_DICT")
    found: Section = {"saving": "full_state_dict" if whole else "sharded_on_host"}
    if _flag(config.get("cpu_ram_efficient_loading", False)):
        older = before(setup.releases, "transformers", "5.0")
        found["loading"] = "first_rank" if older else "first_rank_and_zeros"
    return found


def _version1_keys(config: Section) -> Section:
    """Options of FSDP version 1, with Accelerate's defaults."""
    prefetch = str(config.get("backward_prefetch", "no_prefetch")).lower()
    flags = {key: _flag(config.get(key, usual)) for key, usual in FSDP1_FLAGS.items()}
    return {"backward_prefetch": "none" if prefetch == "no_prefetch" else prefetch, **flags}


def _accelerate_deepspeed(config: Values) -> Section:
    """Accelerate's own keys for DeepSpeed as its configuration (DeepSpeedPlugin)."""
    if config.get("deepspeed_config_file"):
        return {}
    zero: Section = {"stage": config.get("zero_stage", 2)}
    if _flag(config.get("zero3_save_16bit_model", False)):
        zero[GATHERS[0]] = True
    for key in OFFLOADS:
        device = config.get(f"{key}_device", "none")
        if device not in (None, "none"):
            zero[key] = {"device": device}
    return {"zero_optimization": zero}


def _add_deepspeed(config: Any, setup: Setup, result: Translation) -> None:
    """DeepSpeed's file; Trainer completes `auto` (trainer_config_finalize)."""
    if not isinstance(config, Mapping):
        rule = "must be an object: DeepSpeed's JSON itself"
        result.problems.append(f"program.deepspeed={config!r} {rule}")
        return
    zero = config.get("zero_optimization") or {}
    engine: Section = {"type": "deepspeed", "zero_stage": zero.get("stage", 0)}
    hidden = setup.model().hidden_size or 0
    automatic = [f"{ZERO}.{key}" for key, value in zero.items() if value == AUTO]
    sizes = auto_values(automatic, {}, lambda: hidden)
    for key in ZERO_KEYS:
        value = sizes.get(f"{ZERO}.{key}") if zero.get(key) == AUTO else zero.get(key)
        if value is not None:
            engine[key] = int(value) if isinstance(value, float) else value
    for key in OFFLOADS:
        place = zero.get(key) or {}
        if place.get("device", "none") not in (None, "none"):
            engine[key] = place["device"]
            engine["pin_memory"] = bool(place.get("pin_memory", True))
            result.training.pop("optimizer_implementation", None)
    off = [key for key in ZERO_OFF if not zero.get(key)]
    known = (*ZERO_KEYS, *ZERO_FREE, *OFFLOADS, *off)
    strangers = [f"zero_optimization.{key}" for key in zero if key not in known]
    strangers += [key for key in config if key not in DEEPSPEED_FREE]
    result.problems += [
        f"program.deepspeed.{key} is not read with a program; leave it out" for key in strangers
    ]
    result.engine |= engine
    training = result.training
    gathers = any(_flag(zero.get(key, False)) for key in GATHERS)
    if engine["zero_stage"] == 3 and gathers:
        training["saving"] = "full_state_dict"
    if str(training.get("precision")).endswith("_pure"):
        training["precision"] = training["precision"].replace("_pure", "_mixed")
    training.pop("autocast", None)
