"""Reading a run file: every problem at once, in sentences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gpu_mem_calculator.estimates.calculator import estimate
from gpu_mem_calculator.runfile.config import LoraConfig
from gpu_mem_calculator.runfile.keys.schema import schema
from gpu_mem_calculator.runfile.read import run_file_problems, with_settings
from gpu_mem_calculator.runfile.text.counts import parameter_count
from gpu_mem_calculator.runfile.text.errors import InputError, nearest
from gpu_mem_calculator.tools.read import read
from tests.conftest import ROOT, small_run

CONFIGS = sorted((ROOT / "configs").glob("*.json"))
VALIDATOR = jsonschema.Draft202012Validator(schema())


@pytest.mark.parametrize("ending", ["json", "yaml", "toml"])
def test_json_yaml_and_toml_read_the_same(tmp_path: Path, ending: str) -> None:
    """The same run in three spellings."""
    text = {
        "json": '{"model": {"name": "gpt2"}, "training": {"batch_size": 2}}',
        "yaml": "model: {name: gpt2}\ntraining:\n  batch_size: 2\n",
        "toml": '[model]\nname = "gpt2"\n[training]\nbatch_size = 2\n',
    }
    path = tmp_path / f"run.{ending}"
    path.write_text(text[ending])
    file = read(path).file
    assert (file.model.name, file.training.batch_size) == ("gpt2", 2)


def test_unknown_names_are_reported_with_wrong_values() -> None:
    """A value of the wrong type hides no unknown model, card or engine."""
    run: dict[str, Any] = {
        "model": {"name": "nope"},
        "training": {"batch_size": "two"},
        "hardware": {"gpu": "zzz", "num_gpus": 0},
        "engine": {"type": "foo"},
    }
    with pytest.raises(InputError) as error:
        estimate(run)
    keys = [problem.partition("=")[0] for problem in error.value.problems]
    assert keys == [
        "training.batch_size",
        "hardware.num_gpus",
        "model.name",
        "hardware.gpu",
        "engine.type",
    ]
    right = {**run, "model": {"name": "gpt2"}, "hardware": {"gpu": "h100"}, "engine": {}}
    with pytest.raises(InputError) as error:
        estimate(right)
    assert len(error.value.problems) == 1


def test_all_problems_are_reported_at_once() -> None:
    """Unknown keys, wrong types and values out of range, each in its own sentence."""
    problems = list(
        run_file_problems(
            {
                "model": {"name": 7, "num_layres": 3},
                "training": {
                    "batch_size": 0,
                    "lora": {"rank": 8},
                    "attention": "flash",
                    "precision": "bf16_mixd",
                },
                "engin": {},
                "hardware": [],
            }
        )
    )
    assert problems == [
        "model.name=7 must be a string",
        "model.num_layres is not a known key; did you mean 'num_layers'?",
        "training.batch_size=0 must be a whole number from 1 to 1,000,000,000",
        "training.lora.rank is not a known key",
        "training.attention='flash' must be 'eager', 'sdpa', 'flash_attention_2' or "
        "'flash_attention_3'",
        "training.precision='bf16_mixd' must be 'fp32', 'bf16_mixed', 'fp16_mixed', 'bf16_pure' or "
        "'fp16_pure'; did you mean 'bf16_mixed'?",
        "'engin' is not a section of a run file; did you mean 'engine'?",
        "hardware=[] must be an object",
    ]


def test_a_key_in_the_wrong_section() -> None:
    """The sentence names the section that has it, if one alone does."""
    data = {"model": {"name": "7b", "batch_size": 1}, "parallelism": {"zero_stage": 2}}
    first, second = run_file_problems(data)
    assert "it is" not in first  # training and inference have it
    assert second == "parallelism.zero_stage is not a known key; it is engine.zero_stage"


@pytest.mark.parametrize(
    ("training", "problem"),
    [
        (
            {"batch_size": {"r": 8}},
            'training.batch_size={"r": 8} must be a whole number from 1 to 1,000,000,000',
        ),
        ({"lora": {"r": 0}}, "training.lora.r=0 must be a whole number from 1 to 1,000,000,000"),
    ],
)
def test_only_an_adapter_is_an_object(training: dict[str, Any], problem: str) -> None:
    """Its keys are checked one by one; elsewhere the whole object is the wrong value."""
    (found,) = run_file_problems({"model": {"name": "gpt2"}, "training": training})
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (7_000_000_000, 7 * 10**9),
        ("7B", 7 * 10**9),
        ("7000M", 7 * 10**9),
        ("7e9", 7 * 10**9),
        ("1.5T", 15 * 10**11),
        ("350K", 350_000),
        ("0.5b", 5 * 10**8),
        (7e9, 7 * 10**9),
    ],
)
def test_a_parameter_count_reads_as_people_write_it(text: Any, count: int) -> None:
    """Suffixes, exponents and plain numbers."""
    assert parameter_count(text) == count


@pytest.mark.parametrize("text", ["", "B", "-7B", "7X", "1e99", "nan", 0, True, "٧B"])
def test_a_parameter_count_that_is_none_is_refused(text: Any) -> None:
    """One sentence with the value and how to write it."""
    with pytest.raises(InputError, match="must be a count from 1 to 1000T, such as 7B"):
        parameter_count(text)


def test_settings_are_laid_over_a_run_file() -> None:
    """JSON values where they parse, text otherwise; sections are made as needed."""
    run = with_settings(
        {"model": {"name": "gpt2"}},
        [
            "training.batch_size=4",
            "engine.type=fsdp",
            "training.lora.r=8",
            "training.autocast=true",
        ],
    )
    assert run["training"] == {"batch_size": 4, "lora": {"r": 8}, "autocast": True}
    assert run["engine"] == {"type": "fsdp"}


@pytest.mark.parametrize("setting", ["batch=4", "training.batch_size", "=4", "training.=4"])
def test_a_setting_without_section_or_value_is_refused(setting: str) -> None:
    """The form is section.key=value."""
    with pytest.raises(InputError, match=r"must be section\.key=value"):
        with_settings({}, [setting])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.json", None, "no such file"),
        ("run.json", b"{", "not valid JSON"),
        ("run.yaml", b"a: [", "not valid YAML"),
        ("run.toml", b"=", "not valid TOML"),
        ("run.json", b"\xff\xff", "not UTF-8"),
        ("run.json", b"[]", "a run file is an object"),
        ("run.json", b"{}", "no 'model' section"),
        (
            "run.json",
            b'{"model": {"name": "gpt2"}, "inference": {}, "training": {"batch_size": 1}}',
            "training and inference are both there",
        ),
    ],
)
def test_a_file_that_cannot_be_read_says_why(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    """One sentence, with the file's name where there is one."""
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read(path).checked()


