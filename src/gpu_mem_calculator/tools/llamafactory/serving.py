"""Files of `llamafactory-cli chat`, `api` and `export`: a model that answers, or is saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..reading.reading import Limit, Reading

ENGINES = {"huggingface": "transformers", "vllm": "vllm", "sglang": "sglang"}


def serving_run(reading: Reading, kept: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Add the inference section."""
    if values["export_dir"]:
        reading.run["program"] = {"tool": "llamafactory.export"}
        return
    engine = ENGINES.get(values["infer_backend"])
    if engine is None:
        choice = ", ".join(ENGINES)
        reading.problems.append(f"infer_backend={values['infer_backend']!r} must be {choice}")
        return
    inference: dict[str, Any] = {"engine": engine}
    if engine == "vllm":
        inference |= {
            "max_seq_len": values["vllm_maxlen"],
            "gpu_memory_utilization": values["vllm_gpu_util"],
            "enforce_eager": values["vllm_enforce_eager"],
        }
    elif engine == "sglang":
        inference |= {
            "max_seq_len": values["sglang_maxlen"],
            "gpu_memory_utilization": values["sglang_mem_fraction"],
        }
        if values["sglang_tp_size"] != -1:
            inference["tensor_parallel_size"] = values["sglang_tp_size"]
    else:
        inference |= {"batch_size": 1, "prompt_len": 1024, "new_tokens": values["max_new_tokens"]}
        reading.assumed.append("a prompt of 1024 tokens, and as many new ones as allowed")
    if values["infer_dtype"] != "auto":
        inference["dtype"] = {"float16": "fp16", "bfloat16": "bf16"}.get(
            values["infer_dtype"], "fp32"
        )
    if values["adapter_name_or_path"]:
        why = "the adapter is merged into the weights, or kept beside them; it is not counted"
        key = f"adapter_name_or_path={values['adapter_name_or_path']}"
        reading.limits.append(Limit(key=key, why=why, could="more"))
    reading.run["inference"] = inference
