"""Commands, scripts and files of Megatron-LM."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import estimate, full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.launchers.launch import read_launch
from gpu_mem_calculator.tools.megatron.arguments import SYNTAX, TABLE, option_words
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.options import parse_options
from gpu_mem_calculator.tools.reading.reading import Reading
from gpu_mem_calculator.tools.reading.tools import read_command, read_data

NO_FILES = NamedFiles(folder=None)
RECORD = json.loads(Path(__file__).with_name("options.json").read_text(encoding="utf-8"))
GPT = (
    "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 128 "
    "--max-position-embeddings 128 --micro-batch-size 2 --bf16"
)
SMALL = f"{GPT} --vocab-size 1000"


def read(options: str, launch: str = "torchrun --nproc-per-node 8 pretrain_gpt.py") -> Reading:
    """A command."""
    return read_command(read_launch(shlex.split(f"{launch} {options}"), NO_FILES))


def args(options: str) -> dict[str, Any]:
    """The arguments of the program that a command means."""
    found = read(f"{SMALL} {options}")
    assert found.problems == []
    return found.run["program"]["args"]


def test_every_option_is_known() -> None:
    """The parser's own option strings mean the arguments that they have there."""
    options = dict(RECORD["options"])
    assert len(options) == 845
    own = {name for name in TABLE if not name.startswith(("export_", "finetune_"))}
    assert {name for name, _ in options.values()} <= own
    while options:  # together, but for options of the same argument
        batch = {name: (option, kind) for option, (name, kind) in options.items()}
        words, expected = [], {}
        for name, (option, kind) in batch.items():
            words += [option] if isinstance(kind, bool) else [option, "7"]
            expected[name] = kind if isinstance(kind, bool) else [7] if kind == "list" else 7
            del options[option]
        parsed = parse_options("it", words, TABLE, SYNTAX)
        assert (parsed.values, parsed.problems) == (expected, [])


def test_options_are_written_as_the_parser_has_them() -> None:
    """What is written is an option of the script that means the same."""
    options = RECORD["options"]
    for name in {one for one, _ in options.values()}:
        for value in (True, False) if name in SYNTAX.flags else (7,):
            words = list(option_words({name: value}))
            meant = options.get(words[0])
            if meant is None:  # an option that the script has in one direction only
                assert isinstance(value, bool)
                continue
            if name != "ckpt_fully_parallel_save":  # a deprecated argument has its option
                assert meant[0] == name
                assert meant[1] is value or not isinstance(meant[1], bool)


def test_a_command_is_its_program() -> None:
    """The same bytes as the program section with the same arguments."""
    found = read(f"{SMALL} --tensor-model-parallel-size 2 --sequence-parallel --swiglu")
    own = {
        "num_layers": 4,
        "hidden_size": 256,
        "num_attention_heads": 8,
        "seq_length": 128,
        "max_position_embeddings": 128,
        "micro_batch_size": 2,
        "bf16": True,
        "vocab_size": 1000,
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "swiglu": True,
    }
    assert found.run["program"] == {"tool": "megatron", "args": own}
    assert found.run["hardware"] == {"num_gpus": 8}
    assert set(found.keys.values()) == {"memory"}
    result = full_estimate(found.run | {"hardware": {"gpu": "h200", "num_gpus": 8}})
    assert int(result.resolved.run.mesh.dp) == 4


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ("--disable-bias-linear", "add_bias_linear", False),
        ("--no-masked-softmax-fusion", "masked_softmax_fusion", False),
        ("--no-gradient-accumulation-fusion", "gradient_accumulation_fusion", False),
        ("--recompute-modules core_attn mlp", "recompute_modules", ["core_attn", "mlp"]),
        ("--moe-aux-loss-coeff 1e-2", "moe_aux_loss_coeff", 0.01),
        (
            "--microbatch-group-size-per-virtual-pipeline-stage 4",
            "microbatch_group_size_per_vp_stage",
            4,
        ),
        ("--moe-layer-freq '([0]*3+[1]*1)'", "moe_layer_freq", "([0]*3+[1]*1)"),
    ],
)
def test_options(options: str, name: str, value: Any) -> None:
    """Options whose name differs from the argument's, lists, and expressions."""
    assert args(options)[name] == value


def test_limits() -> None:
    """What is not modelled is named, with its direction; the estimate goes on without it."""
    options = "--fp8-format hybrid --log-num-zeros-in-grad --optimizer-cpu-offload"
    found = read(f"{SMALL} {options}")
    assert [(one.key, one.could) for one in found.limits] == [
        ("--fp8='hybrid'", "either"),
        ("--log_num_zeros_in_grad=true", "more"),
        ("--optimizer_cpu_offload=true", "less"),
    ]
    assert "fp8" not in found.run["program"]["args"]
    assert found.keys["--fp8"] == "refused"
    estimate(found.run)


