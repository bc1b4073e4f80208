"""Text Generation Inference: a warm-up prefill, and the cache takes the room it leaves.

`gpu_memory_utilization` is its cuda_memory_fraction, `max_num_batched_tokens`
max_batch_prefill_tokens, `max_num_seqs` max_concurrent_requests, `tensor_parallel_size` num_shard.
`max_total_tokens` is here, as in TGI, the most tokens of one request, the same as `max_seq_len`.
`cuda_graphs: [0]` or `enforce_eager` turns CUDA graphs off. int8 is eetq. Files are those of
text-generation-inference 3.3.7.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ...cuda.process import process
from ...generation.kv_cache import keeps
from ...ledger.num import ceil_div
from ...ledger.source import ARITHMETIC, code
from ...model.adapters import linears
from ...model.blocks import Attention, LatentAttention
from ...run.engine import Engine
from ...run.run import Run
from ...run.served import ACTIVATION, NON_TORCH, POOL, WEIGHTS, ServerItem, ServerMemory
from ...weights import FormatError, WeightFormat
from ...weights.rank_weights import BITS, run_scheme, weight_items
from ...weights.shards import ServerShard
from .activations import least_bytes, warm_tokens, warm_up_bytes
from .command import command, notes
from .graphs import ahead, graphs
from .versions import (
    OF_CARD,
    OLDEST,
    attention,
    block_size,
    longest,
    max_input_tokens,
    parsed,
    prefill_tokens,
    version,
    wiggle,
)
from .weights import left_over_bytes

WARM_CODE = code(
    "text-generation-inference 3.3.7 server/models/flash_causal_lm.py warmup: free memory is read "
    "while torch still has what the prefill took"
)
POOL_CODE = code(
    "text-generation-inference 3.3.7 flash_causal_lm.py warmup and utils/import_utils.py "
    "get_cuda_free_memory"
)
LOAD_CODE = code(
    "text-generation-inference 3.3.7 server/utils/weights.py get_multi_weights_col, played through "
    "torch's allocator"
)
FORMATS = ("none", "fp8", "int8", "awq", "gptq_int4", "gptq_int8", "nf4")
SPECULATION = ("ngram", "medusa")


def problems(run: Run) -> Iterator[str]:
    """What TGI refuses, and what is not modelled."""
    options, asked = run.options, parsed(str(run.options["engine_version"]))
    if asked is None or asked < OLDEST:
        yield (
            f"inference.engine_version={options['engine_version']!r} is not a version of TGI that "
            f"is modelled; use {'.'.join(map(str, OLDEST))} or newer"
        )
    if options["kv_cache_dtype"] not in ("auto", "fp8", run.precision.partition("_")[0]):
        yield (f"inference.kv_cache_dtype={options['kv_cache_dtype']!r} is not stored by TGI; use "
               "'auto' or 'fp8'")  # fmt: skip
    if options["kv_cache_dtype"] == "fp8" and attention(run) == "flashdecoding":
        yield ("inference.kv_cache_dtype='fp8' needs flashinfer, which has no kernel for this "
               "model's heads; use 'auto'")  # fmt: skip
    if run.precision == "fp32":
        yield "inference.dtype='fp32' is not one of TGI's; use 'bf16' or 'fp16'"
    if options["max_loras"] and not options["max_lora_rank"]:
        yield "inference.max_loras needs inference.max_lora_rank; set it, or leave max_loras out"
    if options["enforce_eager"] and any(options["cuda_graphs"] or ()):
        yield "inference.cuda_graphs names sizes to capture; leave it or enforce_eager out"
    both = options.get("max_seq_len"), options.get("max_total_tokens")
    if None not in both and both[0] != both[1]:
        yield (f"inference.max_total_tokens={both[1]} is the most tokens of a request in TGI, as "
               f"max_seq_len={both[0]} is; give one of them")  # fmt: skip
    prompt, most = max_input_tokens(run), longest(run)
    if most == 1:
        yield "inference.max_total_tokens=1 leaves no room for an answer; use 2 or more"
    if prompt is not None and most is not None and prompt >= most:
        yield f"inference.max_input_tokens={prompt} must be less than max_total_tokens={most}"
    yield from _model_problems(run)


def _model_problems(run: Run) -> Iterator[str]:
    mixers = [mixer for layer, _, _ in run.arch.runs for mixer in layer.mixers]
    if not all(isinstance(mixer, Attention | LatentAttention) for mixer in mixers) or any(
        getattr(mixer, "cross", False) for mixer in mixers
    ):
        yield f"model: TGI does not serve {run.arch.family} with a paged cache; use 'vllm'"
    elif not keeps(run.arch):
        yield f"model: {run.arch.family} generates nothing, and TGI does that alone; use 'vllm'"
    tp = int(run.mesh.tp)
    kv_heads = {m.kv_heads for m in mixers if isinstance(m, Attention) and m.kv_heads > 1}
    for count in sorted(kv_heads):  # what no engine can cut is said elsewhere
        if count % tp and tp % count == 0:
            yield (f"inference.tensor_parallel_size={tp} is more than {count} key-value heads, "
                   f"which TGI does not repeat; use {count}")  # fmt: skip
    named = str(run.options["quantization"])
    if named not in FORMATS:
        yield (f"inference.quantization={named!r} is not served by TGI; use one of "
               f"{', '.join(FORMATS)}")  # fmt: skip
    else:
        try:
            run_scheme(run)
        except FormatError as error:
            yield str(error)
    method, ahead = run.options["speculative_method"], run.options["num_speculative_tokens"]
    if method is not None and method not in SPECULATION:
        yield (f"inference.speculative_method={method!r} is not one of TGI's; use "
               f"{' or '.join(SPECULATION)}")  # fmt: skip
    elif (method is None) != (ahead is None) and method != "medusa":
        yield ("inference.speculative_method and inference.num_speculative_tokens go together; "
               "give both or none")  # fmt: skip


def shard(run: Run) -> ServerShard:
    """The rank's part; a head whose vocabulary cannot be cut evenly is whole on every rank."""
    tp = int(run.mesh.tp)
    return ServerShard(
        places=range(len(run.arch.layers)), tp=tp, attention_tp=tp, expert_tp=tp,
        head_tp=1 if run.arch.vocab % tp else tp,
    )  # fmt: skip


