"""Tools that start the trainers and servers of other packages, at the user's releases."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import Asked, Door, read
from gpu_mem_calculator.tools.releases.named import KnownReleases, read_at
from gpu_mem_calculator.tools.translation.releases import allowed_range, in_range, newest_on

FACTORY = (
    "llamafactory-cli train --model_name_or_path Qwen/Qwen2.5-7B --stage sft --do_train"
    " --dataset x --template qwen --output_dir o --finetuning_type lora --bf16 "
)
SWIFT = "swift sft --model Qwen/Qwen2.5-7B --dataset x --max_length 2048"
VERL = (
    "python -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B"
    " trainer.n_gpus_per_node=8 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"
)
OPENRLHF = "deepspeed --module openrlhf.cli.train_sft --pretrain Qwen/Qwen2.5-7B"
AXOLOTL: dict[str, Any] = {
    "base_model": "Qwen/Qwen2.5-7B",
    "adapter": "lora",
    "lora_r": 16,
    "lora_target_linear": True,
    "sequence_len": 2048,
    "datasets": [{"path": "x", "type": "alpaca"}],
}


def at(releases: str, source: Any) -> Asked:
    """What a command or a file asks at releases."""
    given = shlex.split(source) if isinstance(source, str) else source
    return read(given, Door(folder=None, releases=KnownReleases(read_at([releases]))))


RANGES = [
    ("4.49.0", "!=4.46.*,!=4.48.0,<=4.49.0,>=4.41.2", True),
    ("4.46.1", "!=4.46.*,<=4.49.0", False),
    ("4.49.1", "<=4.49", False),
    ("4.49.0", "<=4.49", True),
    ("0.12.0", "<0.12,>=0.11", False),
    ("4.46.3", "==4.46.3", True),
    ("4.46.3", "==4.46.*", True),
    ("0.8.5.post1", ">0.8.5", True),
    ("1.4.5", "~=1.4.2", True),
    ("1.5.0", "~=1.4.2", False),
    ("9.9", "", True),
]


@pytest.mark.parametrize(("release", "text", "holds"), RANGES)
def test_a_release_is_in_a_range(release: str, text: str, *, holds: bool) -> None:
    """As package indexes compare them (PEP 440)."""
    assert in_range(release, text) == holds


def test_the_newest_release_that_another_allows() -> None:
    """On a day; where none was there, the oldest that it allows."""
    text = allowed_range("llamafactory/arguments", "0.9.1", "transformers")
    assert text == "<=4.46.1,>=4.41.2"
    assert newest_on("transformers", "2025-06-30", text) == "4.46.1"
    assert newest_on("transformers", "2024-09-30", text) == "4.45.1"
    assert newest_on("transformers", "2020-01-01", text) == "4.41.2"
    assert newest_on("axolotl", "2025-06-30") == "0.10.0"


RELEASES = [
    ("llamafactory=0.9.3", FACTORY, {"llamafactory": "0.9.3", "transformers": "4.52.4"}),
    ("2025-06", FACTORY, {"llamafactory": "0.9.3", "transformers": "4.52.4"}),
    ("transformers=4.57", FACTORY, {"transformers": "4.57"}),
    (
        "ms-swift=3.5,torch=2.7",
        SWIFT,
        {"ms-swift": "3.5", "transformers": "4.52.4", "torch": "2.7"},
    ),
    ("axolotl=0.10", AXOLOTL, {"axolotl": "0.10", "transformers": "4.52.3"}),
    ("2025-06", AXOLOTL, {"axolotl": "0.10.0", "transformers": "4.52.3"}),
    (
        "axolotl=0.13.1",
        {**AXOLOTL, "rl": "dpo"},
        {"axolotl": "0.13.1", "trl": "0.25.1", "transformers": "4.57.6"},
    ),
    ("verl=0.4", VERL, {"verl": "0.4"}),
    ("2025-06", OPENRLHF, {"openrlhf": "0.8.5"}),
    ("litgpt=0.5.9", "litgpt finetune_lora meta-llama/Llama-3.2-1B", {"litgpt": "0.5.9"}),
    (
        "2025-06",
        "tune run lora_finetune_single_device --config llama3_1/8B_lora_single_device",
        {"torchtune": "0.6.1"},
    ),
    ("newest", FACTORY, {}),
]


@pytest.mark.parametrize(("releases", "source", "expected"), RELEASES)
def test_a_run_has_the_releases_of_its_tool_and_of_what_it_starts(
    releases: str, source: Any, expected: dict[str, str]
) -> None:
    """Those that are named, else the newest that the tool's release allows."""
    found = at(releases, source).run.get("releases", {})
    assert {name: one["release"] for name, one in found.items()} == expected


def test_where_a_release_was_found_is_said() -> None:
    """That of the tool, and that of a package below it."""
    found = at("2025-06", FACTORY).run["releases"]
    assert found["llamafactory"]["read_from"] == "the newest on 2025-06-30"
    assert found["transformers"]["read_from"] == "the newest that llamafactory allows"
    assert at("llamafactory=0.9.3", FACTORY).run["releases"]["llamafactory"]["read_from"] == "--at"


