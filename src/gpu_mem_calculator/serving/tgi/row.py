"""TGI's row.

Families: server/text_generation_server/models/__init__.py get_model at 3.3.7; what it runs without
FlashAttention has no paged cache. Cards: 3.3.7 layers/attention/cuda.py; layers/fp8.py
get_fp8_linear (Marlin).
"""

from __future__ import annotations

from ...ledger.words import words
from ...run.cuda.runtimes import NOT_METAL
from ...run.server_row import ANY_RELEASE, SMALLER_FORMATS, CardRules, ServerRow

ROW = ServerRow(
    title="TGI",
    package="text-generation-inference",
    runtimes=NOT_METAL,
    cards=CardRules(oldest=((ANY_RELEASE, "7.5"),), formats={"fp8": ((ANY_RELEASE, "8.0"),)}),
    no_code=dict.fromkeys(words("bloom gpt_neo mpt opt"), ""),
    changes=SMALLER_FORMATS,
    prompt_chunk=("max_num_batched_tokens", 2048),
    request_limit="max_total_tokens",
)
