"""The row of transformers' generate. Weight formats: bitsandbytes 0.50.2's table of hardware."""

from __future__ import annotations

from ...run.cuda.runtimes import WORDS
from ...run.server_row import ANY_RELEASE, CardRules, FormatChange, ServerRow

ROW = ServerRow(
    title="transformers",
    runtimes=tuple(WORDS),
    cards=CardRules(formats=dict.fromkeys(("nf4", "int8"), ((ANY_RELEASE, "6.0"),))),
    no_code={"mpt": ""},  # it keeps no cache there
    changes=(FormatChange("weights", "quantization", "nf4", "weights in nf4", "slower"),),
    prompt_chunk=("max_num_batched_tokens", 2048),
)