def test_a_release_that_the_tool_does_not_allow_is_said() -> None:
    """It is taken all the same."""
    asked = at("llamafactory=0.9.2,transformers=4.57.1", FACTORY)
    assert asked.run["releases"]["transformers"]["release"] == "4.57.1"
    said = "llamafactory 0.9.2 allows transformers !=4.46.*,!=4.47.*,!=4.48.0,<=4.49.0,>=4.41.2"
    assert f"{said}, and 4.57.1 is taken" in asked.notes


DEFAULTS = [  # the tool's own files at these tags
    ("llamafactory=0.9.0", FACTORY, ("program", "data", "seq_len"), 1024),
    ("llamafactory=0.9.1", FACTORY, ("program", "data", "seq_len"), 2048),
    ("ms-swift=3.5.3", SWIFT, ("program", "args", "eval_strategy"), "steps"),
    ("ms-swift=3.6.0", SWIFT, ("program", "args", "eval_strategy"), "no"),
    ("openrlhf=0.8.9", OPENRLHF, ("training", "attention"), "eager"),
    ("openrlhf=0.8.9", f"{OPENRLHF} --flash_attn", ("training", "attention"), "flash_attention_2"),
    ("openrlhf=0.8.10", OPENRLHF, ("training", "attention"), "flash_attention_2"),
    ("openrlhf=0.9.5", OPENRLHF, ("training", "batch_size"), 8),
    ("openrlhf=0.9.5", OPENRLHF, ("training", "seq_len"), 2048),
    ("openrlhf=0.9.5", OPENRLHF.replace("_sft", "_ppo_ray"), ("training", "batch_size"), 4),
    ("openrlhf=0.10.0", OPENRLHF.replace("_sft", "_ppo_ray"), ("training", "batch_size"), 1),
]


@pytest.mark.parametrize(("releases", "source", "place", "value"), DEFAULTS)
def test_a_default_is_that_of_the_tools_release(
    releases: str, source: str, place: tuple[str, ...], value: object
) -> None:
    """From its lock, or by code that was read at the tag."""
    found: Any = at(releases, source).run
    for key in place:
        found = found[key]
    assert found == value


BEHAVIOURS = [  # what the tool does: argument, key, value
    ("llamafactory=0.9.2", FACTORY, "load", "dtype", "bfloat16"),
    ("llamafactory=0.9.4", FACTORY, "load", "dtype", "auto"),
    ("llamafactory=0.9.2", f"{FACTORY} --deepspeed ds_z3_config.json", "load", "dtype", None),
    ("ms-swift=3.5.3", f"NPROC_PER_NODE=4 {SWIFT}", "args", "reentrant", True),
    ("ms-swift=3.6.0", f"NPROC_PER_NODE=4 {SWIFT}", "args", "reentrant", False),
]


@pytest.mark.parametrize(("releases", "source", "section", "key", "value"), BEHAVIOURS)
def test_what_a_tool_does_is_that_of_its_release(
    releases: str, source: str, section: str, key: str, value: object
) -> None:
    """0.9.2 model/patcher.py; 3.5.3 trainers/arguments.py, 3.6.0 trainers/mixin.py."""
    found = read_quoted(releases, source).run["program"][section]
    kinds = found.get("gradient_checkpointing_kwargs", {})
    assert (kinds["use_reentrant"] if key == "reentrant" else found.get(key)) == value


def read_quoted(releases: str, command: str) -> Asked:
    """What a command with variables in front asks."""
    return read(f"{command}\n", Door(folder=None, releases=KnownReleases(read_at([releases]))))


def test_segments_that_grow_are_asked_for_since_a_release() -> None:
    """LLaMA-Factory's command starts torchrun with them since 0.9.3."""
    command = f"FORCE_TORCHRUN=1 NPROC_PER_NODE=2 {FACTORY}"
    old, new = (read_quoted(f"llamafactory={one}", command).run for one in ("0.9.2", "0.9.3"))
    assert "training" not in old
    assert new["training"] == {"pytorch_alloc_conf": "expandable_segments:True"}


def test_fused_kernels_of_adapters_are_on_since_a_release() -> None:
    """Axolotl's schema; with a dropout of 0 that is written, until 0.16."""
    zero = {**AXOLOTL, "lora_dropout": 0}
    limits = [
        [limit.key for limit in at(f"axolotl={release}", data).limits]
        for release, data in (("0.9.0", zero), ("0.10", AXOLOTL), ("0.10", zero), ("0.17", AXOLOTL))
    ]
    assert limits == [[], [], ["lora_mlp_kernel=true"], ["lora_mlp_kernel=true"]]


