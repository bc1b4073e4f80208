"""What the options of an SGLang server mean as the `inference` section of a run file, speculative
decoding among them: NEXTN is EAGLE with the model's own layers (sglang 0.5.23
srt/arg_groups/speculative_hook.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ...ledger.units import GIB
from ...runfile.text.errors import InputError, quoted
from ..reading.option_values import (
    Units,
    add_limit,
    option,
    real_number,
    truth,
    whole_number,
    whole_numbers,
)
from ..reading.reading import Reading, Section
from ..reading.server_options import (
    QUANTIZES,
    dtype_keys,
    name_device,
    plain_keys,
    quantization_key,
)
from ..translation.arguments import tables

TOKENS = tuple(f"speculative_{one}" for one in ("num_steps", "eagle_topk", "num_draft_tokens"))
MODELLED = ("eagle", "eagle3", "nextn", "standalone", "ngram")
TABLES = tables(__file__)
# srt/utils/common.py human_readable_int
UNITS: Units = {
    "k": 10**3,
    **{unit: 1000**power for power, unit in enumerate("MGT", 2)},
    **{f"{unit}i": 1024**power for power, unit in enumerate("KMGT", 1)},
}
COUNTS: dict[str, str] = TABLES["counts"]
SIZES = {"context_length": "max_seq_len", "max_total_tokens": "max_total_tokens"}
NUMBERS: dict[str, str] = TABLES["numbers"]
FLAGS = ("enable_dp_attention", "disable_radix_cache")
CACHES = {"bf16": "bf16", "bfloat16": "bf16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
# Formats that SGLang quantizes to while it loads, and AWQ; empty where they are not modelled.
# Others are the checkpoint's own.
ONLINE: dict[str, str] = TABLES["online"]
BITSANDBYTES = "bitsandbytes"
NOT_QUANTIZED = "unquant"
# The largest workspace of attention kernels: FlashInfer's with deterministic inference (0.5.23
# srt/layers/attention/flashinfer_backend.py); others have 512 MiB or less.
WORKSPACE = 2 * GIB
KERNELS: dict[str, str] = TABLES["kernels"]
NO_EXCHANGE = "none"  # of moe_a2a_backend; others have whole experts on each rank
LONGEST_PREFILL = 16384  # max_prefill_tokens
DISABLED = "disabled"
HICACHE_RATIO = 2.0  # srt/server_args.py _handle_hicache_ratio_default
STRETCHED = ("rope_scaling", "rope_parameters", "rope_theta", "max_position_embeddings")


def speculation(reading: Reading, given: Mapping[str, Any]) -> Section:
    """Keys of `inference`; an algorithm that is not modelled becomes a limit."""
    name = given.get("speculative_algorithm")
    if name is None:
        return {}
    method, draft = str(name).lower(), given.get("speculative_draft_model_path")
    if method not in MODELLED:
        add_limit(reading, "speculative_algorithm", name, "is a draft that is not modelled", "more")
        return {}
    if draft is not None and not isinstance(draft, str):
        written = option("speculative_draft_model_path")
        raise InputError(f"{written}={quoted(draft)} must be a model's name")
    if method == "nextn" and draft is not None:
        method = "eagle"
    tokens = _tokens(reading, given)
    section = {"speculative_model": draft, "num_speculative_tokens": tokens or None}
    known = {key: value for key, value in section.items() if value is not None}
    return {"speculative_method": method, **known}


def _tokens(reading: Reading, given: Mapping[str, Any]) -> int | None:
    """Tokens that the model verifies in one pass; with one branch they follow from the steps."""
    steps, branches, tokens = (
        whole_number(name, given[name]) if given.get(name) is not None else None for name in TOKENS
    )
    if branches is not None and branches > 1:
        why = "branches, whose caches are not modelled; one branch is counted"
        add_limit(reading, "speculative_eagle_topk", branches, why, "more")
    elif steps is not None and tokens not in (None, steps + 1):
        why = f"does not follow from {steps} steps; {tokens} tokens are counted"
        add_limit(reading, "speculative_num_draft_tokens", tokens, why, "either")
    return tokens if tokens is not None else steps + 1 if steps is not None else None


def inference_section(reading: Reading, given: Mapping[str, Any]) -> Section:
    """The section for options that are sorted; what is not modelled becomes a limit."""
    section: Section = {"engine": "sglang"}
    section |= plain_keys(given, COUNTS, whole_number)
    section |= plain_keys(given, SIZES, partial(whole_number, units=UNITS))
    section |= plain_keys(given, NUMBERS, real_number)
    for name in FLAGS:
        if given.get(name):
            section[name] = truth(name, given[name])
    for part in (_dtypes, _prefill, _graphs, _kernels, _adapters):
        section |= part(reading, given)
    section |= speculation(reading, given)
    section |= _experts(reading, given, section)
    if given.get("enable_hierarchical_cache"):
        ratio = given.get("hicache_ratio")
        ratio = HICACHE_RATIO if ratio is None else ratio
        if given.get("hicache_size"):
            section["hicache_size"] = whole_number("hicache_size", given["hicache_size"])
        else:
            section["hicache_ratio"] = real_number("hicache_ratio", ratio)
    section.setdefault("tensor_parallel_size", 1)
    return section


def _dtypes(reading: Reading, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Keys for the dtypes of weights and cache."""
    yield from dtype_keys(reading, given, CACHES)
    torchao, method = given.get("torchao_config"), str(given.get("quantization"))
    if torchao == "int4wo-128":
        yield "quantization", "int4"
    elif torchao:
        add_limit(reading, "torchao_config", torchao, QUANTIZES, "less")
    if method not in ONLINE and given.get("load_format") == BITSANDBYTES:
        method = BITSANDBYTES
    yield from quantization_key(reading, method, ONLINE)


