"""GGUF: sizes of whole files against those that llama.cpp and its users print."""

from __future__ import annotations

import pytest

from gpu_mem_calculator import catalog
from gpu_mem_calculator.models.arch.arch import Arch
from gpu_mem_calculator.run.weights import ggml_types, gguf, gguf_types
from tests.corpus import sampled
from tests.serving.every_family import NAMES, family
from tests.serving.vllm_runs import arch

# Their experts read a projection of the hidden state, which is refused (llamacpp/checks.py).
REFUSED = ("nemotron-3-super-120b-a12b", "nemotron-3-ultra-550b-a55b")
# Bits per weight of Llama-3.1-8B, llama.cpp b10586 tools/quantize/README.md.
README = {
    "IQ1_S": 2.0042,
    "IQ1_M": 2.1460,
    "IQ2_XXS": 2.3824,
    "IQ2_XS": 2.5882,
    "IQ2_S": 2.7403,
    "IQ2_M": 2.9294,
    "IQ3_XXS": 3.2548,
    "IQ3_XS": 3.4977,
    "IQ3_S": 3.6606,
    "IQ3_M": 3.7628,
    "IQ4_XS": 4.4597,
    "IQ4_NL": 4.6818,
    "Q2_K_S": 2.9697,
    "Q2_K": 3.1593,
    "Q3_K_S": 3.6429,
    "Q3_K_M": 3.9960,
    "Q3_K_L": 4.2979,
    "Q4_K_S": 4.6672,
    "Q4_K_M": 4.8944,
    "Q5_K_S": 5.5704,
    "Q5_K_M": 5.7036,
    "Q6_K": 6.5633,
    "Q8_0": 8.5008,
    "F16": 16.0005,
}
# Buffers on the GPU and of the token embedding in MiB, llama.cpp's own runs of 2025-03-22.
PYTHIA = {
    "F16": (5049.71, 245.62),
    "Q8_0": (2684.57, 130.49),
    "Q5_1": (1904.83, 92.11),
    "Q4_K_M": (1632.95, 69.08),
    "Q4_1": (1604.83, 76.76),
}
# "model size" in GiB of the logs in ikawrakow/ik_llama.cpp (discussions 357, 370; issues 334, 530).
LOGGED = [
    ("qwen3-235b-a22b", "Q8_0", 232.769),
    ("qwen3-235b-a22b", "Q4_K_M", 132.386),
    ("qwen3-235b-a22b", "Q6_K", 179.754),
    ("gemma3-27b", "Q4_K_M", 15.404),
]


def total(model: Arch, ftype: str, **options: object) -> int:
    """Bytes of a file's tensors."""
    return sum(tensor.bytes for tensor in gguf.tensors(model, ftype, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(("ftype", "bits"), README.items())
def test_every_file_type_has_the_bits_per_weight_that_llama_cpp_prints(
    ftype: str, bits: float
) -> None:
    """The file has the model's elements and 64 rotary factors that are not modelled."""
    model = arch("llama3.1-8b")
    assert total(model, ftype) * 8 / (model.num_parameters + 64) == pytest.approx(bits, abs=6e-5)


@pytest.mark.parametrize(("ftype", "mib"), PYTHIA.items())
def test_a_fused_model_of_an_older_build_has_the_buffers_of_its_log(
    ftype: str, mib: tuple[float, float]
) -> None:
    """Before b8266 a fused qkv had a separate rule."""
    tensors = gguf.tensors(arch("pythia-2.8b"), ftype, build=4930)
    table = sum(one.bytes for one in tensors if one.name == "token_embd.weight")
    on_gpu = sum(one.bytes for one in tensors) - table
    assert (on_gpu / 2**20, table / 2**20) == pytest.approx(mib, abs=0.006)


def test_a_newer_build_treats_a_fused_projection_as_values() -> None:
    """Its Q4_K_M file has another size."""
    model = arch("pythia-2.8b")
    assert total(model, "Q4_K_M") != total(model, "Q4_K_M", build=gguf_types.FUSED_AS_VALUES - 1)


@pytest.mark.parametrize(("name", "ftype", "gib"), LOGGED)
def test_large_files_have_the_size_of_their_logs(name: str, ftype: str, gib: float) -> None:
    """Experts, grouped heads and tied embeddings each have rules."""
    assert total(arch(name), ftype) / 2**30 == pytest.approx(gib, abs=6e-4)


def test_latent_attention_is_stored_in_two_parts() -> None:
    """R1's F16 log says 1251.990 GiB with kv_b and its two parts; newer files drop kv_b."""
    model = arch("deepseek-v3")
    beside = 61 * 128 * (128 + 128) * 512 * 2
    assert (total(model, "F16") + beside) / 2**30 == pytest.approx(1251.990, abs=6e-4)


def test_gpt_oss_keeps_its_experts_in_mxfp4() -> None:
    """ggml-org's gpt-oss-20b-mxfp4.gguf is 12.1 GB, of which the tokenizer is 13 MB."""
    assert total(arch("gpt-oss-20b"), "MXFP4_MOE") == pytest.approx(12.1e9, rel=2e-3)
    tensors = gguf.tensors(arch("gpt-oss-20b"), "Q4_K_M")
    assert {one.kind for one in tensors if one.name.endswith("exps.weight")} == {"MXFP4"}


def test_rows_that_are_not_whole_blocks_take_the_next_type() -> None:
    """2880 is a multiple of 32 but not of 256; 100 is a multiple of neither."""
    assert gguf_types.fallback("Q4_K", 2880) == "Q5_0"
    assert gguf_types.fallback("Q6_K", 2880) == "Q8_0"
    assert gguf_types.fallback("IQ3_S", 2880) == "IQ4_NL"
    assert gguf_types.fallback("Q4_K", 100) == "F16"


@pytest.mark.parametrize("name", NAMES)
def test_no_parameter_is_lost_or_stored_twice(name: str) -> None:
    """This holds for every family; router biases are tensors of the file, too."""
    model = family(name)
    if gguf.problem(model):
        assert model.family in gguf.problem(model)
        return
    steering = sum(b.shape[0] for b in model.buffers if b.name.endswith("e_score_correction_bias"))
    elements = sum(one.elements for one in gguf.tensors(model, "Q4_K_M"))
    assert elements == model.num_parameters + steering


@pytest.mark.parametrize("name", sampled(catalog.names("index"), keep=70))
def test_no_preset_is_left_in_32_bits(name: str) -> None:
    """Norms, routers and biases stay F32: never more than 3 % of a model's parameters."""
    model = arch(name)
    if gguf.problem(model) or name in REFUSED:
        return
    kept = sum(one.elements for one in gguf.tensors(model, "Q4_K_M") if one.kind == "F32")
    assert kept < 0.03 * model.num_parameters


def test_names_of_file_types_are_read_in_any_case() -> None:
    """Short forms are read as well."""
    assert gguf.file_type("q4_k_m") == "Q4_K_M"
    assert gguf.file_type("Q5_K") == "Q5_K_M"
    assert gguf.file_type("awq") is None


def test_every_type_number_has_a_block() -> None:
    """Every type that a header can name has a size."""
    assert set(ggml_types.TYPE_BY_NUMBER.values()) == set(ggml_types.BLOCKS)
    assert ggml_types.ggml_bytes("Q8_0", 64) == 68
    assert ggml_types.bits_per_weight("Q4_K") == 4.5