ABSENT = [
    ("ms-swift=3.5", f"{SWIFT} --tuner_type full", "it came with 4.0.0; it is train_type there"),
    ("ms-swift=4.5", f"{SWIFT} --train_type full", "it went with 4.1.0; it is tuner_type there"),
    ("llamafactory=0.9.0", f"{FACTORY} --use_dft_loss true", "it came with 0.9.4"),
    ("llamafactory=0.9.2", f"{FACTORY} --average_tokens_across_devices true", ""),
    ("axolotl=0.8.0", {**AXOLOTL, "fsdp_version": 2}, "it came with 0.12.0"),
    ("axolotl=0.21", {**AXOLOTL, "fsdp": ["full_shard"]}, "it went with 0.20.0"),
    ("verl=0.3.0", f"{VERL} critic.enable=false", "it came with 0.6.0"),
    ("openrlhf=0.11", OPENRLHF, "it went with 0.10.2; it is model.model_name_or_path there"),
]


@pytest.mark.parametrize(("releases", "source", "why"), ABSENT)
def test_a_name_that_the_release_does_not_have(releases: str, source: Any, why: str) -> None:
    """Is refused, with the release that brought it or took it away, and its name there."""
    if not why:
        at(releases, source)
        return
    with pytest.raises(InputError, match=why):
        at(releases, source)


def test_a_name_of_another_package_says_its_release() -> None:
    """That of transformers, which LLaMA-Factory's arguments inherit."""
    with pytest.raises(InputError, match=r"group_by_length .*: it went with transformers 5.2.0"):
        at("llamafactory=0.9.5", f"{FACTORY} --group_by_length true")


def test_older_releases_than_were_read_are_open() -> None:
    """A limit without a bound; newer ones are said."""
    old, new = at("llamafactory=0.8.3", FACTORY), at("axolotl=0.21", AXOLOTL)
    assert [limit.key for limit in old.limits] == ["llamafactory 0.8.3"]
    assert "what axolotl 0.21 does is taken as that of 0.18.0, which was read" in new.notes


def test_a_default_that_was_not_modelled_is_a_limit() -> None:
    """verl 0.3 adds a bonus for entropy; that it pads changes nothing."""
    keys = [limit.key for limit in at("verl=0.3.0", VERL).limits]
    assert "actor_rollout_ref.model.use_remove_padding=false" not in keys
    assert "actor_rollout_ref.actor.entropy_coeff=0.001" in keys


def test_a_release_that_changes_nothing_is_said() -> None:
    """vLLM is another phase of verl's step."""
    asked = at("verl=0.4,vllm=0.8", VERL)
    assert asked.run["releases"]["vllm"]["release"] == "0.8"
    assert "the release of vllm changes nothing that is modelled of it" in asked.notes


def test_a_served_model_is_of_the_servers_release() -> None:
    """LLaMA-Factory 0.9.2 allows vLLM 0.7.3, whose share of the card it sets itself."""
    data = {"model_name_or_path": "Qwen/Qwen2.5-7B", "template": "qwen", "infer_backend": "vllm"}
    run = at("llamafactory=0.9.2", data).run
    assert run["inference"]["gpu_memory_utilization"] == 0.9
    versions = full_estimate({**run, "hardware": {"gpu": "h100-80gb-sxm"}}).result.versions
    assert {name: one.release for name, one in versions.items()} == {
        "llamafactory": "0.9.2",
        "vllm": "0.7.3",
    }


def test_the_tag_of_a_tools_own_image_names_its_release(tmp_path: Path) -> None:
    """Where nothing else does."""
    image = "docker run --gpus all hiyouga/llamafactory:0.9.3 "
    asked = read((image + FACTORY).split(), Door(folder=str(tmp_path)))
    assert asked.run["releases"]["llamafactory"]["read_from"] == "the image's tag"


def test_a_list_of_packages_beside_a_command_says_them() -> None:
    """What pip freeze printed, in front of it."""
    text = f"llamafactory==0.9.2\ntransformers==4.48.3\ntorch==2.6.0\n{FACTORY}\n"
    found = read(text, Door(folder=None)).run["releases"]
    assert {name: one["release"] for name, one in found.items()} == {
        "llamafactory": "0.9.2",
        "transformers": "4.48.3",
        "torch": "2.6.0",
    }


def test_what_a_tool_starts_has_the_names_of_its_release() -> None:
    """An evaluation of transformers 4.40; what TRL 0.16 does not have is named."""
    words = f"{FACTORY} --val_size 0.1 --evaluation_strategy steps"
    old = at("2024-04,transformers=4.40.1", words)
    assert old.run["program"]["args"]["evaluation_strategy"] == "steps"
    assert old.file.training.evaluation is not None
    rollout = SWIFT.replace("sft", "rlhf --rlhf_type grpo") + " --use_vllm true"
    found = at("2025-03", rollout)
    assert any(one.key.startswith("vllm_mode=") for one in found.limits)
    assert "vllm_mode" not in found.run["program"]["args"]
