"""FSDP, DeepSpeed and the other parallelism of a file.

Axolotl 067b021 utils/schemas/validation.py (check_fsdp_version_in_fsdp_config), utils/trainer.py
(setup_fsdp_envs, setup_parallelism_envs), monkeypatch/accelerate/fsdp2.py (fsdp2_prepare_model).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from ...catalog.kept import read_table
from ...runfile.text.errors import InputError, quoted
from ..deepspeed.auto import AUTO
from ..deepspeed.optimizer import optimizer
from ..reading.keys import sort_keys
from ..reading.named_files import NamedFiles
from ..reading.reading import Section
from ..translation.arguments import argument_table, tables
from .draft import Draft, Limits, flag, mapping, whole

TABLES = tables(__file__)
LIMITS: Limits = TABLES["limits"]
FOLDER = Path(__file__).parent
VERSION_1 = ("use_orig_params", "sync_module_states")  # keys of FSDP 1 alone
PURE = {"bfloat16": "bf16_pure", "float16": "fp16_pure"}
# DeepSpeed's own names of these keys (deepspeed 0.19.8 zero/config.py, aliases).
STAGE3_NAMES: dict[str, str] = TABLES["stage3_names"]
NOT_READ = tuple(TABLES["not_read"])
OFFLOAD = "offload_optimizer"


def add_launch(draft: Draft, files: NamedFiles) -> None:
    """Add the engine's configuration."""
    config = _fsdp_config(draft)
    if draft.get("deepspeed"):
        draft.launch["deepspeed"] = _deepspeed(draft, files)
        if draft.get("fsdp"):
            raise InputError("deepspeed and fsdp are both there; Axolotl takes one of them")
    elif config is not None:
        _add_fsdp(draft, config)
    if draft.get("accelerator_config"):
        draft.args["accelerator_config"] = dict(draft.section("accelerator_config"))
    _add_parallelism(draft)


def _fsdp_config(draft: Draft) -> Section | None:
    """The keys of fsdp_config without their prefix; None without FSDP."""
    if draft.get("fsdp_config") is None:
        return {} if draft.get("fsdp") else None
    config = draft.section("fsdp_config")
    plain = {name.removeprefix("fsdp_"): value for name, value in config.items()}
    table = argument_table("fsdp", FOLDER)
    draft.reading.problems += draft.at.absent(plain, "axolotl/fsdp", "fsdp_config.")
    return sort_keys(draft.reading, table, plain, "fsdp_config.")


def _add_fsdp(draft: Draft, config: Section) -> None:
    given = draft.get("fsdp_version") or config.get("version") or 1
    version = whole(given, "fsdp_version")
    if version not in (1, 2):
        raise InputError(f"fsdp_version={quoted(given)} must be 1 or 2")
    if not draft.get("fsdp_version") and not config.get("version"):
        draft.assume("fsdp_version=1, Axolotl's default")

    def is_on(key: str) -> bool:
        return flag(config.get(key), f"fsdp_config.{key}")

    savers = ("offload_params", "activation_checkpointing")
    kept: Section = {"version": version, **{key: True for key in savers if is_on(key)}}
    own = VERSION_1 if version == 1 else ("reshard_after_forward",)
    kept |= {key: is_on(key) for key in own if config.get(key) is not None}
    if kind := config.get("state_dict_type"):
        kept["state_dict_type"] = str(kind)
    policy = config.get("auto_wrap_policy")
    words = str(draft.get("fsdp") or "")
    if policy != "TRANSFORMER_BASED_WRAP" and not (policy is None and "auto_wrap" in words):
        draft.limit("fsdp_config.auto_wrap_policy", *LIMITS["policy"], value=str(policy))
    draft.launch["fsdp_config"] = kept
    if version == 2:
        _add_own_fsdp2(draft)
        if is_on("cpu_ram_efficient_loading"):
            draft.engine["init_device"] = "meta"


def _add_own_fsdp2(draft: Draft) -> None:
    """Axolotl's fsdp2_prepare_model: weights keep their dtype, and embedding and head belong to
    the root unit, which is resharded as the layers are.
    """
    dtype = draft.load["dtype"]
    if dtype in PURE:
        draft.training |= {"precision": PURE[dtype], "autocast": False}
    reshards = draft.launch["fsdp_config"].get("reshard_after_forward") is not False
    draft.engine |= {"wrap_embedding_and_head": False, "reshard_root_after_forward": reshards}


