"""How bodies and pasted text are read, case by case."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette")

from gpu_mem_calculator.advice.training.run_changes import ledger_bytes
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.read import SECTIONS, with_settings
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.web import app
from gpu_mem_calculator.web.offered_changes import offered_changes
from gpu_mem_calculator.web.offers import refused_choices
from gpu_mem_calculator.web.pasted_text import FilesWantedError, read_pasted
from gpu_mem_calculator.web.reply_cache import ReplyCache
from gpu_mem_calculator.web.routes import _run_task
from gpu_mem_calculator.web.worker import _data, calculate, import_text
from gpu_mem_calculator.web.worker_messages import TaskReply, TaskRequest


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"model": {"name": "gpt2"}}', "run file"),
        ("model:\n  name: gpt2", "run file"),
        ('[model]\nname = "gpt2"', "run file"),
        ('{"model_type": "gpt2"}', "config.json"),
        ('{"architectures": ["GPT2LMHeadModel"]}', "config.json"),
    ],
)
def test_pasted_text_is_a_run_file_or_a_config(text: str, what: str) -> None:
    """JSON, YAML or TOML; a config has a model_type or architectures."""
    assert read_pasted(text)["what"] == what


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "is not a run file, a config.json"),
        ("- 1", "is not a run file, a config.json"),
        ('{"layers": 2}', "'layers' is not a section of a run file"),
        ('{"model": ', "what was pasted: not valid JSON"),
    ],
)
def test_other_text_is_refused(text: str, words: str) -> None:
    """With what it should be."""
    with pytest.raises(InputError, match=words):
        read_pasted(text)


def test_a_body_that_is_not_json_says_why() -> None:
    """No body is an empty object."""
    assert (_data(b""), _data(b'{"a": 1}')) == ({}, {"a": 1})
    with pytest.raises(InputError, match="the body is not JSON: it ends on line 1"):
        _data(b"{")


def test_the_module_has_an_app_and_no_other_late_name() -> None:
    """A server imports `app`, which is created then."""
    with pytest.raises(AttributeError, match="nothing"):
        app.__getattr__("nothing")


@pytest.mark.parametrize(("status", "kept"), [(200, True), (422, False), (500, False)])
def test_a_refusal_is_not_remembered(status: int, kept: bool) -> None:
    """It may be another one next time; a reply with figures stays the same."""

    async def reply(_: TaskRequest, _client: str, **_options: Any) -> TaskReply:
        return TaskReply(status, b"{}")

    lane: Any = SimpleNamespace(name="short", seconds=1, run=reply)
    request: Any = SimpleNamespace(client=None)
    replies, question = ReplyCache(10_000), ("calculate", b"", ())
    ask = TaskRequest("calculate", b"", {}, False)
    found = asyncio.run(_run_task(request, lane, ask, replies, question, later=False))
    assert found.status == status
    assert (replies.get(question) is not None) is kept


@pytest.mark.parametrize(
    "body",
    [
        *({}, [], "text", {"text": 1}, {"text": "", "more": 1}),
        *({"text": "", "files": files} for files in ([], {"a": 1})),
    ],
)
def test_a_pasted_text_comes_with_files_alone(body: Any) -> None:
    """A body with anything else beside its text is refused."""
    with pytest.raises(InputError, match="an object with a text, and files that it names"):
        import_text(body, {})


LAUNCH = "accelerate launch --config_file conf/a.yaml trl/scripts/sft.py --deepspeed ds.json"
ACCELERATE = "num_processes: 4\ndistributed_type: MULTI_GPU"
ZERO = '{"zero_optimization": {"stage": 2}}'


def test_files_that_a_command_names_stand_beside_it() -> None:
    """Each that is missing is asked for by its name; a name without its folder is enough."""
    text, files, asked_for = f"{LAUNCH} --model_name_or_path gpt2", {}, []
    given = {"conf/a.yaml": ("a.yaml", ACCELERATE), "ds.json": ("ds.json", ZERO)}
    for _ in given:
        with pytest.raises(FilesWantedError, match="give its text, too") as error:
            read_pasted(text, files)
        [name] = error.value.files
        asked_for.append(name)
        files |= dict([given[name]])
    run = read_pasted(text, files)["run"]
    assert asked_for == ["conf/a.yaml", "ds.json"]
    assert (run["hardware"]["num_gpus"], run["engine"]["zero_stage"]) == (4, 2)
    whole = calculate({"text": text, "files": files}, {})
    assert whole.allocated_bytes == calculate(run, {}).allocated_bytes


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("sbatch job.sh", "job.sh"),
        ("bash run.sh", "run.sh"),
        ("docker compose up", "compose.yaml"),
        ("kubectl apply -f pod.yaml", "pod.yaml"),
        ("axolotl train lora.yml", "lora.yml"),
    ],
)
def test_a_command_that_starts_a_file_asks_for_it(text: str, name: str) -> None:
    """A script, a manifest, a configuration."""
    with pytest.raises(FilesWantedError) as error:
        read_pasted(text)
    assert error.value.files == [name]


def test_a_script_that_is_not_here_is_asked_for() -> None:
    """The run is read by the usual meaning of options; the script could say more."""
    text = "python train.py --model_name_or_path gpt2"
    assert read_pasted(text)["wanted"] == ["train.py"]
    script = "import torch\nprint(torch.ones(1))"
    with pytest.raises(InputError, match="makes no trainer"):
        read_pasted(text, {"train.py": script})


def test_what_was_read_stays_with_the_run() -> None:
    """Where it was read from, and what was assumed; without secrets."""
    text = "# mine\ntrl sft --model_name_or_path gpt2 \\\n  --hub_token hf_abcdefghijklmnopqrstuvwx"
    run = read_pasted(text)["run"]
    first, *assumed = run["notes"]
    assert first.startswith("read from trl.SFTTrainer 1.16.0: trl sft --model_name_or_path gpt2")
    assert "abcdefgh" not in first
    assert any("max_length=1024" in one for one in assumed)
    result = full_estimate(run, replay=False).result
    assert result.assumed[: len(run["notes"])] == run["notes"]
    assert result.run["notes"] == run["notes"]


def test_notes_are_sentences() -> None:
    """Anything else is refused."""
    with pytest.raises(InputError, match="notes must be a list of at most 100 sentences"):
        full_estimate({"model": {"name": "gpt2"}, "notes": "one"}, replay=False)


def test_choices_are_refused_with_the_reason() -> None:
    """What is wrong with the run already is no reason against a choice."""
    run = {"model": {"name": "gpt2"}, "training": {"upcast_unquantized": True}}
    choices = [["training.optimizer=sgd"], ["training.quantization=nf4"]]
    allowed, refused = refused_choices({"run": run, "choices": choices})
    assert allowed is None
    assert "quantized weights take no gradient; add training.lora" in str(refused)
    for body in ({}, {"run": run}, {"run": run, "choices": [[1]]}, {"run": run, "choices": ["a"]}):
        with pytest.raises(InputError, match="the body must be"):
            refused_choices(body)
    with pytest.raises(InputError, match="too many"):
        refused_choices({"run": run, "choices": [[]] * 2001})


def test_a_file_with_every_section_is_a_run_file() -> None:
    """Sections may be empty."""
    file = {**{key: {} for key in SECTIONS}, "model": {"name": "gpt2"}}
    found = read_pasted(json.dumps(file))
    assert (found["run"], found["what"], found["verdict"]) == (file, "run file", "fits")


def test_a_set_of_changes_leaves_what_it_does_not_save() -> None:
    """Saved and left are the bytes of the run that does not fit."""
    run = {"model": {"name": "llama2-7b"}, "hardware": {"gpu": "rtx-4090"}}
    made = full_estimate(run, replay=False)
    now = ledger_bytes(made)
    sets = [one for one in offered_changes(made) if one["fits"]]
    assert sets
    assert {one["saves_bytes"] + one["total_bytes"] for one in sets} == {now}


def test_what_a_command_leaves_open_is_settled_by_a_key_of_the_form() -> None:
    """A value for it, also the one that is assumed, makes the verdict certain."""
    command = "python train.py --model_name_or_path gpt2 --output_dir out --bf16 true"
    run = {**read_pasted(command)["run"], "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 1}}
    key, _, _ = run["limits"][0]["settle"].removeprefix("--set ").partition("=")
    found = full_estimate(run)
    assert found.result.verdict == "cannot_tell"
    for change in offered_changes(found):
        changed = full_estimate(with_settings(run, change["settings"])).result
        assert (change["verdict"], change["fits"]) == (changed.verdict, changed.fits_on_gpu)
    assert key == "training.seq_len"
    said = with_settings(run, [f"{key}={run['training']['seq_len']}"])
    assert full_estimate(said).result.verdict == "fits"
