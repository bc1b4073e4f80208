"""Commands of llama.cpp: options and variables, and the model in the name of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.llamacpp.model_file import read_file_name
from gpu_mem_calculator.tools.llamacpp.read import FOLDER
from gpu_mem_calculator.tools.translation.arguments import argument_data, argument_table
from tests.catalog.hub.test_checkpoint import gguf_bytes
from tests.tools.reading_of import reading_of

MODEL = "-m Llama-3.2-1B-Instruct-Q4_K_M.gguf"
OPTIONS = {
    "-c 8192": {"max_seq_len": 8192},
    "-c 0": {"max_seq_len": None},
    "-ngl 20": {"n_gpu_layers": 20},
    "-ngl all": {"n_gpu_layers": 10**6},
    "-b 1024 -ub 256": {"n_batch": 1024, "n_ubatch": 256},
    "-np 4 -c 8192": {"n_parallel": 4, "kv_unified": None},
    "-np 4 -c 8192 -kvu": {"n_parallel": 4, "kv_unified": True},
    "-fa on": {"flash_attn": True},
    "-fa off": {"flash_attn": False},
    "-fa auto": {"flash_attn": None},
    "-fa --jinja": {"flash_attn": True},
    "-ctk q8_0 -ctv q4_0": {"cache_type_k": "q8_0", "cache_type_v": "q4_0"},
    "-nkvo": {"no_kv_offload": True},
    "--no-kv-offload": {"no_kv_offload": True},
    "--swa_full": {"swa_full": True},
    "-ncmoe 10": {"n_cpu_moe": 10},
    "--cpu-moe": {"n_cpu_moe": 10_000},
    "-ot exps=CPU": {"override_tensor": "exps=CPU"},
    "--fit off": {"fit": False},
    "-fitt 512 -fitc 8192": {"fit_target": 512, "fit_ctx": 8192},
    "-sm none -mg 1": {"split_mode": "none", "main_gpu": 1},
    "-ts 3,1": {"tensor_split": [3.0, 1.0]},
}


@pytest.mark.parametrize("options", OPTIONS)
def test_an_option_is_a_key(options: str) -> None:
    """Each option that changes memory sets the key with its meaning."""
    reading = reading_of(f"llama-server {MODEL} {options}")
    assert not reading.problems
    section = reading.run["inference"]
    assert {key: section.get(key) for key in OPTIONS[options]} == OPTIONS[options]


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("LLAMA_ARG_CTX_SIZE=4096 llama-server", "max_seq_len", 4096),
        ("LLAMA_ARG_CTX_SIZE=4096 llama-server -c 512", "max_seq_len", 512),
        ("LLAMA_ARG_NO_KV_OFFLOAD=1 llama-server", "no_kv_offload", True),
        ("LLAMA_ARG_KV_OFFLOAD=0 llama-server", "no_kv_offload", True),
        ("LLAMA_ARG_FLASH_ATTN=on llama-server", "flash_attn", True),
        ("llama-server", "n_parallel", None),
        ("llama-cli", "n_parallel", 1),
        ("llama serve", "n_parallel", None),
        ("llama cli -c 512", "max_seq_len", 512),
    ],
)
def test_variables_and_programs(line: str, key: str, value: Any) -> None:
    """A variable sets an option, and an option wins over it; llama-cli has one sequence."""
    assert reading_of(f"{line} {MODEL}").run["inference"].get(key) == value


@pytest.mark.parametrize(
    ("path", "model", "quantization", "similar"),
    [
        ("Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Llama-3.2-1B-Instruct", "Q4_K_M", ""),
        ("m/gemma-1.1-7b-it.Q8_0.gguf", "gemma-1.1-7b-it", "Q8_0", ""),
        ("models/7B/ggml-model-q4_0.gguf", "7B", "Q4_0", ""),
        ("C:\\models\\7B\\ggml-model.gguf", "7B", "", ""),
        ("gpt-oss-20b-mxfp4.gguf", "gpt-oss-20b", "MXFP4_MOE", ""),
        ("qwen3-8b-UD-Q4_K_XL-00001-of-00003.gguf", "qwen3-8b", "Q4_K_M", "UD-Q4_K_XL"),
        ("x-Q6_K_L.gguf", "x", "Q6_K", "Q6_K_L"),
        ("Llama-3.1-8B-Instruct.BF16.gguf", "Llama-3.1-8B-Instruct", "BF16", ""),
        ("Qwen3-4B.gguf", "Qwen3-4B", "", ""),
    ],
)
def test_a_file_name_says_model_and_type(
    path: str, model: str, quantization: str, similar: str
) -> None:
    """The name of a file that is not here says what is in it."""
    found = read_file_name(path)
    assert (found.model, found.quantization, found.similar) == (model, quantization, similar)


@pytest.mark.parametrize(
    ("line", "limit", "could"),
    [
        ("llama-server -hf ggml-org/gemma-3-4b-it-GGUF -ngl 99", "projector", "more"),
        ("llama-server -m Qwen3-8B-Q8_0.gguf -md Qwen3-0.6B-Q8_0.gguf -ngl 9", "draft", "more"),
        ("llama-server -m Qwen3-8B-Q8_0.gguf -np 2 -ngl 9", "--parallel=2", "more"),
        ("llama-server -m Qwen3-8B-Q8_0.gguf --rpc host:1 -ngl 9", "--rpc", "less"),
        ("llama-server -m Qwen3-8B-Q8_0.gguf -dev none", "--device=none", "less"),
        ("llama-server -m Qwen3-8B-Q8_0.gguf -ngl 9 -sm tensor", "tensor", "either"),
        ("llama-server -m Qwen3-8B.gguf -ngl 9", "no quantization", "either"),
    ],
)
def test_limits(line: str, limit: str, could: str) -> None:
    """What is not modelled is named, with the side on which the estimate may be wrong."""
    found = [one for one in reading_of(line).limits if limit in str(one)]
    assert [one.could for one in found] == [could]


@pytest.mark.parametrize(
    "options",
    [
        "--clear-idle -cpent 64 --license",
        "-cml -ins --tfs 1 --penalize-nl --logdir logs --spec-replace a b -cd 512 --p-split 0.2",
        "--cfg-negative-prompt x --cfg-scale 1 --lora-base x -hfv a/b",
    ],
)
def test_options_of_older_builds(options: str) -> None:
    """They are read as before; what runs no model is a limit."""
    reading = reading_of(f"llama-server {MODEL} {options} -ngl 9")
    assert not reading.problems
    found = {limit.key for limit in reading.limits if "quant" not in limit.key}
    assert found == {word + "=true" for word in options.split() if word == "--license"}


def test_a_negative_prompt_takes_a_second_context() -> None:
    """It has a cache of its own."""
    (limit,) = reading_of(f"llama-cli {MODEL} -ngl 9 --cfg-scale 4").limits
    assert (limit.key, limit.could) == ("--cfg-scale=4", "more")


def test_a_preset_sets_its_numbers() -> None:
    """--gpt-oss-20b-default is a model with a context, batches and slots."""
    run = reading_of("llama-server --gpt-oss-20b-default").run
    assert run["model"] == {"name": "gpt-oss-20b"}
    numbers = {"max_seq_len": 262144, "n_batch": 32768, "n_ubatch": 2048, "n_parallel": 2}
    assert run["inference"].items() >= numbers.items()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("llama-server", "names no model"),
        ("llama-server -m x-Q8_0.gguf -c many", "--ctx-size='many'"),
        ("llama-server -m x-Q8_0.gguf -np 0", "--parallel=0"),
        ("llama-server -m x-Q8_0.gguf -ts a,b", "--tensor-split"),
        ("llama-server -m x-Q8_0.gguf -sm other", "--split-mode"),
        ("llama-server -m x-Q8_0.gguf -fa maybe", "--flash-attn"),
        ("llama-server -m x-Q8_0.gguf -ngl some", "--n-gpu-layers"),
        ("llama-server -m x-Q8_0.gguf -c", "expected one argument"),
    ],
)
def test_wrong_values_get_a_sentence(line: str, sentence: str) -> None:
    """A value that llama.cpp refuses is refused here, by the option's name."""
    with pytest.raises(InputError, match=sentence):
        reading_of(line)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (f"llama-server {MODEL} --ctx-sizes 3", "did you mean 'ctx-size'?"),
        (f"llama-server {MODEL} --ctx 3", "--ctx is not an option"),
        (f"LLAMA_ARG_CTX_SIZ=3 llama-server {MODEL}", "did you mean 'LLAMA_ARG_CTX_SIZE'?"),
        (f"llama-server {MODEL} word", "'word' is no option"),
        (f"llama-server {MODEL} --hellaswag", "llama.cpp's perplexity, which llama-server does"),
        (f"llama-cli {MODEL} -npl 4", "-npl is an option of llama.cpp's bench"),
        (f"llama-server {MODEL} --diffusion-steps=4", "--diffusion-steps is an option of"),
    ],
)
def test_unknown_options_are_problems(line: str, problem: str) -> None:
    """Nothing is dropped: an unknown option or variable is named, with the nearest one."""
    assert any(problem in one for one in reading_of(line).problems)


