"""gpu-mem-calc compare: two runs, commands, cards or releases."""

import json
from pathlib import Path

import pytest

from gpu_mem_calculator.cli.main import main

VLLM = ["vllm", "serve", "Qwen/Qwen3-14B", "--max-model-len", "8192"]
RUN = {
    "model": {"name": "llama3.2-1b"},
    "training": {"batch_size": 1, "seq_len": 512},
    "hardware": {"gpu": "h100-80gb-sxm"},
}


def compared(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    """The answer as data."""
    assert main(["compare", "--format", "json", *words]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def written(folder: Path, name: str, **training: object) -> str:
    """A run file with other training keys."""
    path = folder / name
    path.write_text(json.dumps({**RUN, "training": {**RUN["training"], **training}}))
    return str(path)


def test_the_parts_of_both_add_up_to_what_each_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last row is the total; the difference of the only other key is the whole difference."""
    a, b = written(tmp_path, "a.json"), written(tmp_path, "b.json", batch_size=4)
    found = compared(capsys, a, b)
    *rows, total = found["parts"]
    for side in ("a", "b"):
        assert total[f"{side}_bytes"] == sum(row[f"{side}_bytes"] or 0 for row in rows)
        assert total[f"{side}_bytes"] == found[side]["used_bytes"]
    (cause,) = found["differences"]
    assert (cause["key"], cause["first"], cause["second"]) == ("training.batch_size", 1, 4)
    assert cause["adds_bytes"] == found["b"]["used_bytes"] - found["a"]["used_bytes"] > 0


def test_two_releases_of_a_server_name_the_default_that_changed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """vLLM 0.20.0 took 0.92 of the card where 0.19.0 took 0.9: the KV cache grows by that alone."""
    at = ["--gpu", "h100-80gb-sxm", "--at", "vllm=0.19.0", "--at", "vllm=0.20.0"]
    found = compared(capsys, *at, *VLLM)
    differences = {one["key"]: one for one in found["differences"]}
    share = differences["inference.gpu_memory_utilization"]
    assert (share["first"], share["second"]) == (0.9, 0.92)
    assert share["adds_bytes"] == 0
    assert share["adds_cache_bytes"] > 2**30
    assert differences["inference.engine_version"]["first"] == "0.19.0"
    grows = found["b"]["kv_pool_bytes"] - found["a"]["kv_pool_bytes"]
    alone = sum(one["adds_cache_bytes"] for one in found["differences"])
    assert grows == pytest.approx(alone, abs=2**26)


def test_two_cards_are_compared_for_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    """In a table, with the verdict on each."""
    assert main(["compare", "--gpu", "h100-80gb-sxm", "--gpu", "4090", *VLLM]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "A: fits, B: does not fit" in lines[0]
    assert lines[1].startswith("A  h100-80gb-sxm: fits")
    assert any(line.startswith("B  4090: will not start") for line in lines)


def test_options_may_stand_behind_two_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Models by name are trained as `quick` does."""
    found = compared(capsys, "llama3.2-1b", "qwen2.5-0.5b", "--gpu", "h200")
    assert [found[side]["name"] for side in ("a", "b")] == ["llama3.2-1b", "qwen2.5-0.5b"]
    assert "less than A" in found["summary"]


def test_commands_in_quotes_are_two_sides(capsys: pytest.CaptureFixture[str]) -> None:
    """Of other tools, too: only what the user wrote is compared then, and each tool's defaults."""
    sglang = "sglang serve --model-path Qwen/Qwen3-14B"
    found = compared(capsys, "--gpu", "h100-80gb-sxm", " ".join(VLLM), sglang)
    keys = {one["key"] for one in found["differences"]}
    assert "inference.engine" in keys
    assert "inference.chunked_prefill_size" not in keys


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run.json"], "compare needs A and B, or two --at or --gpu; 1 given"),
        (["a", "b", "c"], "3 given; put a command in quotes"),
        (["--at", "vllm=1", "--at", "vllm=2", "--at", "vllm=3", *VLLM], "not 3"),
        (["--at", "vllm=0.9", "--at", "vllm=0.8", "--gpu", "h100", "--gpu", "h200"], "not both"),
        (["--at", "vllm=0.9.0", "--at", "vllm=0.8.0"], "needs a run or a command behind"),
        (["--at", "trl=0.9.0", "--at", "trl=0.8.0", *VLLM], "names trl, whose release"),
        (["--at", "vllm", "--at", "vllm=0.8.0", *VLLM], "is none of TOOL=RELEASE"),
        (["--gpu", "h100", "llama3.2-1b", "nosuchmodel"], "nosuchmodel"),
    ],
)
def test_what_cannot_be_compared_is_a_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2."""
    assert main(["compare", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_of_two_sections_the_keys_that_differ_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Not the beginnings of both."""
    sft = "trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name x --use_peft"
    assert main(["compare", sft, f"{sft} --lora_r 32"]) == 0
    assert "lora.r 16 → 32" in capsys.readouterr().out
