"""TensorRT-LLM's row.

Families: what no release has registered in tensorrt_llm/_torch/models, and the MODEL_MAP of
tensorrt_llm/models for engines. Cards: its support matrix, Ampere and newer at 0.18; formats:
docs/source/features/quantization.md, MXFP4 on Hopper with Triton's kernels.
"""

from __future__ import annotations

from ...ledger.words import words
from ...run.cuda.runtimes import CUDA
from ...run.server_row import ANY_RELEASE, SMALLER_FORMATS, CardRules, ServerRow

# Of those without code in the pytorch backend: families that engines have.
IN_ENGINES = words("""
    baichuan bloom cohere dbrx deepseek deepseek_v2 exaone falcon gemma gemma2 gpt2 gpt_bigcode
    gpt_neox gptj granite granitemoe internlm2 mpt opt phi phimoe qwen
""")
ROW = ServerRow(
    title="TensorRT-LLM",
    package="tensorrt-llm",
    runtimes=(CUDA,),
    cards=CardRules(
        oldest=((ANY_RELEASE, "7.0"), ((0, 18, 0), "8.0")),
        formats={
            "fp8": ((ANY_RELEASE, "8.9"),),
            "mxfp4": ((ANY_RELEASE, "9.0"),),
            "nvfp4": ((ANY_RELEASE, "10.0"),),
        },
    ),
    no_code=dict.fromkeys(
        IN_ENGINES
        | words("""
            arcee bamba dots1 ernie4_5 ernie4_5_moe falcon_h1 falcon_mamba gemma3n glm glm4
            glm4_moe_lite gpt_neo granitemoehybrid granitemoeshared jais2 jamba lfm2 lfm2_moe llada
            longcat_flash mamba mamba2 mimo_v2_flash minicpm3 minimax ministral olmo olmo2 olmo3
            olmoe smollm3 stablelm zamba2
        """),
        "",
    ),
    changes=SMALLER_FORMATS,
    prompt_chunk=("max_num_batched_tokens", 2048),
)
