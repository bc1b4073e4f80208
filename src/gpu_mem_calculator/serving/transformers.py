"""transformers' own inference: `generate`, or one forward pass, on one GPU.

Legend: b sequences, s tokens of the prompt, n new tokens. Line numbers refer to transformers
5.17.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from ..ledger.ledger import PARAM, RUNTIME, Entry, Instant, Ledger
from ..ledger.num import Num, larger
from ..ledger.source import ARITHMETIC, code
from ..ledger.units import MIB
from ..memory.engine import Engine
from ..memory.generated import GenerationWriter
from ..memory.generating import Case, caches, head, layers, live, turns
from ..memory.generation import MASKS, beats, every_beat
from ..memory.huggingface.choosing import BEAMS, GREEDY, SAMPLE, Choice
from ..memory.huggingface.inference import NAMES
from ..memory.huggingface.setting import Setting
from ..memory.made_once import first_beats, made_once, reads_all, tables
from ..memory.passes import PROMPT, Manner, every_step, kinds, steps
from ..memory.quantizing import loading_script
from ..memory.run import Precision, Run
from ..memory.runtime import WORKSPACES, cublas_bytes
from ..memory.timeline import STARTUP
from ..memory.weights import base_bytes, base_tensors
from ..model.adapters import linears

BITS = {"fp32": 32, "bf16_pure": 16, "fp16_pure": 16}
NO_CACHE = ("mpt",)
TOP_K, TOP_P = 50, 1.0  # generation/configuration_utils.py _get_default_generation_params
# Options that generate has in one value only here; another one is refused, never ignored.
ONE_VALUE = {
    "engine_version": "5.17.0", "kv_cache_dtype": "auto", "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
}  # fmt: skip
BITSANDBYTES = code("bitsandbytes 0.50.2 nn/modules.py Params4bit, Int8Params")
CACHES = ("dynamic", "static")
QUANTIZATIONS = ("none", "nf4", "int8")


def problems(run: Run) -> Iterator[str]:
    """What generate cannot do with a model, and what is not modelled."""
    given, packed = run.options, run.options["quantization"]
    for key, only in ONE_VALUE.items():
        if given[key] != only:
            yield (f"inference.{key}={given[key]!r} is not modelled for transformers; "
                   f"set it to {only!r}")  # fmt: skip
    if run.arch.family in NO_CACHE:
        yield (f"model: {run.arch.family} keeps no cache in transformers 5.17.0, and its inference "
               "is not modelled; measure it")  # fmt: skip
    mixers = [layer.mixer for layer, _, _ in run.arch.runs]
    if run.attention == "sdpa" and not all(getattr(mixer, "sdpa", True) for mixer in mixers):
        yield (f"inference.attention='sdpa' does not exist for {run.arch.family} in transformers; "
               "use 'eager'")  # fmt: skip
    if run.attention == "flash_attention_2" and run.precision == "fp32":
        yield "inference.attention='flash_attention_2' has no fp32 kernel; use 'sdpa'"
    if packed not in QUANTIZATIONS:
        yield (f"inference.quantization={packed!r} is not modelled for transformers; "
               f"use {', '.join(map(repr, QUANTIZATIONS))}")  # fmt: skip
    elif packed != "none" and run.precision == "fp32":
        yield (f"inference.quantization={packed!r} is not modelled with dtype='fp32'; "
               "use 'bf16' or 'fp16'")  # fmt: skip
    yield from _choices(given)


def _choices(given: Any) -> Iterator[str]:
    """What does not go together, as generation/configuration_utils.py validate has it."""
    if given["cache_implementation"] not in CACHES:
        yield (f"inference.cache_implementation={given['cache_implementation']!r} is not modelled; "
               "use 'dynamic' or 'static'")  # fmt: skip
    if given["num_beams"] > 1 and given["do_sample"]:
        yield "inference.do_sample with num_beams > 1 is not modelled; leave one of them out"
    many, beams = given["num_return_sequences"], given["num_beams"]
    if many > beams > 1 or (many > 1 and beams == 1 and not given["do_sample"]):
        yield (f"inference.num_return_sequences={many} is more than one search finds: set "
               "num_beams to as many at least, or do_sample")  # fmt: skip
    for key in ("speculative_model", "num_speculative_tokens"):
        if given[key] is not None:
            yield f"inference.{key} is not modelled for transformers; leave it out"
    for key in ("top_k", "top_p"):
        if given[key] is not None and not given["do_sample"]:
            yield f"inference.{key} acts on sampling alone; set do_sample, or leave it out"


def ledger(run: Run) -> Ledger:
    """The model, its cache, and the layer or head at work."""
    case = prepared(run)
    load = Instant(name="startup", phase=STARTUP, title="start-up: model on the GPU")
    instants = (load, *(b.instant for b in case.table))
    what = (case.run, case.how, case.found, case.passes, case.table)
    shared = (*_weights(case), *made_once(*what, case.manner), *_workspaces(case), *tables(*what))
    if run.unrolled:
        return Ledger(instants, shared, plays=turns(case), writer=GenerationWriter)
    return Ledger(instants, (*shared, *caches(case), *layers(case), *head(case)))


def prepared(run: Run) -> Case:
    """How the model is run, pass by pass; beams and several answers are sequences of their own."""
    given = run.options
    beams, many = given["num_beams"], given["num_return_sequences"]
    copies = max(beams, many)
    run = replace(run, batch=run.batch * copies)
    how = setting(run, beams=beams > 1)
    found = kinds(run.arch, windows="windows" not in how.names)
    room = None
    if given["cache_implementation"] == "static":
        room = larger(run.seq + run.new_tokens - 1, given["max_seq_len"] or 0)
    manner = Manner(room=room, beams=beams, copies=copies, whole=reads_all(run, found))
    walk = every_step if run.unrolled else steps
    passes = [walk(kind, run.seq, run.new_tokens, manner) for kind in found]
    if run.unrolled:
        table = every_beat(found, run.new_tokens, beams=beams > 1)
    else:
        first = first_beats(run, how, found, [each[PROMPT] for each in passes])
        table = beats(found, run.new_tokens, first, beams=beams > 1)
    return Case(run=run, how=how, manner=manner, found=found, passes=passes, table=table,
                choice=_choice(run, how))  # fmt: skip


def _choice(run: Run, how: Setting) -> Choice:
    given = run.options
    way = BEAMS if given["num_beams"] > 1 else SAMPLE if given["do_sample"] else GREEDY
    top_k, top_p = given["top_k"], given["top_p"]
    return Choice(
        how=way, rows=run.batch, vocab=run.arch.vocab, bits=how.bits, new=run.new_tokens,
        length=run.seq + run.new_tokens, top_k=TOP_K if top_k is None else top_k,
        top_p=TOP_P if top_p is None else top_p,
    )  # fmt: skip


def setting(run: Run, *, beams: bool = False) -> Setting:
    """How the model runs: in the dtype of its weights, with nothing kept for backward."""
    bits = BITS[run.precision]
    names = NAMES.get(run.arch.family, frozenset())
    return Setting(
        batch=run.batch, seq=run.seq, hidden=run.arch.hidden, bits=bits, matmul_bits=bits,
        weight_bits=bits, half=run.precision.startswith("fp16"), attention=run.attention,
        cudnn=run.compute_capability in ("9.0", "10.0"), training=False,
        quantization=run.quantization, double_quant=run.double_quant,
        hopper=run.compute_capability == "9.0", names=names | {"grouped"} if beams else names,
    )  # fmt: skip


def _weights(case: Case) -> Iterator[Entry]:
    """Parameters and buffers; quantized ones are packed as they come.

    A tied head is made like any other, then tied: it is there while the model is loaded only.
    """
    run, arch, bits = case.run, case.run.arch, case.how.weight_bits
    always, precision = live(case, startup=True), Precision(bits, bits)
    packed = run.quantization is not None
    yield Entry(name="parameters", kind=PARAM, bytes=base_bytes(run, precision),
                tensors=None if packed else lambda: list(base_tensors(run, precision)),
                script=loading_script(run, precision) if packed and run.unrolled else None,
                live=always, source=BITSANDBYTES if packed else ARITHMETIC)  # fmt: skip
    buffers = [-(-b.num_bytes // 512) * 512 for b in arch.buffers]
    yield Entry(name="buffers", kind=PARAM, bytes=sum(buffers), tensors=lambda: buffers,
                live=always, source=ARITHMETIC)  # fmt: skip
    if arch.tied:
        yield Entry(
            name="head before it is tied to the embedding", kind=PARAM,
            bytes=run.scaled(arch.vocab * arch.hidden) * bits // 8, live={"startup": 1},
            source=code("transformers 5.17.0 modeling_utils.py: lm_head is made, then tied"),
        )  # fmt: skip


def _workspaces(case: Case) -> Iterator[Entry]:
    """cuBLAS has one workspace for the one thread that runs; cuBLASLt, which adds biases, another
    of 1 MiB. Both stay.
    """
    run = case.run
    source = code("torch 2.11 aten/src/ATen/cuda/CublasHandlePool.cpp getChosenWorkspaceSize")
    biased = run.quantization != "int8" and any(
        one.bias for layer, _, _ in run.arch.runs for one in linears(layer)
    )
    for name, size in (
        (WORKSPACES, cublas_bytes(run.compute_capability)), ("cuBLASLt workspace", biased * MIB),
    ):  # fmt: skip
        if size:
            here: dict[str, Num] = {b.name: 1 for b in case.table if b.work != MASKS}
            yield Entry(name=name, kind=RUNTIME, bytes=size, live=here, source=source)


ENGINE = Engine(
    name="transformers",
    title="transformers",
    options={
        "engine_version": "5.17.0", "batch_size": 1, "prompt_len": 1024, "new_tokens": 8,
        "max_seq_len": None, "dtype": "bf16", "attention": None, "quantization": "none",
        "kv_cache_dtype": "auto", "tensor_parallel_size": 1, "pipeline_parallel_size": 1,
        "cache_implementation": "dynamic", "num_beams": 1, "num_return_sequences": 1,
        "do_sample": False, "top_k": None, "top_p": None, "speculative_model": None,
        "num_speculative_tokens": None,
    },
    problems=problems,
    ledger=ledger,
)  # fmt: skip
