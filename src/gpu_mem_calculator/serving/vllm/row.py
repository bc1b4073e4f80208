"""vLLM's row.

Families: vllm/model_executor/models/registry.py at every release from 0.4.0 to 0.33.0. What is not
in it runs as transformers' own code, where that can take another attention
(PreTrainedModel.is_backend_compatible, transformers 5.17.0).
Cards: CMakeLists.txt CUDA_SUPPORTED_ARCHS at 0.4.0 to 0.33.0, for the CUDA of its wheels; formats:
get_min_capability in layers/quantization, and its releases, the oldest card of any kernel. bf16:
0.33.0 platforms/cuda.py check_if_supports_dtype, config/model.py _resolve_auto_dtype.
"""

from __future__ import annotations

from ...ledger.words import words
from ...run.cuda.runtimes import NOT_METAL
from ...run.server_row import (
    ANY_RELEASE,
    REFUSES,
    SMALLER_FORMATS,
    CardRules,
    FormatChange,
    ServerRow,
)
from .versions import v1

OF_V0 = "vllm v0"  # costs of the engine before V1
FORMATS = {
    "fp8": (((0, 4, 1), "9.0"), ((0, 4, 2), "8.9"), ((0, 5, 1), "8.0"), ((0, 14, 0), "7.5")),
    "int8": ((ANY_RELEASE, "7.5"),),
    "int4": ((ANY_RELEASE, "8.0"), ((0, 12, 0), "7.5")),
    "awq": ((ANY_RELEASE, "7.5"),),
    "mxfp4": ((ANY_RELEASE, "8.0"),),
    "nvfp4": ((ANY_RELEASE, "10.0"), ((0, 9, 0), "8.0"), ((0, 14, 0), "7.5")),
}
LIMITS = (
    ("share", "gpu_memory_utilization", "0.95", "0.95 of the GPU", "less memory stays free"),
    ("batch", "max_num_batched_tokens", "2048", "prefill by 2,048", "slower prefill"),
    ("slots", "max_num_seqs", "64", "64 concurrent sequences", "fewer users"),
)


ROW = ServerRow(
    title="vLLM",
    package="vllm",
    runtimes=NOT_METAL,
    cards=CardRules(
        oldest=((ANY_RELEASE, "7.0"), ((0, 20, 0), "7.5")), formats=FORMATS, without_bf16=REFUSES
    ),
    no_code={
        **dict.fromkeys(words("t5 mt5 pegasus marian m2m_100 gpt_neo llada"), ""),
        **dict.fromkeys(words("bart mbart mllama"), "0.10.2"),
        **dict.fromkeys(words("bamba minimax qwen"), "0.23.0"),
        "baichuan": "0.24.0",
        "mpt": "0.28.0",
    },
    instead={
        **{
            family: {"engine": "tensorrt_llm", "engine_generation": "tensorrt"}
            for family in words("t5 mt5 bart mbart pegasus marian m2m_100")
        },
        "gpt_neo": {"engine": "transformers"},
        "llada": {"engine": "llamacpp"},
    },
    as_transformers=words("dots1 ministral"),
    changes=(*SMALLER_FORMATS, *(FormatChange(*limit, gains=False) for limit in LIMITS)),
    prompt_chunk=("max_num_batched_tokens", 2048),
    replicas_share_experts=True,
    timed_as=lambda run: "vllm" if v1(run) else OF_V0,
)
