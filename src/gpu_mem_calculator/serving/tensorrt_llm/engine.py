"""TensorRT-LLM: the cache is given a share of what the model leaves free.

`engine_generation` is its backend: `pytorch` (the default since 1.0) or `tensorrt` (engines that
`trtllm-build` makes). `gpu_memory_utilization` is kv_cache_config.free_gpu_memory_fraction,
`max_num_seqs` max_batch_size, `max_num_batched_tokens` max_num_tokens, `block_size`
tokens_per_block, `max_total_tokens` kv_cache_config.max_tokens, `enforce_eager` no CUDA graphs.
Files are those of TensorRT-LLM 1.2.1.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...cuda.process import process
from ...generation.kv_cache import keeps
from ...ledger.num import ceil_div
from ...ledger.source import code
from ...model.blocks import Recurrence, StateSpace
from ...run.engine import Engine
from ...run.run import Run
from ...run.served import POOL, ServerItem, ServerMemory
from ...weights import FormatError
from ...weights.rank_weights import run_scheme
from ...weights.shards import ServerShard
from . import cache, tensorrt_backend, torch_backend, weights
from .command import command, settings_note
from .versions import (
    ENGINES,
    NEWEST,
    OLDEST,
    TORCH,
    backend,
    beams,
    max_batch_size,
    max_num_tokens,
    max_seq_len,
    parsed,
)

POOL_CODE = code(
    "TensorRT-LLM 1.2.1 _torch/pyexecutor/_util.py _cal_max_memory, resource_manager.py "
    "calculate_max_num_blocks: a share of what is free"
)
FREE_CODE = code(
    "TensorRT-LLM 1.2.1 cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp calculateFreeMemBytes: a "
    "share of what is free behind the engine"
)
STATES = ("nemotron_h", "qwen3_next")  # hybrids that MambaHybridCacheManager knows
FORMATS = {  # quantization/mode.py QuantAlgo, and what each backend has linear layers for
    TORCH: ("none", "fp8", "int8", "awq", "mxfp4", "nvfp4"),
    ENGINES: ("none", "fp8", "int8", "int4", "awq", "gptq_int4", "nvfp4"),
}
SPECULATION = ("ngram", "draft_target", "eagle3")


def problems(run: Run) -> Iterator[str]:
    """What TensorRT-LLM refuses, and what is not modelled."""
    options, torch = run.options, backend(run) == TORCH
    asked = parsed(str(options["engine_version"]))
    if asked is None or asked < OLDEST:
        yield (
            f"inference.engine_version={options['engine_version']!r} is not a version of "
            f"TensorRT-LLM that is modelled; use {'.'.join(map(str, OLDEST))} or newer"
        )
    if backend(run) not in (TORCH, ENGINES):
        yield (f"inference.engine_generation={options['engine_generation']!r} is not a backend of "
               "TensorRT-LLM; use 'pytorch' or 'tensorrt'")  # fmt: skip
    if max_num_tokens(run) < max_batch_size(run) and torch:
        yield (f"inference.max_num_seqs={max_batch_size(run)} must not be more than "
               f"max_num_batched_tokens={max_num_tokens(run)}; raise the latter")  # fmt: skip
    stored = cache.cache_dtype(run)
    plain = ("fp32",) if run.precision == "fp32" else ("bf16", "fp16")
    if stored not in (*plain, "fp8", "nvfp4" if torch else "int8"):
        yield (
            f"inference.kv_cache_dtype={stored!r} is not stored by TensorRT-LLM's "
            f"{backend(run)} backend; use 'auto' or 'fp8'"
        )
    if options["max_loras"] and not options["max_lora_rank"]:
        yield "inference.max_loras needs inference.max_lora_rank; set it, or leave max_loras out"
    if options["enforce_eager"] and options["cuda_graph_max_bs"]:
        yield "inference.cuda_graph_max_bs acts on CUDA graphs; leave it or enforce_eager out"
    yield from _model_problems(run, torch=torch)
    yield from _speculation_problems(run, torch=torch)
    yield from _mesh_problems(run)


def _model_problems(run: Run, *, torch: bool) -> Iterator[str]:
    mixers = [mixer for layer, _, _ in run.arch.runs for mixer in layer.mixers]
    if not keeps(run.arch):
        yield (f"model: {run.arch.family} keeps no cache, and TensorRT-LLM is modelled with one; "
               "use 'vllm'")  # fmt: skip
    stateful = any(isinstance(mixer, StateSpace | Recurrence) for mixer in mixers)
    if stateful and not (torch and run.arch.family in STATES):
        yield f"model: TensorRT-LLM's {backend(run)} backend does not serve {run.arch.family}"
    crossed = any(getattr(mixer, "cross", False) for mixer in mixers)
    if torch and crossed:
        yield ("model: encoder-decoder models need engines; set inference.engine_generation="
               "'tensorrt'")  # fmt: skip
    if run.options["cross_kv_cache_fraction"] and not crossed:
        yield (f"inference.cross_kv_cache_fraction is for encoder-decoder models, not for "
               f"{run.arch.family}; leave it out")  # fmt: skip
    named, known = str(run.options["quantization"]), FORMATS[TORCH if torch else ENGINES]
    if named not in known:
        yield (f"inference.quantization={named!r} is not served by TensorRT-LLM's {backend(run)} "
               f"backend; use one of {', '.join(known)}")  # fmt: skip
        return
    try:
        run_scheme(run)
    except FormatError as error:
        yield str(error)


def _speculation_problems(run: Run, *, torch: bool) -> Iterator[str]:
    method, ahead = run.options["speculative_method"], run.options["num_speculative_tokens"]
    if method is None:
        if ahead or run.draft is not None:
            yield ("inference.num_speculative_tokens and speculative_model need inference."
                   "speculative_method; set it to 'ngram', or leave them out")  # fmt: skip
        return
    if method not in SPECULATION or not torch:
        yield (
            f"inference.speculative_method={method!r} is not modelled for TensorRT-LLM's "
            f"{backend(run)} backend; use one of {', '.join(SPECULATION)} with 'pytorch'"
        )
    if method in SPECULATION[1:] and run.draft is None:
        yield f"inference.speculative_method={method!r} needs inference.speculative_model"
    if method == SPECULATION[0] and run.draft is not None:
        yield "inference.speculative_model is not for 'ngram', which has no model; leave it out"
    if not ahead:
        yield (f"inference.speculative_method={method!r} needs "
               "inference.num_speculative_tokens, its max_draft_len; set it to 3")  # fmt: skip


def _mesh_problems(run: Run) -> Iterator[str]:
    tp, pp, ep = int(run.mesh.tp), int(run.mesh.pp), int(run.mesh.ep)
    if tp % ep:
        yield f"inference.expert_parallel_size={ep} must divide tensor_parallel_size={tp}"
    if pp > 1 and run.draft is not None:
        yield "inference.speculative_model is not modelled with pipeline_parallel_size above 1"


def stage_layers(run: Run) -> list[int]:
    """Layers of each stage: as evenly as can be, the first stages one more."""
    less, more = divmod(len(run.arch.layers), int(run.mesh.pp))
    return [less + (stage < more) for stage in range(int(run.mesh.pp))]


def shard(run: Run) -> ServerShard:
    """The rank's part."""
    counts, stage = stage_layers(run), int(run.stage)
    first = sum(counts[:stage])
    tp, ep = int(run.mesh.tp), int(run.mesh.ep)
    return ServerShard(
        places=range(first, first + counts[stage]), embedding=stage == 0,
        head=stage == len(counts) - 1, tp=tp, attention_tp=tp, ep=ep, expert_tp=tp // ep,
        vocab_multiple=tp,
    )  # fmt: skip


