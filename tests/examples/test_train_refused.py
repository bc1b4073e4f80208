"""What cannot be trained is said in one sentence, before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deepspeed")

from .conftest import Start, Train, shipped

STEPS = ("--steps", "2", "--torch_adam", "--no_sample")


def sentence(ran: Any) -> str:
    """The only line of a run that was refused."""
    assert ran.codes[0] == 2, ran.text
    lines = [line for line in ran.text.splitlines() if "[WARNING]" not in line]
    assert len(lines) == 1, ran.text
    assert lines[0].startswith("train.py: ")
    return str(lines[0]).removeprefix("train.py: ")


def config(**changes: Any) -> dict[str, Any]:
    """A configuration that would train but for this."""
    return {**shipped("zero2_fp32"), **changes}


@pytest.mark.parametrize(
    ("data", "flags", "said"),
    [
        (
            config(train_batch_size=3),
            [],
            "train_batch_size=3 is not train_micro_batch_size_per_gpu "
            "1 x gradient_accumulation_steps 1 x 2 ranks, which is 2",
        ),
        (config(), ["--pipeline"], "zero_optimization.stage=2 does not go with a pipeline"),
        (
            config(zero_optimization={"stage": 3}),
            ["--pipeline_spec_layers"],
            "zero_optimization.stage=3 does not go with a pipeline",
        ),
        (config(gradient_acumulation_steps=2), [], "did you mean 'gradient_accumulation_steps'?"),
        (config(train_micro_batch_size_per_gpu="auto"), [], "is filled in by the Trainer"),
        ("pipeline_fp32", ["--pipeline", "--stages", "3"], "--stages 3 does not divide 2 "),
        ("ddp_fp32", ["--stages", "2"], "--stages needs --pipeline"),
        (
            "ddp_fp32",
            ["--partition_activations"],
            "--partition_activations needs --activation_checkpointing",
        ),
        (
            "ddp_fp32",
            ["--activation_checkpointing", "--contiguous_checkpointing"],
            "contiguous memory for checkpoints needs them partitioned",
        ),
        ("zero2_offload_bf16", [], "--torch_adam does not go with"),
        ("ddp_fp32", ["--resume"], "--resume needs --save DIR"),
        ("ddp_fp32", ["--resume", "--save", "nowhere"], "finds no checkpoint in nowhere"),
        ("ddp_fp32", ["--num_gpus", "4"], "--num_gpus needs --run_memory_estimation_only"),
        ("ddp_fp32", ["--n_head", "3"], "n_embd=32 does not divide into n_head=3 heads"),
        ("ddp_fp32", ["--text", "nowhere.txt"], "nowhere.txt cannot be read"),
        ("ddp_fp32", ["--task", "nothing"], "no module 'nothing' is found"),
        ("ddp_fp32", ["--task", "classifier"], "--n_head means nothing to --task classifier"),
        ("ddp_fp32", ["--steps", "0"], "'0' is no whole number from 1 on"),
        ("ddp_fp32", ["--dropout", "1"], "1 is not from 0 up to"),
        ("ddp_fp32", ["--stps", "3"], "unrecognized arguments: --stps"),
        ("nowhere", [], "nowhere.json cannot be read: No such file"),
    ],
)
def test_one_sentence(train: Train, data: Any, flags: list[str], said: str) -> None:
    """The value, the rule, the nearest fix; rank 0 says it once."""
    assert said in sentence(train(data, *STEPS, *flags))


def test_all_stages_of_a_pipeline_need_a_layer(train: Train) -> None:
    """A model of two blocks has five layers."""
    ran = train("pipeline_fp32", *STEPS, "--pipeline", ranks=6)
    assert "--stages 6 is more than the 5 layers of the model" in ran.text
    assert ran.codes[0] == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"train_batch_size": 2, // not JSON\n}', "is no valid JSON: "),
        ('{"train_batch_size": 2, "train_batch_size": 4}', "Duplicate keys"),
        ("[]", "holds no JSON object"),
    ],
)
def test_the_file_is_valid_json(start: Start, tmp_path: Path, text: str, said: str) -> None:
    """As DeepSpeed wants it."""
    path = tmp_path / "ds_config.json"
    path.write_text(text, encoding="utf-8")
    assert said in sentence(start("--deepspeed_config", str(path), ranks=1))


def test_a_config_is_needed(start: Start) -> None:
    """And some ship."""
    assert "configs/ has ddp_bf16.json, ddp_fp32.json" in sentence(start(ranks=1))


def test_a_report_needs_a_folder(start: Start) -> None:
    """It is missed before the training, not after it."""
    ran = start(ranks=1, report="nowhere/report.json")
    assert "nowhere/report.json: there is no such folder" in sentence(ran)


def test_another_run_is_not_resumed(train: Train, tmp_path: Path) -> None:
    """What was saved must fit: its seed, sizes and ranks."""
    (tmp_path / "latest").write_text("step2", encoding="utf-8")
    (tmp_path / "step2").mkdir()
    saved = {"task": "text_task", "seed": 7, "steps": 2}
    (tmp_path / "step2" / "run.json").write_text(json.dumps(saved), encoding="utf-8")
    said = sentence(train("ddp_fp32", *STEPS, "--save", str(tmp_path), "--resume"))
    assert "--resume: text was None when " in said


def test_fp16_is_refused_where_it_cannot_run() -> None:
    """Not every CPU multiplies in fp16."""
    import subprocess
    import sys

    from .conftest import ENVIRONMENT, GPTLITE

    program = (
        "import options, deepspeed; found = options.parse(['--deepspeed_config', "
        "'configs/zero1_fp16.json']); "
        "type(deepspeed.accelerator.get_accelerator()).is_fp16_supported = lambda self: None\n"
        "try: options.check(found)\nexcept ValueError as error: print(error)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=GPTLITE,
        env=ENVIRONMENT,
        text=True,
        capture_output=True,
        timeout=100,
        check=True,
    )
    assert ran.stdout.splitlines()[-1] == "fp16 cannot be trained on this cpu: use bf16"
