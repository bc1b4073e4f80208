"""llama.cpp's row. It has HIP, SYCL and Metal (b10586 ggml/src), and runs on old cards
(ggml/src/ggml-cuda/CMakeLists.txt, with CUDA 12).
"""

from __future__ import annotations

from ...ledger.words import words
from ...run.cuda.runtimes import CUDA, METAL, ROCM, XPU
from ...run.server_row import ANY_RELEASE, LESS_EXACT, CardRules, FormatChange, ServerRow

ROW = ServerRow(
    title="llama.cpp",
    package="llama-cpp",
    runtimes=(CUDA, ROCM, XPU, METAL),
    cards=CardRules(oldest=((ANY_RELEASE, "5.0"),)),
    # Their caches have a special layout, which is not modelled.
    no_code=dict.fromkeys(words("deepseek_v32 glm_moe_dsa gemma3n gemma4"), ""),
    changes=(
        FormatChange("cache", "kv_cache_dtype", "int8", "KV cache in q8_0", "less exact"),
        FormatChange("weights", "quantization", "q4_k_m", "weights in q4_k_m", LESS_EXACT),
        FormatChange("weights", "quantization", "q2_k", "weights in q2_k", LESS_EXACT),
    ),
    prompt_chunk=("n_ubatch", 512),
    reads_gguf=True,
    splits_by_layer=True,
)