def held_items(run: Run, own: ServerShard) -> tuple[ServerItem, ...]:
    """Everything but the cache."""
    found = [
        *weights.weights(run, own),
        *weights.adapters(run, own),
        *process(run, as_measured=True),
    ]
    if backend(run) == ENGINES:
        return (*found, *tensorrt_backend.context(run, own), *tensorrt_backend.runtime(run, own))
    return (
        *found, *torch_backend.buffers(run, own), *torch_backend.activation(run, own),
        *torch_backend.graphs(run, own), *torch_backend.outside(run),
        *torch_backend.states(run, own),
    )  # fmt: skip


def serve(run: Run) -> ServerMemory:
    """One rank, started."""
    own = shard(run)
    found = held_items(run, own)
    used = sum(item.bytes for item in found)
    share = float(run.options["gpu_memory_utilization"])
    free = run.free_bytes - used
    pool = cache.pool(run, own, int(max(0, free) * share))
    source = POOL_CODE if backend(run) == TORCH else FREE_CODE
    said = f"{share:g} x {max(0, free):,} bytes free, in blocks of {pool.block}"
    caches = [
        ServerItem(
            figure=POOL, name="keys and values", bytes=pool.bytes, source=source, formula=said
        )
    ]
    if pool.cross_bytes:
        caches.append(ServerItem(figure=POOL, name="keys and values of the encoder",
                           bytes=pool.cross_bytes, source=FREE_CODE))  # fmt: skip
    whole = sum(item.bytes for item in (*found, *caches) if item.figure == POOL)
    longest = max_seq_len(run)
    one = cache.sequence_needs(run, own, longest)
    return ServerMemory(
        items=(*found, *caches), tokens=pool.tokens, token_bytes=pool.token_bytes,
        max_seq_len=longest, most_sequences=max_batch_size(run),
        sequence_bytes=lambda context: pool.sequence_bytes(context, whole),
        needs_bytes=used + int(ceil_div(one, share)),
        problem=_problem(run, free, pool), command=command(run), notes=tuple(_notes(run, pool)),
    )  # fmt: skip


