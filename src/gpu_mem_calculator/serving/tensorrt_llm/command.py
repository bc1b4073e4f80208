"""The command that starts the server, and the options that have no flag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...run.run import Run
from ...run.served import checkpoint_word
from .defaults import beams, max_batch_size, max_num_tokens, max_seq_len
from .versions import ENGINES, TORCH, backend

ENGINE_DIR, FILE = "ENGINE_DIR", "options.yaml"
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
DECODING = {"ngram": "NGram", "draft_target": "Draft_Target", "eagle3": "Eagle"}  # llm_args.py


def command(run: Run) -> tuple[str, ...]:
    """The words of `trtllm-serve`; sizes at their defaults are left out."""
    engines = backend(run) == ENGINES
    words = [
        *("trtllm-serve", ENGINE_DIR if engines else checkpoint_word(run)),
        *("--backend", backend(run)),
    ]
    sizes = (
        ("--tp_size", run.mesh.tp, 1),
        ("--pp_size", run.mesh.pp, 1),
        ("--ep_size", run.mesh.ep, 1),
        ("--max_beam_width", beams(run), 1),
        ("--max_batch_size", max_batch_size(run), None),
        ("--max_num_tokens", max_num_tokens(run), None),
        ("--max_seq_len", max_seq_len(run), None),
        ("--kv_cache_free_gpu_memory_fraction", run.options["gpu_memory_utilization"], None),
    )
    for word, value, default in sizes:
        if value != default:
            words += [word, f"{value:g}" if isinstance(value, float) else str(value)]
    return (*words, *(("--extra_llm_api_options", FILE) if extra_options(run) else ()))


def extra_options(run: Run) -> list[str]:
    """Lines of the YAML file with the options that have no flag."""
    options, cache = run.options, {}
    lines = []
    if options["dtype"] != "bf16" and backend(run) == TORCH:
        lines.append(f"dtype: {DTYPES[options['dtype']]}")
    if options["kv_cache_dtype"] in ("fp8", "nvfp4") and backend(run) == TORCH:
        cache["dtype"] = options["kv_cache_dtype"]
    for key, name in (
        ("block_size", "tokens_per_block"),
        ("max_total_tokens", "max_tokens"),
        ("max_attention_window", "max_attention_window"),
        ("cross_kv_cache_fraction", "cross_kv_cache_fraction"),
        ("host_cache_size", "host_cache_size"),
    ):
        if options.get(key):
            cache[name] = options[key]
    if cache:
        lines.append(f"kv_cache_config: {_inline_yaml(cache)}")
    if options.get("enforce_eager"):
        lines.append("cuda_graph_config: null")
    elif options.get("cuda_graph_max_bs"):
        lines.append(f"cuda_graph_config: {{max_batch_size: {options['cuda_graph_max_bs']}}}")
    if options.get("max_lora_rank"):
        rank, count = options["max_lora_rank"], options.get("max_loras") or 1
        lines.append(f"lora_config: {{max_lora_rank: {rank}, max_loras: {count}}}")
    if options.get("speculative_method"):
        lines.append(f"speculative_config: {_inline_yaml(_speculation(run))}")
    return lines


def _speculation(run: Run) -> dict[str, object]:
    model = run.options["speculative_model"]
    config = {
        "decoding_type": DECODING[str(run.options["speculative_method"])],
        "max_draft_len": run.options["num_speculative_tokens"],
        "speculative_model_dir": model if isinstance(model, str | None) else "DRAFT",
    }
    return {key: value for key, value in config.items() if value}


def _inline_yaml(mapping: Mapping[str, object]) -> str:
    return f"{{{', '.join(f'{key}: {value}' for key, value in mapping.items())}}}"


def settings_note(run: Run) -> Iterator[str]:
    """Notes with the content of the options file, and with the command that builds an engine."""
    lines = extra_options(run)
    if lines:
        yield f"{FILE}: {'; '.join(lines)}"
    if backend(run) == ENGINES:
        cache_words = {"int8": " --int8_kv_cache", "fp8": " and an fp8 cache"}
        cache_word = cache_words.get(str(run.options["kv_cache_dtype"]), "")
        dtype = DTYPES[run.options["dtype"]] + cache_word
        yield (
            f"a checkpoint of --dtype {dtype} is built with: trtllm-build --checkpoint_dir "
            f"CHECKPOINT --output_dir ENGINE_DIR --max_batch_size {max_batch_size(run)} "
            f"--max_num_tokens {max_num_tokens(run)} --max_seq_len {max_seq_len(run)}"
        )
