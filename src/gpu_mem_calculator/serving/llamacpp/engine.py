"""llama.cpp: layers on GPUs and on the host, a cache of fixed size, buffers laid out in advance.

`max_seq_len` is -c, the context of the whole server; `max_num_seqs` or `batch_size` -np, its slots.
Each GPU has some layers, as pipeline stages have. `quantization` is a GGUF file type; `none` means
16-bit weights. A GGUF file that is given has its own types.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

from msgspec.structs import replace

from ...cuda.libraries import CONTEXT_SOURCE, HANDLE_SOURCE, context_bytes, handle_bytes
from ...ledger.ledger import CPU
from ...ledger.remember import remembered
from ...ledger.source import code
from ...ledger.units import GIB
from ...run.engine import Engine
from ...run.run import Run
from ...run.served import ACTIVATION, NON_TORCH, POOL, WEIGHTS, NamedBytes, ServerItem, ServerMemory
from .attention import CACHE_KINDS
from .cache import CacheCells, layer_bytes, token_bytes
from .checks import CHECKED, cache_problems, model_problems
from .layout import (
    DeviceBytes,
    ServerLayout,
    alike,
    fewest_on_host,
    fits,
    has_flash,
    laid_out,
    longest,
    most_layers,
    planned,
)
from .placement import ALL
from .versions import FLASH_AUTO, NEWEST, NO_ROWS, OLDEST, build_number

WEIGHTS_CODE = code("llama.cpp b10586 src/llama-model.cpp load_tensors")
CACHE_CODE = code("llama.cpp b10586 src/llama-kv-cache.cpp, llama-kv-cache-iswa.cpp, "
                  "llama-memory-recurrent.cpp")  # fmt: skip
COMPUTE_CODE = code("llama.cpp b10586 src/llama-context.cpp sched_reserve, ggml/src/ggml-alloc.c, "
                    "ggml-backend.cpp ggml_backend_sched_split_graph")  # fmt: skip
MOST_GPUS = 16  # ggml/include/ggml-cuda.h GGML_CUDA_MAX_DEVICES
POOL_CODE = code("llama.cpp b10586 ggml/src/ggml-cuda/mmq.cu ggml_cuda_mul_mat_q")


def problems(run: Run) -> Iterator[str]:
    """What llama.cpp refuses, and what is not modelled."""
    options = run.options
    build = build_number(str(options["engine_version"]))
    if build is None or build < OLDEST:
        yield (f"inference.engine_version={options['engine_version']!r} is not a build of llama.cpp"
               f" that is modelled; use b{OLDEST} to b{NEWEST}")  # fmt: skip
        return
    found = [*model_problems(run, build), *_split_problems(run)]
    yield from found
    if options["split_mode"] == "row":
        why = "CUDA has it no more" if build >= NO_ROWS else "it is not modelled"
        yield f"inference.split_mode='row': {why}; use 'layer'"
    counts = {options[key] for key in ("n_parallel", "max_num_seqs", "batch_size")} - {None}
    if len(counts) > 1:
        yield "inference.n_parallel, max_num_seqs and batch_size are the same here; give one"
    if not found:
        yield from cache_problems(run)


def _split_problems(run: Run) -> Iterator[str]:
    """Shares of GPUs, and the one that has everything."""
    options = run.options
    gpus, shares = int(run.mesh.pp), options["tensor_split"]
    if gpus > MOST_GPUS:
        yield f"hardware.num_gpus={gpus} is more than llama.cpp runs on; use at most {MOST_GPUS}"
    if shares is not None and (len(shares) != gpus or min(shares) < 0 or not 0 < sum(shares) < inf):
        yield (f"inference.tensor_split={shares} must have a share of 0 or more for each of the "
               f"{gpus} GPUs")  # fmt: skip
    if options["main_gpu"] and options["split_mode"] != "none":
        yield "inference.main_gpu acts with split_mode 'none' alone; leave it out"
    elif int(options["main_gpu"] or 0) >= gpus:
        yield f"inference.main_gpu={options['main_gpu']} must be less than {gpus}"


def _weights(plan: ServerLayout, device: DeviceBytes, gpu: int) -> Iterator[ServerItem]:
    where = plan.where
    count = sum(one == gpu for one in where.layers)
    text = f"{count} of {len(where.layers)} layers"
    if where.output == gpu:
        text += ", the output"
    form = "as stored" if plan.file.stored else plan.file.ftype
    yield ServerItem(figure=WEIGHTS, name="model buffer", bytes=device.weights, source=WEIGHTS_CODE,
               formula=f"{text}; {form}")  # fmt: skip


def _items(plan: ServerLayout, all_of: tuple[DeviceBytes, ...], gpu: int) -> tuple[ServerItem, ...]:
    """One GPU's buffers, and its share of the host's."""
    own, host, found = all_of[gpu], all_of[-1], plan.cells
    share = max(1, plan.gpus)
    cached = f"{found.size} cells x {found.streams} of K {plan.keys}, V {plan.values}"
    if found.window:
        cached += f"; {found.window} in layers with a window"
    shape = f"{plan.how.tokens} tokens, {plan.how.outputs} with logits"
    shape += ", flash attention" if plan.flash else ", scores in fp32"
    items = (
        *_weights(plan, own, gpu),
        ServerItem(
            figure=ACTIVATION,
            name="compute buffer",
            bytes=own.compute,
            source=COMPUTE_CODE,
            formula=shape,
        ),
        ServerItem(
            figure=POOL, name="KV buffer", bytes=own.cache, source=CACHE_CODE, formula=cached
        ),
        ServerItem(figure=NON_TORCH, name="CUDA pool", bytes=own.pool, source=POOL_CODE),
        ServerItem(
            figure=WEIGHTS,
            name="model buffer of the host",
            bytes=host.weights // share,
            source=WEIGHTS_CODE,
            place=CPU,
            formula="embedding, layers behind -ngl, experts kept",
        ),
        ServerItem(
            figure=POOL,
            name="KV buffer of the host",
            bytes=host.cache // share,
            source=CACHE_CODE,
            place=CPU,
        ),
        ServerItem(
            figure=ACTIVATION,
            name="compute buffer of the host",
            bytes=host.compute // share,
            source=COMPUTE_CODE,
            place=CPU,
            formula="inputs of the graph, layers that run there",
        ),
    )
    return tuple(one for one in items if one.bytes or one.place != CPU)


def _sequence_bytes(plan: ServerLayout, layers: tuple[tuple[int, int], ...], context: int) -> int:
    """What one sequence takes of the cells of some layers: the first of each kind, its number."""
    one = CacheCells(
        context=context,
        each=context,
        slots=1,
        streams=1,
        window=min(context, plan.cells.window) if plan.cells.window else 0,
    )
    return sum(count * layer_bytes(plan.file.arch, place, one, plan.build, plan.keys, plan.values)
               for place, count in layers)  # fmt: skip


def serve(run: Run) -> ServerMemory:
    """One GPU of the server."""
    plan, gpu = planned(run), int(run.stage)
    all_of = laid_out(plan)
    own, found = all_of[gpu], plan.cells
    places = tuple(i for i, device in enumerate(plan.where.layers)
                   if device == gpu and plan.offload_kqv)  # fmt: skip
    used = own.total > 0
    cached = alike(plan, gpu if own.cache else plan.gpus)  # the host comes last
    needs = own.total + (own_bytes(run) if used else 0)
    return ServerMemory(
        items=_items(plan, all_of, gpu),
        tokens=found.context,
        token_bytes=token_bytes(run.arch, places, plan.build, plan.keys, plan.values),
        max_seq_len=found.each,
        most_sequences=found.slots,
        sequence_bytes=lambda context: _sequence_bytes(plan, cached, context),
        needs_bytes=needs,
        on_host=all_of[-1].cache,
        outside=tuple(_outside(run)) if used else (),
        problem=_problem(plan, needs, gpu, run) if needs > run.free_bytes else "",
        command=tuple(_command(run, plan)),
        notes=tuple(_notes(run, plan)),
    )


def _outside(run: Run) -> Iterator[NamedBytes]:
    yield "CUDA context", context_bytes(run), str(CONTEXT_SOURCE)
    yield "cuBLAS handle", handle_bytes(run), str(HANDLE_SOURCE)


def own_bytes(run: Run) -> int:
    """What a process has on a GPU beside its buffers."""
    return sum(size for _, size, _ in _outside(run))


def _problem(plan: ServerLayout, needs: int, gpu: int, run: Run) -> str:
    """What is short, and the nearest ways out."""
    ways, free = _ways(plan, run.free_bytes, own_bytes(run)), run.free_bytes
    said = f"; try inference.{' or '.join(ways)}" if ways else "; use a larger GPU, or more of them"
    return f"GPU {gpu} needs {needs / GIB:.2f} GiB of {free / GIB:.2f}{said}"


@remembered(32, always=True)
def _ways(plan: ServerLayout, free: int, own: int) -> list[str]:
    """Settings with which every GPU has room, the same for each that is short of it."""
    ways = []
    experts = fewest_on_host(plan, free, own)
    if experts:
        ways.append(f"n_cpu_moe={experts}")
    layers = most_layers(plan, free, own)
    if layers:
        ways.append(f"n_gpu_layers={layers}")
    context = longest(plan, free, own)
    if context:
        ways.append(f"max_seq_len={context}")
    if plan.keys == "F16" and plan.flash:
        half = replace(plan, keys="Q8_0", values="Q8_0")
        if fits(half, free, own):
            ways.append("kv_cache_dtype=int8")
    return ways


def _command(run: Run, plan: ServerLayout) -> Iterator[str]:
    options = run.options
    layers = "all" if plan.offloaded >= ALL else str(plan.offloaded)
    file = "MODEL" if plan.file.stored else "MODEL.gguf"
    yield from ("llama-server", "-m", file, "-c", str(plan.context), "-ngl", layers)
    if any(options[key] is not None for key in ("n_parallel", "max_num_seqs", "batch_size")):
        yield from ("-np", str(plan.slots))
    if options["kv_unified"]:
        yield "-kvu"
    yield from ("-b", str(plan.batch), "-ub", str(plan.ubatch))
    if (plan.keys, plan.values) != ("F16", "F16"):
        yield from ("-ctk", plan.keys.lower(), "-ctv", plan.values.lower())
    if options["flash_attn"] is not None:
        yield from ("-fa", "on" if plan.flash else "off") if plan.build >= FLASH_AUTO else ("-fa",)
    if options["split_mode"] == "none":
        yield from ("-sm", "none", "-mg", str(options["main_gpu"] or 0))
    if plan.shares:
        yield from ("-ts", ",".join(f"{share:g}" for share in plan.shares))
    if plan.on_host:
        yield from ("--n-cpu-moe", str(plan.on_host))
    flags = (("no_kv_offload", "-nkvo"), ("swa_full", "--swa-full"))
    yield from (word for key, word in flags if options[key])


def _notes(run: Run, plan: ServerLayout) -> Iterator[str]:
    asked = build_number(str(run.options["engine_version"])) or NEWEST
    if asked > NEWEST:
        yield f"llama.cpp b{asked} is newer than what is modelled; b{NEWEST} is taken"
    if run.options["n_gpu_layers"] is None and plan.build >= FLASH_AUTO:
        yield ("llama-server lowers -c and -ngl by itself where they are left out (--fit on); the "
               "figures are for all layers and this context")  # fmt: skip
    if plan.flash and not has_flash(plan):
        yield (f"CUDA has no flash kernel for K {plan.keys}, V {plan.values} and this head size: "
               "attention runs on the host")  # fmt: skip
    if run.arch.family not in CHECKED:
        yield (f"the compute buffer of {run.arch.family} models follows llama.cpp's general graph, "
               "which was not laid beside its own")  # fmt: skip
    if plan.keys not in CACHE_KINDS:
        yield f"a cache in {plan.keys} needs a build with GGML_CUDA_FA_ALL_QUANTS"


def stage_layers(run: Run) -> list[int]:
    """Layers on each GPU."""
    plan = planned(run)
    return [sum(one == gpu for one in plan.where.layers) for gpu in range(plan.gpus)]


OPTIONS: dict[str, Any] = {
    "engine_version": f"b{NEWEST}", "max_seq_len": None, "batch_size": None, "max_num_seqs": None,
    "n_parallel": None, "prompt_len": None, "new_tokens": None, "dtype": "fp16",
    "quantization": "q4_k_m", "kv_cache_dtype": "auto", "cache_type_k": None, "cache_type_v": None,
    "n_gpu_layers": None, "n_batch": 2048, "n_ubatch": 512, "flash_attn": None, "kv_unified": None,
    "split_mode": "layer", "tensor_split": None, "main_gpu": None, "n_cpu_moe": None,
    "no_kv_offload": False, "swa_full": False,
}  # fmt: skip

ENGINE = Engine(
    name="llamacpp",
    title="llama.cpp",
    options=OPTIONS,
    problems=problems,
    ledger=lambda run: serve(run).ledger,
    stage_layers=stage_layers,
    serve=serve,
)
