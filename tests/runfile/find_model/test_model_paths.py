"""A path that this machine does not have is the model that its folder names, and that is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.runfile.config import ModelConfig
from gpu_mem_calculator.runfile.find_model.model_source import find_model
from gpu_mem_calculator.runfile.text.errors import InputError

CACHE = "/root/.cache/huggingface/hub/models--Qwen--Qwen2.5-7B-Instruct/snapshots/a09a35458c"


@pytest.mark.parametrize(
    ("path", "title", "form"),
    [
        ("/models/Qwen2.5-32B-Instruct-AWQ", "Qwen2.5 32B", "awq"),
        ("./models/llama-3.1-8b", "Llama 3.1 8B", ""),
        ("~/models/Qwen3-8B/", "Qwen3 8B", ""),
        ("$HOME/Qwen3-8B", "Qwen3 8B", ""),
        ("data/hub/Qwen3-8B", "Qwen3 8B", ""),
        ("Qwen/Qwen2.5-7B-Instruct/", "Qwen2.5 7B", ""),
        ("/mnt/models--meta-llama--llama-3-1-70b-instruct", "Llama 3.1 70B", ""),
        ("/data/qwen2_5_1_5b", "Qwen2.5 1.5B", ""),
        (r"C:\models\Qwen3-8B", "Qwen3 8B", ""),
        (CACHE, "Qwen2.5 7B", ""),
    ],
)
def test_the_last_folder_names_the_model(path: str, title: str, form: str) -> None:
    """With the weight format that it says."""
    model = find_model(ModelConfig(name=path))
    assert model.title == title
    assert ((model.config or {}).get("quantization_config") or {}).get("quant_method", "") == form
    assert model.assumed[0].startswith(f"{path} is not on this machine: taken as the model")
    assert model.address == path


@pytest.mark.parametrize("path", ["/models/my-run", "/models/8b", "/models/Qwen3-8B.gguf"])
def test_a_folder_without_a_models_name_is_refused(path: str) -> None:
    """With the way to say which model it is."""
    with pytest.raises(InputError, match="is not on this machine, and no preset has its name"):
        find_model(ModelConfig(name=path))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "$MODEL",
            "is a variable that nothing sets; write MODEL=owner/model in front of it, or say",
        ),
        ("${MODEL}", "write MODEL=owner/model in front of it"),
        ("$2", "is a word after the script's name that is not given; say which model"),
        ("$(grep…)", "is what another command prints, and none is started; say which model"),
    ],
)
def test_what_a_shell_script_leaves_open_is_said(name: str, why: str) -> None:
    """With what settles it."""
    with pytest.raises(InputError) as error:
        find_model(ModelConfig(name=name))
    assert why in str(error.value)


def test_a_folder_that_exists_is_read(tmp_path: Path) -> None:
    """Its name means nothing then."""
    folder = tmp_path / "Qwen3-8B"
    folder.mkdir()
    with pytest.raises(InputError, match=r"is a folder without a config\.json"):
        find_model(ModelConfig(name=str(folder)))


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve /models/Qwen3-0.6B",
        "python -m sglang.launch_server --model-path /models/Qwen3-0.6B",
        "text-generation-launcher --model-id /models/Qwen3-0.6B",
        "trl sft --model_name_or_path /models/Qwen3-0.6B --dataset_name x",
        "python -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=/models/Qwen3-0.6B",
        "llamafactory-cli train --model_name_or_path /models/Qwen3-0.6B --stage sft --do_train "
        "--finetuning_type lora --template qwen3 --dataset x --output_dir o",
    ],
)
def test_every_reader_takes_a_path(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The answer says what was assumed."""
    assert main(["check", "--gpu", "h100-sxm", "--long", *command.split()]) != 2
    shown = " ".join(capsys.readouterr().out.split())
    assert "/models/Qwen3-0.6B is not on this machine: taken as the model" in shown
