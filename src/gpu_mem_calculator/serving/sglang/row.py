"""SGLang's row.

Families: EntryClass of sglang/srt/models at 0.5.23; what is not there runs as transformers' own
code, where that can take another attention (model_loader/utils.py).
Cards and bf16: 0.5.23 model_runner_components/load_model_utils.py
(maybe_downgrade_dtype_for_legacy_gpu); 0.4.3 model_runner.py has the same. Formats:
get_min_capability in layers/quantization, the oldest card of any kernel.
"""

from __future__ import annotations

from ...ledger.words import words
from ...run.cuda.runtimes import NOT_METAL
from ...run.server_row import ANY_RELEASE, SMALLER_FORMATS, TAKES_FP16, CardRules, ServerRow

ROW = ServerRow(
    title="SGLang",
    package="sglang",
    runtimes=NOT_METAL,
    cards=CardRules(
        oldest=((ANY_RELEASE, "7.5"),),
        formats={
            **dict.fromkeys(("fp8", "int4", "mxfp4"), ((ANY_RELEASE, "8.0"),)),
            "nvfp4": ((ANY_RELEASE, "10.0"), ((0, 5, 13), "8.0")),
        },
        without_bf16=TAKES_FP16,
    ),
    no_code=dict.fromkeys(
        words("""
            t5 mt5 bart mbart pegasus marian m2m_100 bamba bloom falcon falcon_mamba gpt_neo jamba
            llada mamba mamba2 minimax mpt zamba2
        """),
        "",
    ),
    as_transformers=words("""
        dots1 ernie4_5 glm gpt_neox granitemoeshared jais2 ministral nemotron seed_oss smollm3
    """),
    changes=SMALLER_FORMATS,
    prompt_chunk=("chunked_prefill_size", 2048),
)