def test_every_variable_and_alias_sets_a_known_option() -> None:
    """The table is consistent: 307 options, and every other name means one of them."""
    data, table = argument_data("arguments", FOLDER), argument_table("arguments", FOLDER)
    assert len(table) == 307
    assert set(data["environment"].values()) <= set(table)
    aliases = {name.removeprefix("no-") for name in data["options"]["aliases"].values()}
    assert aliases <= {*table, *(name.removeprefix("no-") for name in table)}
    assert set(data["options"]["flags"]) <= set(table)


def test_a_file_that_is_here_is_read(tmp_path: Path) -> None:
    """The header of a GGUF file decides, not its name."""
    (tmp_path / "x.gguf").write_bytes(gguf_bytes())
    reading = reading_of("llama-server -m x.gguf -c 64 -ngl 99", tmp_path)
    assert reading.run["model"] == {"name": str(tmp_path / "x.gguf")}
    assert "quantization" not in reading.run["inference"]
    estimate = full_estimate(reading.run | {"hardware": {"gpu": "h200"}})
    assert estimate.result.needs_bytes > 0


def test_patterns_that_are_given_several_times_all_count() -> None:
    """The first that matches a tensor places it, as in one value with commas."""
    one = reading_of('llama-server -m Qwen3-8B-Q8_0.gguf -ot "blk.1=CPU" -ot "blk.2=CUDA0"')
    assert one.run["inference"]["override_tensor"] == "blk.1=CPU,blk.2=CUDA0"