def _prefill(reading: Reading, given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys for the tokens of one prefill pass.

    Without chunks a pass takes max_prefill_tokens, no prefill is captured, and a longer prompt is
    one pass (srt/managers/schedule_policy.py PrefillAdder).
    """
    most = given.get("max_prefill_tokens")
    most = LONGEST_PREFILL if most is None else whole_number("max_prefill_tokens", most, UNITS)
    chunk = given.get("chunked_prefill_size")
    if chunk == -1:
        yield "chunked_prefill_size", most
        yield "disable_prefill_cuda_graph", True
        why = f"runs a prompt beyond {most:,} tokens in one pass, which takes more memory"
        add_limit(reading, "chunked_prefill_size", -1, why, "more")
    elif chunk is not None:
        yield "chunked_prefill_size", whole_number("chunked_prefill_size", chunk)


def _graphs(reading: Reading, given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys for CUDA graphs (srt/server_args.py _parse_cuda_graph_config)."""
    parts = ("decode", "prefill")
    decode, prefill = (given.get(f"cuda_graph_backend_{part}") for part in parts)
    without_decode, without_prefill = (
        backend == DISABLED
        if backend
        else given.get("disable_cuda_graph") or given.get(f"disable_{part}_cuda_graph")
        for part, backend in zip(parts, (decode, prefill), strict=True)
    )
    if without_decode and without_prefill:
        yield "enforce_eager", True
    elif without_prefill:
        yield "disable_prefill_cuda_graph", True
    elif without_decode:
        why = "captures no graphs of decode, which is modelled together with prefill"
        add_limit(reading, "disable_decode_cuda_graph", True, why, "less")
    for name, value, usual in (
        ("cuda_graph_backend_decode", decode, "full"),
        ("cuda_graph_backend_prefill", prefill, "breakable"),
    ):
        if value not in (None, usual, DISABLED):
            why = "captures other graphs, which is not modelled"
            add_limit(reading, name, value, why, "either")
    if given.get("cuda_graph_bs_decode"):
        sizes = whole_numbers("cuda_graph_bs_decode", given["cuda_graph_bs_decode"])
        yield "cuda_graph_bs", sizes


def _kernels(reading: Reading, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The key for attention kernels."""
    name = given.get("attention_backend")
    if str(name) in KERNELS:
        yield "attention_backend", KERNELS[str(name)]
    elif name is not None:
        why = "chooses attention kernels whose pages and workspaces are not modelled"
        add_limit(reading, "attention_backend", name, why, "either", WORKSPACE)
    name_device(reading, given.get("device"))


def _adapters(reading: Reading, given: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Keys for LoRA adapters; their rank is in their files where it is not given."""
    rank = given.get("max_lora_rank")
    if not given.get("enable_lora") and not given.get("lora_paths"):
        return
    if rank is None:
        why = "loads adapters whose rank is in their files; set --max-lora-rank"
        add_limit(reading, "enable_lora", True, why, "more")
        return
    yield "max_lora_rank", whole_number("max_lora_rank", rank)
    if given.get("max_loras_per_batch") is not None:
        yield "max_loras", whole_number("max_loras_per_batch", given["max_loras_per_batch"])


def _experts(
    reading: Reading, given: Mapping[str, Any], section: Section
) -> Iterator[tuple[str, int]]:
    """The key for experts: an exchange between ranks means whole experts on each
    (srt/arg_groups/overrides.py _a2a_ep_size).
    """
    ranks = section.get("tensor_parallel_size", 1)
    exchange = given.get("moe_a2a_backend", NO_EXCHANGE)
    whole = given.get("enable_ep_moe") or given.get("enable_deepep_moe")
    if ranks > 1 and (exchange != NO_EXCHANGE or whole):
        yield "expert_parallel_size", ranks
    if exchange != NO_EXCHANGE or given.get("enable_deepep_moe"):
        why = "exchanges tokens through buffers that are not modelled (DeepEP's are about 2 GiB)"
        add_limit(reading, "moe_a2a_backend", exchange, why, "more")
