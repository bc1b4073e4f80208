"""SGLang servers: what their options mean in a run file, what is refused, and what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.launchers.launch import read_launch
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.reading import Reading
from gpu_mem_calculator.tools.reading.tools import read_command, read_data

MODEL = "Qwen/Qwen3-32B"
TABLE = Path(__file__).parent / "options.jsonl"
CASES = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]


def read(text: str, folder: Path | None = None, **environment: str) -> Reading:
    """What a command with these options means."""
    words = ["sglang", "serve", MODEL, *text.split()]
    return read_command(read_launch(words, NamedFiles(folder), environment))


@pytest.mark.parametrize(("text", "keys"), [(row["text"], row["keys"]) for row in CASES])
def test_options_become_keys(text: str, keys: dict[str, Any]) -> None:
    """Options that change memory become keys of `inference`; others add none."""
    reading = read(text)
    assert not reading.problems
    assert not reading.limits
    wanted = {"engine": "sglang", "tensor_parallel_size": 1, **keys}
    assert reading.run["inference"] == wanted


def test_every_form_of_the_program_is_read(tmp_path: Path) -> None:
    """The command, the module and a file mean the same; the command wins over the file."""
    config = {"model-path": MODEL, "tp-size": 2, "mem-fraction-static": 0.8, "enable-metrics": True}
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    runs = [
        read_command(read_launch(words.split(), NamedFiles(tmp_path))).run
        for words in (
            f"sglang serve {MODEL} --tp 2 --mem-fraction-static 0.8",
            f"sglang serve --model-path {MODEL} --tp 2 --mem-fraction-static=0.8",
            f"python3 -m sglang.launch_server --model {MODEL} --tp-size 2 --mem-frac 0.8",
            "python -m sglang.launch_server --config c.yaml",
        )
    ]
    alone = read_data(config, NamedFiles(None))
    assert alone is not None
    assert all(run == runs[0] for run in (*runs, alone.run))
    assert read("--config c.yaml --tp 4", tmp_path).run["hardware"] == {"num_gpus": 4}


def test_data_parallel_attention_needs_no_more_gpus() -> None:
    """Replicas have GPUs of their own; data-parallel attention runs on the tensor-parallel ones."""
    assert read("--tp 4 --dp 2").run["hardware"] == {"num_gpus": 8}
    attention = read("--tp 8 --dp 8 --enable-dp-attention --nnodes 2").run["hardware"]
    assert attention == {"num_gpus": 8, "num_nodes": 2}
    (few,) = read("--tp 4", CUDA_VISIBLE_DEVICES="0,1").problems
    assert few.startswith("CUDA_VISIBLE_DEVICES gives 2 of the 4 GPUs")


def test_a_prefill_without_chunks_is_as_long_as_its_limit() -> None:
    """-1 turns chunks and the graphs of prefill off; a longer prompt is a limit."""
    reading = read("--chunked-prefill-size -1 --max-prefill-tokens 8192")
    assert reading.run["inference"]["chunked_prefill_size"] == 8192
    assert reading.run["inference"]["disable_prefill_cuda_graph"] is True
    assert [limit.could for limit in reading.limits] == ["more"]
    plain = read("--chunked-prefill-size -1").run["inference"]
    assert plain["chunked_prefill_size"] == 16384


@pytest.mark.parametrize(
    ("text", "key", "could"),
    [
        ("--attention-backend flashmla", "--attention-backend='flashmla'", "either"),
        ("--device npu", "--device='npu'", "either"),
        ("--kv-cache-dtype nvfp4", "--kv-cache-dtype='nvfp4'", "less"),
        ("--quantization mxfp8", "--quantization='mxfp8'", "less"),
        ("--quantization gptq", "--quantization='gptq'", "less"),
        ("--is-embedding", "--is-embedding=true", "less"),
        ("--disaggregation-mode prefill", "--disaggregation-mode='prefill'", "either"),
        ("--moe-a2a-backend deepep", "--moe-a2a-backend='deepep'", "more"),
        ("--lora-paths a=b", "--enable-lora=true", "more"),
        ("--speculative-algorithm DFLASH", "--speculative-algorithm='DFLASH'", "more"),
        ("--disable-decode-cuda-graph", "--disable-decode-cuda-graph=true", "less"),
        ("--enable-dp-lm-head", "--enable-dp-lm-head=true", "either"),
    ],
)
def test_what_is_not_modelled_is_named(text: str, key: str, could: str) -> None:
    """A value that is not modelled is a limit, with its direction."""
    (limit,) = read(text).limits
    assert (limit.key, limit.could) == (key, could)


def test_branches_of_a_draft_are_a_limit() -> None:
    """Several branches, and tokens that do not follow from the steps, are named."""
    start = "--speculative-algorithm EAGLE --speculative-draft-model-path x/y "
    tree = read(start + "--speculative-num-steps 5 --speculative-eagle-topk 8")
    assert [limit.key for limit in tree.limits] == ["--speculative-eagle-topk=8"]
    odd = read(start + "--speculative-num-steps 5 --speculative-num-draft-tokens 3")
    assert odd.run["inference"]["num_speculative_tokens"] == 3
    assert [limit.key for limit in odd.limits] == ["--speculative-num-draft-tokens=3"]


def test_variables_are_sorted() -> None:
    """Variables are free, refused or unknown, like options."""
    reading = read(
        "", SGLANG_SET_CPU_AFFINITY="1", SGLANG_VLM_CACHE_SIZE_MB="0", SGLANG_NEVER="1", HOME="/x"
    )
    assert [limit.key for limit in reading.limits] == ["SGLANG_VLM_CACHE_SIZE_MB=0"]
    assert [one.partition(" ")[0] for one in reading.problems] == ["SGLANG_NEVER"]
    assert reading.keys["SGLANG_SET_CPU_AFFINITY"] == "free"
    assert "HOME" not in reading.keys


def test_variables_of_other_releases() -> None:
    """Also those without SGLang's prefix; the default of a release is no limit."""
    reading = read(
        "",
        SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK="256",
        USE_TRITON_W8A8_FP8_KERNEL="1",
        SGLANG_PREP_IN_CUDA_GRAPH="true",
        SGLANG_GRAMMAR_TIMEOUT="5",
        MOONCAKE_PROTOCOL="tcp",
    )
    assert not reading.problems
    assert [limit.key for limit in reading.limits] == [
        "SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK=256",
        "USE_TRITON_W8A8_FP8_KERNEL=1",
    ]


def test_an_unknown_option_names_the_nearest() -> None:
    """A misspelt option is a problem that names the nearest."""
    (problem,) = read("--mem-fraction-statics 0.5").problems
    assert "did you mean 'mem_fraction_static'" in problem


@pytest.mark.parametrize(
    "text",
    [
        "--context-length 1.5Ki",
        "--context-length 4K",
        "--tp two",
        "--dtype int8",
        "--mem-fraction-static high",
        "--cuda-graph-bs a b",
        "--chunked-prefill-size 0",
        "--json-model-override-args 3",
        "--model-type diffusion",
        "--config a.yaml --config b.yaml",
        "--speculative-algorithm EAGLE --speculative-draft-model-path 3",
    ],
)
def test_a_wrong_value_is_one_sentence(text: str) -> None:
    """A value of another type is one sentence."""
    with pytest.raises(InputError) as caught:
        read(text)
    assert len(caught.value.problems) == 1


def test_a_command_needs_a_model() -> None:
    """Without a model there is nothing to estimate."""
    with pytest.raises(InputError, match="needs --model-path"):
        read_command(read_launch(["sglang", "serve", "--port", "1"], NamedFiles(None)))