def test_overlapped_collectives_are_read() -> None:
    """Transformer Engine's buffers count outside torch."""
    words = f"{SMALL} --tensor-model-parallel-size 2 --sequence-parallel"
    with_buffers = read(f"{words} --tp-comm-overlap")
    assert not with_buffers.limits
    assert with_buffers.keys["--tp_comm_overlap"] == "memory"
    more, less = estimate(with_buffers.run), estimate(read(words).run)
    assert more.outside_torch_bytes > less.outside_torch_bytes


def test_experts_one_by_one_are_a_limit() -> None:
    """Transformer Engine's experts without grouped kernels."""
    found = read(f"{SMALL} --num-experts 4 --swiglu")
    assert found.limits[-1].could == "more"
    assert found.run["program"]["args"]["moe_grouped_gemm"] is True
    assert not read(f"{SMALL} --num-experts 4 --transformer-impl local").limits


def test_free_options_are_not_in_the_program() -> None:
    """They are read, and have no effect."""
    found = read(f"{SMALL} --lr 1e-4 --log-params-norm --rampup-batch-size 16 16 1000")
    assert (found.limits, found.problems) == ([], [])
    assert found.keys["--lr"] == "free"
    assert "lr" not in found.run["program"]["args"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--num-layer 4", "--num-layer is not an option of Megatron-LM pretrain_gpt.py; did you"),
        ("--micro-batch-size $MBS", "must be a number, which the script does not say; write its"),
        ("--tensor-model-parallel-size two", "--tensor-model-parallel-size two must be a number"),
        ("word", "'word' is not an option"),
    ],
)
def test_problems(options: str, sentence: str) -> None:
    """One sentence each."""
    assert any(sentence in one for one in read(f"{SMALL} {options}").problems)


def test_a_variable_in_the_place_of_options_is_a_limit() -> None:
    """The script does not say what is in it."""
    assert str(read(f"{SMALL} '$EXTRA'").limits[0]).startswith("$EXTRA: the script does not say")


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ("--vocab-file gpt2-vocab.json --merge-file m.txt", 50257),
        ("--tokenizer-type TikTokenizer --tokenizer-model x", 131072),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model Qwen/Qwen2.5-7B", 152064),
        ("--tokenizer-type NullTokenizer --vocab-size 5000", 5000),
    ],
)
def test_vocabulary(options: str, size: int) -> None:
    """The tokenizer says the size."""
    assert read(f"{GPT} {options}").run["program"]["args"]["vocab_size"] == size


def test_vocabulary_of_a_file(tmp_path: Path) -> None:
    """The entries of vocab.json are counted where the file is there."""
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1}')
    words = shlex.split(f"pretrain_gpt.py {GPT} --vocab-file vocab.json")
    found = read_command(read_launch(words, NamedFiles(folder=tmp_path)))
    assert found.run["program"]["args"]["vocab_size"] == 2


def test_vocabulary_that_is_not_known() -> None:
    """The estimate says what is missing."""
    found = read(f"{GPT} --tokenizer-type GPTSentencePieceTokenizer --tokenizer-model x.model")
    with pytest.raises(InputError, match="vocab_size is missing, and the size of the tokenizer"):
        estimate(found.run)


def test_gpus() -> None:
    """Those of the launcher; else the fewest, and it is said."""
    assert read(SMALL, "torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py").run[
        "hardware"
    ] == {"num_gpus": 16, "num_nodes": 2}
    options = f"{SMALL} --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
    found = read(options, "python pretrain_gpt.py")
    assert found.run["hardware"] == {"num_gpus": 4}
    assert any("4 is the fewest" in one for one in found.assumed)


def test_environment() -> None:
    """Kernels of attention that are off, and the allocator."""
    start = "NVTE_FLASH_ATTN=0 NVTE_FUSED_ATTN=0 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
    found = read(SMALL, f"{start} CUDA_DEVICE_MAX_CONNECTIONS=1 python pretrain_gpt.py")
    assert found.run["program"]["args"]["attention_backend"] == "unfused"
    assert found.run["training"] == {"pytorch_alloc_conf": "expandable_segments:True"}


@pytest.mark.parametrize("script", ["t5", "bert", "hybrid", "mamba", "vlm"])
def test_other_models(script: str) -> None:
    """They are refused with a sentence."""
    found = read("--num-layers 4 --lr 1", f"torchrun pretrain_{script}.py")
    assert found.keys == {"--num_layers": "memory", "--lr": "free"}
    with pytest.raises(InputError, match="is not modelled under Megatron-LM; its"):
        estimate(found.run)


def test_test_configuration() -> None:
    """ENV_VARS and MODEL_ARGS: true is an option without a value, false leaves it out."""
    data = {
        "ENV_VARS": {"NVTE_FLASH_ATTN": 0, "NVTE_FUSED_ATTN": 0},
        "MODEL_ARGS": {
            "--num-layers": 4,
            "--hidden-size": 256,
            "--num-attention-heads": 8,
            "--seq-length": 128,
            "--micro-batch-size": 2,
            "--vocab-size": 1000,
            "--bf16": True,
            "--fp16": False,
            "--recompute-granularity": "selective",
            "--recompute-modules": "[core_attn mlp]",
        },
    }
    found = read_data(data, NO_FILES)
    assert found is not None
    given = found.run["program"]["args"]
    assert (given["bf16"], given["attention_backend"], "fp16" in given) == (True, "unfused", False)
    assert given["recompute_modules"] == ["core_attn", "mlp"]
    with pytest.raises(InputError, match="MODEL_ARGS=7 must be an object"):
        read_data({"MODEL_ARGS": 7}, NO_FILES)


