"""The tables have every option, field and variable of the release that was read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.tools.reading.command import Command
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.sglang import read as sglang
from gpu_mem_calculator.tools.translation.arguments import MEMORY, ArgumentTable
from gpu_mem_calculator.tools.vllm import read as vllm

ROOT = Path(__file__).parents[3]
SNAPSHOT: dict[str, Any] = json.loads((ROOT / "maintenance/drift/snapshot.json").read_text())
SCHEMAS = SNAPSHOT["vLLM"]["schemas"]
# Fields that have no option of their own.
NO_OPTION = {
    "model_weights",
    "mamba_config",
    "enable_mm_processor_stats",
    "_api_process_count",
    "_api_process_rank",
}
OTHER_OPTIONS = {"headless", "api_server_count", "config", "grpc", "enable_log_requests"}
# SGLang's fields that are marked no_cli: other options or the model decide them.
NO_CLI = {
    *("uses_mamba_radix_cache", "aux_hidden_state_capture", "enable_cp_tp_group_sharing"),
    *("grpc_worker_threads", "speculative_boundary_reduction", "watermark_context_window"),
    *("watermark_default_enabled", "watermark_enforce_all", "watermark_key", "watermark_key_b"),
    *("watermark_max_probability", "watermark_mixing_probability"),
}
# Fields that vLLM sets itself, or that hold another object with fields.
NO_FIELD = {
    "compilation_config": """pass_config dynamic_shapes_config local_cache_dir enabled_custom_ops
        disabled_custom_ops traced_files compilation_time encoder_compilation_time
        static_forward_context static_all_moe_layers _attention_ops""",
    "speculative_config": """target_model_config target_parallel_config draft_model_config
        draft_parallel_config""",
}


def test_every_option_of_vllm_is_classified() -> None:
    """vLLM's options: every field that the drift snapshot has."""
    options = {*SCHEMAS["EngineArgs"], *SCHEMAS["FrontendArgs"], *OTHER_OPTIONS} - NO_OPTION
    assert options <= vllm.ARGUMENTS.keys()
    assert len(options) > 300


@pytest.mark.parametrize("name", [one for one in SCHEMAS if one.endswith("_config") or "." in one])
def test_every_field_of_a_json_option_is_classified(name: str) -> None:
    """Fields of JSON options: every one that the drift snapshot has."""
    fields = SCHEMAS[name].keys() - set(NO_FIELD.get(name, "").split())
    assert {f"{name}.{one}" for one in fields} <= vllm.FIELDS.keys()


def test_every_option_of_sglang_is_classified() -> None:
    """SGLang's options: every field that the drift snapshot has."""
    known = SNAPSHOT["SGLang"]["schemas"]["ServerArgs"].keys()
    hidden = {"custom_sigquit_handler", "stat_loggers", *NO_CLI}
    fields = {one for one in known - hidden if not one.startswith("_")}
    assert fields <= sglang.ARGUMENTS.keys()
    assert len(fields) > 400


@pytest.mark.parametrize(
    "table", [vllm.ARGUMENTS, vllm.FIELDS, vllm.VARIABLES, sglang.ARGUMENTS, sglang.VARIABLES]
)
def test_every_row_says_why(table: ArgumentTable) -> None:
    """A row that is not honoured says why."""
    for name, row in table.items():
        assert row.effect == MEMORY or len(row.why) > 20, name
        assert row.could in ("less", "more", "either"), name


def test_aliases_name_arguments() -> None:
    """Aliases, flags and lists are of arguments in the table."""
    for reader in (vllm, sglang):
        assert set(reader.SYNTAX.aliases.values()) <= reader.ARGUMENTS.keys()
        for names in (reader.SYNTAX.flags, reader.SYNTAX.lists, reader.SYNTAX.repeated):
            assert names <= reader.ARGUMENTS.keys()


def test_a_name_of_another_release_is_told() -> None:
    """vLLM 0.4.0 called it otherwise; its value is read as what it is called now."""
    words = ["gpt2", "--forced-num-gpu-blocks", "100"]
    reading = vllm.read_arguments(words, Command(words=(), files=NamedFiles(None)))
    assert [one.key for one in reading.limits] == ["--num-gpu-blocks-override=100"]
    said = "names of other releases: --forced_num_gpu_blocks is --num_gpu_blocks_override"
    assert said in reading.assumed
