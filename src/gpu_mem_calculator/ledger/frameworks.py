"""The frameworks whose source code is modelled: which version was read, and when.

Every version that a citation in this package names is in a row of this table, and defaults that
name a version take it from here. docs/frameworks.md shows the table; `make drift` compares it
with the newest releases.
"""

from __future__ import annotations

import re

from msgspec import Struct

RELEASE = r"v?\d+\.\d|b\d+$"  # not a commit


class Framework(Struct, frozen=True):
    """A framework at the newest version whose source was read.

    - name: its own spelling; citations have it in any case
    - version: a release, a build (b and a number) or a commit
    - date: the day on which it was read; where that is not known, the day of the first citation
    - repository: on GitHub
    - alias: its other name in citations
    - oldest: the first release whose rules are modelled; citations name any from it on
    - also: other versions that citations name
    - package: its name on the Python package index
    """

    name: str
    version: str
    date: str
    repository: str
    alias: str = ""
    oldest: str = ""
    also: tuple[str, ...] = ()
    package: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Its names in citations."""
        return (self.name, self.alias) if self.alias else (self.name,)

    @property
    def url(self) -> str:
        """The address of its repository."""
        return f"https://github.com/{self.repository}"

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Major, minor and patch of the version."""
        return numbers(self.version)

    @property
    def oldest_numbers(self) -> tuple[int, int, int]:
        """Major, minor and patch of the first release whose rules are modelled."""
        return numbers(self.oldest)

    def is_read(self, version: str) -> bool:
        """Whether a version is the newest one that was read, in full or without last numbers."""
        return _abbreviates(version, self.version)

    def covers(self, version: str) -> bool:
        """Whether a citation may name a version, in full or without its last numbers."""
        if any(_abbreviates(version, known) for known in (self.version, *self.also)):
            return True
        is_release = bool(self.oldest) and re.match(RELEASE, version) is not None
        return is_release and self.oldest_numbers <= numbers(version) <= self.numbers


def numbers(version: str) -> tuple[int, int, int]:
    """Major, minor and patch of a release such as `v0.5.18` or `1.2`; of a build, its number."""
    parts = [int(part) for part in re.findall(r"\d+", version)]
    first, second, third = (*parts, 0, 0, 0)[:3]
    return first, second, third


def _abbreviates(version: str, known: str) -> bool:
    """Whether a version is a known one, or its first numbers, or a commit's first digits."""
    plain = version.partition("+")[0]
    commit = len(plain) >= 7 and "." not in plain and known.startswith(plain)
    return commit or f"{known}.".startswith(f"{plain}.")