@pytest.mark.parametrize(
    ("line", "keys", "limits"),
    [
        (
            "./ik_llama.cpp/build/bin/llama-server -m Qwen3-8B-Q8_0.gguf -ngl 99 -fmoe -rtr",
            {"n_gpu_layers": 99, "fit": False},
            ["ik_llama.cpp"],
        ),
        (
            "llama-server -m Qwen3-8B-Q8_0.gguf --fit --fit-margin 2048 -khad",
            {"fit_target": 2048},
            ["ik_llama.cpp"],
        ),
        ("llama-server -m Qwen3-8B-Q8_0.gguf -muge", {"n_gpu_layers": 0}, ["ik_llama.cpp"]),
        (
            "llama-server -m Qwen3-8B-Q8_0.gguf -ngl 9 -mla 1",
            {"n_gpu_layers": 9},
            ["ik_llama.cpp", "--mla-use=1"],
        ),
        ("llama-server -m Qwen3-8B-Q8_0.gguf -ngl 9", {"n_gpu_layers": 9}, []),
    ],
)
def test_options_of_ik_llama_cpp(line: str, keys: dict[str, Any], limits: list[str]) -> None:
    """Its options are known; its buffers for computing are a limit."""
    reading = reading_of(line)
    assert not reading.problems
    assert reading.run["inference"].items() >= keys.items()
    assert [one.key for one in reading.limits] == limits