def _format(run: Run) -> WeightFormat:
    """fp8 that TGI makes itself leaves attention and the first and last layer in 16 bits.

    flash_llama_modeling.py no_fp8.
    """
    how = run_scheme(run)
    if how.name != "fp8" or run.quantized is not None:
        return how
    prefix, last = run.arch.layer_prefix, len(run.arch.layers) - 1
    return replace(how, skip=(*how.skip, "self_attn", f"{prefix}.0", f"{prefix}.{last}"))


def _weights(run: Run, own: ServerShard) -> Iterator[ServerItem]:
    """The model, a row of zeros in the embedding, and a head of its own where it is tied."""
    hidden, size = run.arch.hidden, BITS[run.precision] // 8
    extra = [("embedding", hidden * size)]
    if run.arch.head is None:
        rows = int(ceil_div(run.arch.vocab, own.head_tp or own.tp))
        extra.append(("output head", rows * hidden * size))
    if run.options.get("speculative_method") == "medusa":
        extra.append(("Medusa heads", ahead(run) * hidden * hidden * size // own.tp))
    how = _format(run)
    for name, number in weight_items(run, own, how, extra=extra):
        yield ServerItem(figure=WEIGHTS, name=name, bytes=number, source=ARITHMETIC)
    yield ServerItem(figure=NON_TORCH, name="left over from loading", source=LOAD_CODE,
               bytes=left_over_bytes(run, own, how))  # fmt: skip
    rank = run.options.get("max_lora_rank")
    if rank is not None:
        count = int(run.options.get("max_loras") or 1)
        wide = sum(int(ceil_div(one.ins[1] + one.outs[1], own.tp))
                   for layer in own.layers(run.arch) for one in linears(layer))  # fmt: skip
        yield ServerItem(figure=WEIGHTS, name="adapters", bytes=count * int(rank) * wide * size,
                   source=code("text-generation-inference 3.3.7 server/adapters/lora.py"),
                   formula=f"{count} of rank {rank}")  # fmt: skip


def token_bytes(run: Run, own: ServerShard) -> int:
    """One token in every layer, whatever its window; latents are kept as keys and values."""
    bits = 8 if run.options["kv_cache_dtype"] == "fp8" else BITS[run.precision]
    total = 0
    for layer in own.layers(run.arch):
        mixer = layer.mixer
        if isinstance(mixer, Attention):
            total += own.kv_heads(mixer.kv_heads) * 2 * mixer.head_dim
        elif isinstance(mixer, LatentAttention):
            wide = max(mixer.nope_dim + mixer.rope_dim, mixer.value_dim)
            total += mixer.heads // own.attention_tp * 2 * wide
    return total * bits // 8


def serve(run: Run) -> ServerMemory:
    """One rank, started."""
    own, block = shard(run), block_size(run)
    token, share = token_bytes(run, own), float(run.options["gpu_memory_utilization"])
    tokens = prefill_tokens(run)
    held = [*_weights(run, own), *process(run)]
    warm, used = warm_tokens(run) * token, sum(item.bytes for item in held)
    prefill = warm_up_bytes(run, own, run.free_bytes - used - warm)
    held.append(ServerItem(figure=ACTIVATION, name="warm-up prefill", bytes=prefill,
                     source=WARM_CODE, formula=f"{tokens:,} tokens"))  # fmt: skip
    left = run.free_bytes - used - warm - prefill
    room, of_card = wiggle(run), version(run) >= OF_CARD
    kept_back = (1 - share * (room if of_card else 1)) * run.card_bytes
    free = max(0, int((left - kept_back) * (1 if of_card else room)))
    blocks = (free // (token * block) if token else 0) + warm // max(1, token * block)
    pool = blocks * block * token if left >= 0 else 0
    most = longest(run) or min(blocks * block, run.arch.max_seq_len)
    said = f"{free:,} bytes in blocks of {block}, and {warm:,} of the warm-up"
    items = (
        *held,
        ServerItem(figure=POOL, name="keys and values", bytes=pool, source=POOL_CODE, formula=said),
    )
    return ServerMemory(
        items=(*items, *graphs(run, own, most)), tokens=pool // token if token else 0,
        token_bytes=token, max_seq_len=most, most_sequences=int(run.options["max_num_seqs"]),
        sequence_bytes=lambda context: _slots(context, block) * token,
        needs_bytes=used + least_bytes(run, own) + max(warm, _slots(most, block) * token),
        problem=_problem(run, left), command=command(run),
        notes=tuple(notes(run)),
    )  # fmt: skip


def _slots(context: int, block: int) -> int:
    """Places of a sequence, in whole blocks; its last token needs none (flash_causal_lm.py)."""
    return int(ceil_div(max(1, context - 1), block)) * block


def _problem(run: Run, left: int) -> str:
    """Why it would not start: its own cache for the longest request is part of the warm-up."""
    if left < 0:
        return (f"not enough memory to handle {prefill_tokens(run):,} prefill tokens; decrease "
                "max_num_batched_tokens or use more GPUs")  # fmt: skip
    return ""


ENGINE = Engine(
    name="tgi",
    title="TGI",
    options={
        "engine_version": "3.3.7", "batch_size": None, "prompt_len": None, "new_tokens": None,
        "max_seq_len": None, "dtype": "bf16", "quantization": "none", "kv_cache_dtype": "auto",
        "tensor_parallel_size": 1, "gpu_memory_utilization": 1.0, "max_num_batched_tokens": None,
        "max_num_seqs": 128, "max_total_tokens": None, "max_input_tokens": None,
        "enforce_eager": False, "cuda_graphs": None, "enable_prefill_logprobs": False,
        "max_loras": None, "max_lora_rank": None, "speculative_method": None,
        "num_speculative_tokens": None,
    },
    axes=frozenset({"tp"}),
    problems=problems,
    ledger=lambda run: serve(run).ledger,
    serve=serve,
    transformers=False,
)  # fmt: skip