def _deepspeed(draft: Draft, files: NamedFiles) -> Section:
    """DeepSpeed's configuration: an object, a file, or one of those that Axolotl ships."""
    given = draft.get("deepspeed")
    config: Any = given
    if isinstance(given, str):
        name = given.replace("\\", "/").rpartition("/")[2]
        shipped = "deepspeed_configs/" in given and name in shipped_configs()
        if shipped and not files.exists(given):
            config = shipped_configs()[name]
            draft.assume(f"{given} as Axolotl ships it")
        else:
            config = files.data(given, "deepspeed")
    found = dict(mapping(config, "deepspeed"))
    zero = dict(mapping(found.get("zero_optimization"), "deepspeed.zero_optimization"))
    zero = {STAGE3_NAMES.get(key, key): value for key, value in zero.items()}
    if zero.get("sub_group_size") == 0:
        zero["sub_group_size"] = 1  # each parameter is a group of its own (zero/stage3.py)
    found["zero_optimization"] = zero
    _add_optimizer(draft, found.pop("optimizer", None), zero)
    for key in NOT_READ:
        if found.pop(key, None):
            draft.limit(f"deepspeed.{key}", *LIMITS["deepspeed"], value="...")
    return found


def _add_optimizer(draft: Draft, given: Any, zero: Section) -> None:
    """The optimizer of DeepSpeed's file, which takes the place of Axolotl's (transformers 5.14.1
    integrations/deepspeed.py deepspeed_optim_sched).
    """
    if given is None:
        return
    section = dict(mapping(given, "deepspeed.optimizer"))
    params = mapping(section.get("params"), "deepspeed.optimizer.params")
    section["params"] = {key: value for key, value in params.items() if value != AUTO}
    problems: list[str] = []
    own = {"optimizer_implementation": None, **optimizer(section, problems, [])}
    if zero.get(OFFLOAD):  # torch's Adam is on the host then, like DeepSpeed's
        own["optimizer_implementation"] = None
    draft.training |= own
    draft.args["optim"] = "adamw_torch"
    draft.args.pop("optim_args", None)
    draft.reading.problems += [f"deepspeed {one}" for one in problems]
    said = f"the optimizer is {section.get('type')} of DeepSpeed's file, which takes the place of"
    draft.assume(f"{said} optimizer={draft.get('optimizer')}")


@cache
def shipped_configs() -> dict[str, Section]:
    """The files of deepspeed_configs/ in Axolotl's repository."""
    found: dict[str, Section] = read_table(f"{FOLDER}/deepspeed_configs.json")
    return found


def _add_parallelism(draft: Draft) -> None:
    """Name tensor and context parallelism; replicas of shards are hybrid sharding."""
    if (draft.whole("tensor_parallel_size") or 1) > 1:
        draft.limit("tensor_parallel_size", *LIMITS["tensor"])
    given = draft.get("context_parallel_size")
    key = "context_parallel_size" if given else "sequence_parallel_degree"
    if (draft.whole(key) or 1) > 1:
        draft.limit(key, *LIMITS["ring"])
    shards, replicas = draft.whole("dp_shard_size") or 1, draft.whole("dp_replicate_size") or 1
    if "fsdp_config" in draft.launch and shards > 1 and replicas > 1:
        draft.engine |= {"sharding_strategy": "hybrid_shard", "hybrid_shard_size": shards}
    if draft.num_gpus is None:
        draft.num_gpus = _gpus(draft, shards * replicas)


def _gpus(draft: Draft, data_parallel: int) -> int | None:
    """GPUs that the file itself asks for."""
    if draft.flag("use_ray"):
        return draft.whole("ray_num_workers") or 1
    tensor, context = draft.whole("tensor_parallel_size"), draft.whole("context_parallel_size")
    total = (
        data_parallel * (tensor or 1) * (context or draft.whole("sequence_parallel_degree") or 1)
    )
    return total if total > 1 else None
