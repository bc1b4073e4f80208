"""Text Generation Inference: it runs a warm-up prefill, and the KV cache takes the free memory.

Names in a run file and in TGI: `gpu_memory_utilization` is cuda_memory_fraction,
`max_num_batched_tokens` max_batch_prefill_tokens, `max_num_seqs` max_concurrent_requests,
`tensor_parallel_size` num_shard. `max_total_tokens` is, as in TGI, the most tokens of one request,
the same as `max_seq_len`. `cuda_graphs: [0]` or `enforce_eager` turns CUDA graphs off. int8 is
eetq. Files are those of text-generation-inference 3.3.7.
"""

from __future__ import annotations

from ...ledger.formula import SIMULATED
from ...ledger.frameworks import TGI
from ...ledger.source import code
from ...ledger.units import GIB
from ...run.cuda.libraries import process_items
from ...run.engine import Engine
from ...run.run import Run
from ...run.served import ACTIVATION, POOL, ServerItem, ServerMemory, left_open, server_options
from . import defaults
from .activations import least_bytes, warm_tokens, warm_up_bytes
from .cache import sequence_tokens, token_bytes
from .checks import FORMATS, SPECULATION, problems
from .command import command, notes
from .defaults import block_size, prefill_tokens
from .graphs import graph_items
from .row import ROW
from .shards import rank_shard
from .versions import version
from .weights import rank_items

WARM_CODE = code(
    "text-generation-inference 3.3.7 server/models/flash_causal_lm.py warmup: free memory is read "
    "while torch still has what the prefill took"
)
POOL_CODE = code(
    "text-generation-inference 3.3.7 flash_causal_lm.py warmup and utils/import_utils.py "
    "get_cuda_free_memory: blocks for what is free, and those of the warm-up"
)


def serve(run: Run) -> ServerMemory:
    """The memory of one rank after start-up."""
    shard, block = rank_shard(run), block_size(run)
    token, share = token_bytes(run, shard), float(run.options["gpu_memory_utilization"])
    loaded = [*rank_items(run, shard), *process_items(run)]
    warm_bytes, used_bytes = warm_tokens(run) * token, sum(item.bytes for item in loaded)
    prefill = warm_up_bytes(run, shard, run.free_bytes - used_bytes - warm_bytes)
    formula = f"{SIMULATED}segments of torch's allocator after {prefill_tokens(run):,} tokens"
    loaded.append(ServerItem(ACTIVATION, "warm-up prefill", prefill, WARM_CODE, formula))
    left_bytes = run.free_bytes - used_bytes - warm_bytes - prefill
    wiggle, of_card = defaults.wiggle_room(run), version(run) >= defaults.SHARE_OF_CARD_FROM
    reserve = (1 - share * (wiggle if of_card else 1)) * run.card_bytes
    free = max(0, int((left_bytes - reserve) * (1 if of_card else wiggle)))
    blocks = (free // (token * block) if token else 0) + warm_bytes // max(1, token * block)
    pool = blocks * block * token if left_bytes >= 0 else 0
    longest = defaults.max_request_tokens(run) or min(blocks * block, run.arch.max_seq_len)
    least_pool = max(warm_bytes, sequence_tokens(longest, block) * token)
    formula = f"{blocks:,} tokens × {token:,} bytes"
    if block > 1:
        formula = f"{blocks:,} blocks × {block} tokens × {token:,} bytes"
    items = (*loaded, ServerItem(POOL, "keys and values", pool, POOL_CODE, formula))
    return ServerMemory(
        items=(*items, *graph_items(run, shard, longest)),
        tokens=pool // token if token else 0,
        token_bytes=token,
        max_seq_len=longest,
        most_sequences=int(run.options["max_num_seqs"]),
        sequence_bytes=lambda context: sequence_tokens(context, block) * token,
        needs_bytes=used_bytes + least_bytes(run, shard) + least_pool,
        problem=_problem(run, left_bytes),
        command=command(run),
        notes=tuple(notes(run)),
        chosen=left_open(run.options, max_num_batched_tokens=prefill_tokens(run)),
    )


def _problem(run: Run, left_bytes: int) -> str:
    """Why TGI would not start; empty if it starts. The warm-up has a cache for its requests."""
    if left_bytes < 0:
        return (
            f"weights + a warm-up prefill of {prefill_tokens(run):,} tokens need "
            f"{(run.free_bytes - left_bytes) / GIB:,.1f} GiB; {run.free_bytes / GIB:,.1f} GiB "
            "available. Use a smaller --max-num-batched-tokens or more GPUs."
        )
    return ""


OPTIONS = server_options(
    """
    max_num_batched_tokens max_total_tokens max_input_tokens cuda_graphs max_loras max_lora_rank
    speculative_method num_speculative_tokens
    """,
    engine_version=TGI.version,
    gpu_memory_utilization=1.0,
    max_num_seqs=128,
    enforce_eager=False,
    enable_prefill_logprobs=False,
)
ENGINE = Engine(
    name="tgi",
    title=ROW.title,
    options=OPTIONS,
    values={"quantization": FORMATS, "speculative_method": SPECULATION},
    axes=frozenset({"tp"}),
    problems=problems,
    ledger=lambda run: serve(run).ledger,
    serve=serve,
    transformers=False,
)