@pytest.mark.parametrize("path", CONFIGS, ids=[p.name for p in CONFIGS])
def test_the_example_files_follow_the_schema(path: Path) -> None:
    """An editor with our schema accepts the examples, and refuses an unknown key."""
    run = json.loads(path.read_text())
    VALIDATOR.validate(run)
    run["hardware"]["num_gpu"] = 4
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(run)


def test_a_whole_number_may_be_written_with_a_point() -> None:
    """8.0 is 8 to JSON Schema and to us, in an adapter and in a list, too."""
    run = small_run() | {"training": {"batch_size": 2.0, "lora": {"r": 8.0, "dropout": None}}}
    VALIDATOR.validate(run)
    found = read(run).file.training
    assert (found.batch_size, found.lora) == (2, LoraConfig(r=8))
    served = {"model": {"name": "gpt2"}, "inference": {"max_attention_window": [128.0, 64]}}
    VALIDATOR.validate(served)
    inference = read(served).file.inference
    assert inference is not None
    assert inference.max_attention_window == [128, 64]


@pytest.mark.parametrize(
    ("change", "right"),
    [
        ({"training": None, "hardware": None, "inference": None}, True),
        ({"training": {"lora": None, "batch_size": None}}, True),
        ({"training": {"lora": {"r": None}}}, True),
        ({"model": None}, False),
        ({"hardware": {"gpu_memory_gb": 1e-12}}, False),
        ({"hardware": []}, False),
        ({"training": {"batch_size": True}}, False),
    ],
)
def test_the_schema_says_what_is_read(change: dict[str, Any], right: bool) -> None:
    """A null is a key left out, for the schema as for the reading; a model has to be there."""
    run = small_run() | change
    assert VALIDATOR.is_valid(run) is right
    assert (not list(run_file_problems(run))) is right


def test_the_schema_is_valid_and_a_run_is_plain_data() -> None:
    """JSON Schema's own check; a run survives YAML."""
    jsonschema.Draft202012Validator.check_schema(schema())
    assert read(yaml.safe_load(yaml.safe_dump(small_run()))).file == read(small_run()).file


def test_hints_name_the_nearest() -> None:
    """A close word, or nothing."""
    assert nearest("lama", ["llama", "gpt2"]) == "; did you mean 'llama'?"
    assert nearest("zzz", ["llama"]) == ""


def test_a_parameter_count_is_at_most_1000t() -> None:
    """More is a mistake of units."""
    assert parameter_count("1000T") == 10**15
    assert parameter_count(1) == 1
    for wrong in ("1001T", 0, "7e20"):
        with pytest.raises(InputError, match="from 1 to 1000T"):
            parameter_count(wrong)


def test_a_text_may_be_one_letter_and_not_empty() -> None:
    """An empty text is refused where it is read."""
    file = read(
        {"model": {"name": "gpt2"}, "inference": {"engine": "vllm", "engine_version": "1"}}
    ).file
    assert file.inference is not None
    assert file.inference.engine_version == "1"
    with pytest.raises(InputError, match="engine_version"):
        read({"model": {"name": "gpt2"}, "inference": {"engine_version": ""}}).checked()