TORCH = Framework(
    "torch", "2.13.0", "2026-11-15", "pytorch/pytorch", also=("2.8", "2.11.0"), package="torch"
)
TRANSFORMERS = Framework(
    "transformers",
    "5.17.0",
    "2026-11-15",
    "huggingface/transformers",
    also=("4.54.0", "4.57.1"),
    package="transformers",
)
PEFT = Framework("PEFT", "0.21.2", "2026-11-15", "huggingface/peft", package="peft")
BITSANDBYTES = Framework(
    "bitsandbytes",
    "0.50.2",
    "2026-11-15",
    "bitsandbytes-foundation/bitsandbytes",
    package="bitsandbytes",
)
DEEPSPEED = Framework(
    "DeepSpeed", "0.19.8", "2026-11-15", "deepspeedai/DeepSpeed", package="deepspeed"
)
MEGATRON_CORE = Framework(
    "Megatron-Core",
    "0.19.2",
    "2026-11-15",
    "NVIDIA/Megatron-LM",
    alias="Megatron-LM",
    package="megatron-core",
)
MEGATRON_DEEPSPEED = Framework(
    "Megatron-DeepSpeed", "6acc370a", "2026-11-17", "deepspeedai/Megatron-DeepSpeed"
)
TRANSFORMER_ENGINE = Framework(
    "Transformer Engine",
    "2.18.0",
    "2026-11-15",
    "NVIDIA/TransformerEngine",
    oldest="2.0",
    package="transformer-engine",
)
VLLM = Framework(
    "vLLM", "0.33.0", "2026-11-19", "vllm-project/vllm", oldest="0.4.0", package="vllm"
)
SGLANG = Framework(
    "SGLang", "0.5.23", "2026-11-19", "sgl-project/sglang", oldest="0.4.3", package="sglang"
)
TENSORRT_LLM = Framework(
    "TensorRT-LLM",
    "1.2.1",
    "2026-11-16",
    "NVIDIA/TensorRT-LLM",
    oldest="0.8.0",
    package="tensorrt-llm",
)
TGI = Framework(
    "text-generation-inference",
    "3.3.7",
    "2026-11-16",
    "huggingface/text-generation-inference",
    alias="TGI",
    oldest="1.0.0",
)
LLAMA_CPP = Framework("llama.cpp", "b10586", "2026-11-16", "ggml-org/llama.cpp", oldest="b2500")
FLASHINFER = Framework(
    "flashinfer", "0.6.6", "2026-11-16", "flashinfer-ai/flashinfer", package="flashinfer-python"
)
TRITON_KERNELS = Framework("triton_kernels", "3.5.0", "2026-11-16", "triton-lang/triton")
NCCL = Framework(
    "NCCL", "2.28.9", "2026-11-15", "NVIDIA/nccl", also=("2.30",), package="nvidia-nccl-cu13"
)
HUGGINGFACE_HUB = Framework(
    "huggingface_hub",
    "1.33.0",
    "2026-11-16",
    "huggingface/huggingface_hub",
    package="huggingface_hub",
)
LIGER_KERNEL = Framework(
    "liger-kernel", "0.8.5", "2026-11-17", "linkedin/Liger-Kernel", package="liger-kernel"
)
CUT_CROSS_ENTROPY = Framework(
    "cut-cross-entropy",
    "25.1.1",
    "2026-11-17",
    "apple/ml-cross-entropy",
    package="cut-cross-entropy",
)
TRL = Framework(
    "TRL",
    "1.16.0",
    "2026-11-17",
    "huggingface/trl",
    also=("0.24.0", "0.25.1", "1.10.0"),
    package="trl",
)
FLASH_ATTN = Framework(
    "flash-attn",
    "2.8.3",
    "2026-11-17",
    "Dao-AILab/flash-attention",
    also=("0251105",),
    package="flash-attn",
)
TORCHTITAN = Framework(
    "torchtitan", "0.2.2", "2026-11-17", "pytorch/torchtitan", package="torchtitan"
)
TORCHTUNE = Framework("torchtune", "0.6.1", "2026-11-19", "pytorch/torchtune", package="torchtune")
LITGPT = Framework("litgpt", "0.5.13", "2026-11-19", "Lightning-AI/litgpt", package="litgpt")
ACCELERATE = Framework(
    "Accelerate", "1.15.0", "2026-11-18", "huggingface/accelerate", package="accelerate"
)
LIGHTNING = Framework(
    "Lightning", "2.6.6", "2026-11-18", "Lightning-AI/pytorch-lightning", package="lightning"
)
AXOLOTL = Framework("Axolotl", "067b021", "2026-11-17", "axolotl-ai-cloud/axolotl")
LLAMA_FACTORY = Framework(
    "LLaMA-Factory", "ff6d4d1", "2026-11-18", "hiyouga/LLaMA-Factory", package="llamafactory"
)
MS_SWIFT = Framework("ms-swift", "3602360", "2026-11-18", "modelscope/ms-swift")
VERL = Framework("verl", "b178a3c", "2026-11-18", "volcengine/verl")
OPENRLHF = Framework("OpenRLHF", "3c3be62", "2026-11-18", "OpenRLHF/OpenRLHF")
OLLAMA = Framework(
    "Ollama",
    "fb30760",
    "2026-11-18",
    "ollama/ollama",
    also=("0.11.0", "0.12", "0.12.6", "0.12.11", "0.20.2", "0.32.15"),
)
LMCACHE = Framework("LMCache", "000620e3", "2026-11-19", "LMCache/LMCache", package="lmcache")
ESTIMATOR = Framework("LLMGPUMemEstimator", "c96c73f", "2026-11-15", "pp1230/LLMGPUMemEstimator")

FRAMEWORKS = tuple(row for row in globals().values() if isinstance(row, Framework))
BY_NAME = {name.lower(): row for row in FRAMEWORKS for name in row.names}