def test_yaml_arguments(tmp_path: Path) -> None:
    """--yaml-cfg has sections, and names of megatron-core's configurations."""
    data = {
        "language_model": {
            "num_layers": 4,
            "hidden_size": 256,
            "num_attention_heads": 8,
            "activation_func": "swiglu",
            "num_moe_experts": None,
        },
        "model_parallel": {"tensor_model_parallel_size": 2},
        "micro_batch_size": 1,
        "seq_length": 128,
        "vocab_size": 1000,
        "lr": 1e-4,
    }
    (tmp_path / "gpt.yaml").write_text(json.dumps(data))
    command = read_launch(["pretrain_gpt.py", "--yaml-cfg", "gpt.yaml"], NamedFiles(tmp_path))
    for found in (read_command(command), read_data(data, NO_FILES)):
        assert found is not None
        assert found.problems == []
        given = found.run["program"]["args"]
        assert (given["swiglu"], given["tensor_model_parallel_size"]) == (True, 2)
        assert found.keys["--lr"] == "free"


MODERN = (
    "--normalization RMSNorm --swiglu --position-embedding-type rope --disable-bias-linear "
    "--hidden-dropout 0 --attention-dropout 0 --untie-embeddings-and-output-weights"
)
EXPERTS = "--num-experts 8 --moe-grouped-gemm --moe-ffn-hidden-size 64"


@pytest.mark.parametrize(
    ("options", "family", "parameters"),
    [
        # qkv, output, gated MLP of 640, two norms; norms of q and k of 32 each
        ("--qk-layernorm", "qwen3", 4 * (4 * 256**2 + 3 * 256 * 640 + 512 + 64)),
        ("--add-qkv-bias", "qwen2", 4 * (4 * 256**2 + 3 * 256 * 640 + 512 + 3 * 256)),
        (
            f"--moe-layer-freq [0,1,1,1] {EXPERTS}",
            "glm4_moe",
            4 * (4 * 256**2 + 512) + 3 * 256 * 640 + 3 * (8 * 3 * 256 * 64 + 8 * 256),
        ),
        (
            "--multi-latent-attention --q-lora-rank 32 --kv-lora-rank 16 --qk-head-dim 8 "
            "--qk-pos-emb-head-dim 8 --v-head-dim 8 --qk-layernorm",
            "deepseek_v3",
            4
            * (
                (256 * 32 + 32 * 8 * 16 + 32)  # queries
                + (256 * 24 + 16 * 8 * 16 + 16)  # keys and values
                + (64 * 256 + 3 * 256 * 640 + 512)
            ),
        ),
    ],
)
def test_models_by_family(options: str, family: str, parameters: int) -> None:
    """Parts that plain numbers cannot say become a config.json with the right parameters."""
    found = read(f"{SMALL} {MODERN} {options}")
    assert found.limits == []
    arch = full_estimate(found.run).resolved.run.arch
    assert arch.family == family
    assert arch.num_parameters == parameters + 2 * 1000 * 256 + 256


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--qk-layernorm", "qk_layernorm is modelled with RMSNorm, SwiGLU, rotary"),
        (f"{MODERN} {EXPERTS} --moe-layer-freq [1,0,1,1]", "before those with experts only"),
        (f"{MODERN} {EXPERTS} --moe-layer-freq [0,1]", "has 2 layers; num_layers is 4"),
        (f"{MODERN} {EXPERTS} --moe-layer-freq 2**99", "before those with experts only"),
    ],
)
def test_models_that_are_not_modelled(options: str, sentence: str) -> None:
    """One sentence."""
    with pytest.raises(InputError) as error:
        estimate(read(f"{SMALL} {options}").run)
    assert sentence in str(error.value)


def test_options_of_older_releases_mean_what_they_meant() -> None:
    """Megatron-LM v2.5, v2.6 and 23.06: data, DDP, recompute of whole layers."""
    full = {"recompute_granularity": "full", "recompute_method": "uniform"}
    old = args("--data-impl mmap --DDP-impl local --no-query-key-layer-scaling")
    assert old == {**args(""), "apply_query_key_layer_scaling": False}
    for words in ("--checkpoint-activations", "--activations-checkpoint-method uniform"):
        assert args(words) == {**args(""), **full, "recompute_num_layers": 1}
    assert args("--checkpoint-activations --checkpoint-num-layers 2")["recompute_num_layers"] == 2
    assert [limit.key for limit in read(f"{SMALL} --fp8-hybrid --DDP-impl torch").limits] == [
        "--fp8='hybrid'",
        "--DDP_impl='torch'",
    ]
