"""The command that starts TGI, and notes for the user."""

from __future__ import annotations

from collections.abc import Iterator

from ...run.releases import newer_version_notes
from ...run.run import Run
from ...run.served import checkpoint_word
from .activations import is_modelled
from .defaults import prefill_tokens
from .versions import NEWEST

ONLINE = ("fp8", "int8", "nf4")  # TGI quantizes to these while it loads
QUANTIZE = {"int8": "eetq", "nf4": "bitsandbytes-nf4", "gptq_int4": "gptq", "gptq_int8": "gptq"}
DTYPES = {"bf16_pure": "bfloat16", "fp16_pure": "float16"}


def command(run: Run) -> tuple[str, ...]:
    """The words of `text-generation-launcher`; --dtype is left out with --quantize."""
    options = run.options
    model = checkpoint_word(run, ONLINE)
    words = ["text-generation-launcher", "--model-id", model, "--num-shard", str(run.mesh.tp)]
    quantization = str(options["quantization"])
    if quantization != "none":
        words += ["--quantize", QUANTIZE.get(quantization, quantization)]
    elif run.quantized is None:
        words += ["--dtype", DTYPES[run.precision]]
    if options["kv_cache_dtype"] == "fp8":
        words += ["--kv-cache-dtype", "fp8_e4m3fn"]
    graphs = options.get("cuda_graphs") or ([0] if options.get("enforce_eager") else None)
    heads = options.get("speculative_method") == "medusa"  # their number is in the model's config
    adapters = [f"ADAPTER{number + 1}" for number in range(int(options.get("max_loras") or 1))]
    rows: tuple[tuple[str, object], ...] = (
        ("--max-input-tokens", options.get("max_input_tokens")),
        ("--max-total-tokens", options.get("max_total_tokens") or options.get("max_seq_len")),
        ("--max-batch-prefill-tokens", options.get("max_num_batched_tokens")),
        ("--cuda-graphs", ",".join(str(size) for size in graphs) if graphs else None),
        ("--speculate", None if heads else options.get("num_speculative_tokens")),
        ("--lora-adapters", ",".join(adapters) if options.get("max_lora_rank") else None),
    )
    words += [str(one) for row in rows if row[1] is not None for one in row]
    if options["gpu_memory_utilization"] != 1.0:
        words += ["--cuda-memory-fraction", f"{options['gpu_memory_utilization']:g}"]
    if options.get("enable_prefill_logprobs"):
        words.append("--enable-prefill-logprobs")
    return (*words, "--max-concurrent-requests", str(options["max_num_seqs"]))


def notes(run: Run) -> Iterator[str]:
    """Sentences for the user about this estimate."""
    yield from newer_version_notes(run, "TGI", NEWEST)
    if run.options.get("max_num_batched_tokens") is None:
        yield (
            f"max_batch_prefill_tokens is {prefill_tokens(run):,}, the launcher's default; a "
            "smaller one leaves more memory for the KV cache"
        )
    if run.arch.tower and not is_modelled(run):
        yield "the image of the warm-up is not modelled; it leaves less memory for the KV cache"
    if any(run.arch.windows):
        yield "TGI caches the whole sequence in sliding-window layers"