def _problem(run: Run, free: int, pool: cache.WindowPools) -> str:
    """Why it would not start; blocks for a part of max_seq_len are enough for that."""
    if free <= 0:
        return (f"weights, buffers and the trial run need {-free:,} bytes more than are free; use "
                "more GPUs, a smaller max_num_batched_tokens or a quantized model")  # fmt: skip
    if not pool.blocks or min(pool.blocks) < beams(run):
        return "nothing is left for the cache; use more GPUs or a smaller max_num_batched_tokens"
    return ""


def _notes(run: Run, pool: cache.WindowPools) -> Iterator[str]:
    asked = parsed(str(run.options["engine_version"]))
    if asked is not None and asked > NEWEST:
        yield (f"TensorRT-LLM {run.options['engine_version']} is modelled as "
               f"{'.'.join(map(str, NEWEST))}, the newest that is")  # fmt: skip
    room = pool.tokens // beams(run)
    if 0 < room < min(max_seq_len(run), pool.windows[-1].tokens if pool.windows else 0):
        yield f"the cache holds {room:,} tokens: TensorRT-LLM cuts max_seq_len to that"
    if any(run.arch.windows) and not run.options.get("max_attention_window"):
        yield ("every layer keeps the whole sequence unless kv_cache_config.max_attention_window "
               "gives the model's windows")  # fmt: skip
    yield from settings_note(run)


ENGINE = Engine(
    name="tensorrt_llm",
    title="TensorRT-LLM",
    options={
        "engine_version": "1.2.1", "engine_generation": None, "batch_size": None,
        "prompt_len": None, "new_tokens": None, "max_seq_len": None, "dtype": "bf16",
        "quantization": "none", "kv_cache_dtype": "auto", "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "expert_parallel_size": 1, "gpu_memory_utilization": 0.9, "max_num_batched_tokens": None,
        "max_num_seqs": None, "max_total_tokens": None, "enforce_eager": False, "block_size": None,
        "max_beam_width": 1, "max_attention_window": None, "cross_kv_cache_fraction": None,
        "cuda_graph_max_bs": None, "max_loras": None, "max_lora_rank": None,
        "speculative_method": None, "speculative_model": None, "num_speculative_tokens": None,
    },
    axes=frozenset({"tp", "pp", "ep"}),
    problems=problems,
    ledger=lambda run: serve(run).ledger,
    serve=serve,
    stage_layers=stage_layers,
    transformers=False,
)  # fmt: skip
