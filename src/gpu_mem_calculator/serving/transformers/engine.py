"""transformers' own inference: `generate`, or one forward pass, on one GPU.

Legend: b sequences, s tokens of the prompt, n new tokens. Line numbers refer to transformers
5.17.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from ...generation.assisted import (
    AssistedModels,
    draft_beats,
    draft_steps,
    entries,
    in_order,
    main_beats,
    main_steps,
    rounds,
    shared,
)
from ...generation.assisted import turns as assisted_turns
from ...generation.decode_steps import PROMPT, CacheMode, DecodeStep, every_step, kinds, steps
from ...generation.entries import GenerationCase, caches, head, layers, turns
from ...generation.instants import MASKS, GenerationInstant, beats, every_beat
from ...generation.model_inputs import first_beats, inputs, made_once, reads_all, tables
from ...generation.stream import GenerationStreamWriter
from ...generation.token_choice import BEAMS, CHECK, GREEDY, SAMPLE, TokenChoice
from ...ledger.ledger import PARAM, RUNTIME, Entry, Instant, Ledger
from ...ledger.num import Num, larger
from ...ledger.source import ARITHMETIC, code
from ...ledger.units import MIB
from ...model.adapters import linears
from ...model.arch import Arch
from ...modelling.huggingface.quirks import family_quirks
from ...modelling.huggingface.setting import BlockSetting
from ...replay.rounding import block_bytes
from ...run.engine import Engine
from ...run.phases import STARTUP
from ...run.run import Precision, Run
from ...step.quantization import loading_script
from ...step.weights import base_bytes, base_tensors
from ...step.workspaces import WORKSPACES, cublas_bytes
from .checks import problems

BITS = {"fp32": 32, "bf16_pure": 16, "fp16_pure": 16}
CANDIDATES = 20  # num_assistant_tokens
TOP_K, TOP_P = 50, 1.0  # generation/configuration_utils.py _get_default_generation_params
BITSANDBYTES = code("bitsandbytes 0.50.2 nn/modules.py Params4bit, Int8Params")


def ledger(run: Run) -> Ledger:
    """The model, its cache, and the layer or head at work."""
    if run.draft is not None:
        return _assisted(run, run.draft)
    case = prepared(run)
    load = Instant(name="startup", phase=STARTUP, title="start-up: model on the GPU")
    instants = (load, *(b.instant for b in case.table))
    what = (case.run, case.how, case.found, case.passes, case.table)
    always = {b.name for b in case.table}
    shared = (*_weights(case, always), *made_once(*what, case.manner),
              *_workspaces(case, case.table), *tables(*what))  # fmt: skip
    if run.unrolled:
        return Ledger(instants, shared, plays=turns(case), writer=GenerationStreamWriter)
    return Ledger(instants, (*shared, *caches(case), *layers(case), *head(case)))


def _assisted(run: Run, draft: Arch) -> Ledger:
    """Two models that take turns; the small one is loaded last."""
    wanted = run.options["num_speculative_tokens"] or CANDIDATES
    every = rounds(run, wanted)
    small = _part(replace(run, arch=draft, parameters_given=None), draft_steps(every, run.unrolled))
    large = _part(run, main_steps(every), beams=True)
    small = replace(small, table=tuple(draft_beats(small, every)))
    large = replace(large, table=tuple(main_beats(large, every)))
    pair = AssistedModels(draft=small, main=large, every=every)
    table = in_order(small.table, large.table)
    first = Instant(name="startup", phase=STARTUP, title="start-up: model on the GPU")
    second = Instant(name="startup.draft", phase=STARTUP, title="start-up: assistant on the GPU")
    always = {b.name for b in table} | {second.name}
    both = [*_weights(large, always), *_weights(small, always, "assistant: ", second.name)]
    for case in (small, large):
        what = (case.run, case.how, case.found, case.passes, case.table)
        both += [*inputs(*what), *tables(*what)]
    both += [*shared(pair), *_workspaces(large, table)]
    instants = (first, second, *(b.instant for b in table))
    if run.unrolled:
        return Ledger(
            instants, tuple(both), plays=assisted_turns(pair), writer=GenerationStreamWriter
        )
    return Ledger(instants, (*both, *entries(pair)))


def _part(run: Run, passes: dict[str, DecodeStep], *, beams: bool = False) -> GenerationCase:
    """One of two models, its instants still to come."""
    how = setting(run, beams=beams)
    found = kinds(run.arch)
    way = CHECK if beams else GREEDY
    choice = TokenChoice(how=way, rows=1, vocab=run.arch.vocab, bits=how.bits)
    return GenerationCase(
        run=run,
        how=how,
        manner=CacheMode(),
        found=found,
        table=(),
        choice=choice,
        passes=[passes for _ in found],
    )


def prepared(run: Run) -> GenerationCase:
    """How the model is run, pass by pass; beams and several answers are sequences of their own."""
    given = run.options
    beams, many = given["num_beams"], given["num_return_sequences"]
    copies = max(beams, many)
    run = replace(run, batch=run.batch * copies)
    how = setting(run, beams=beams > 1)
    found = kinds(run.arch, windows=not how.quirks.buffer_windows)
    room = None
    if given["cache_implementation"] == "static":
        room = larger(run.seq + run.new_tokens - 1, given["max_seq_len"] or 0)
    manner = CacheMode(room=room, beams=beams, copies=copies, whole=reads_all(run, found))
    walk = every_step if run.unrolled else steps
    passes = [walk(kind, run.seq, run.new_tokens, manner) for kind in found]
    if run.unrolled:
        table = every_beat(found, run.new_tokens, beams=beams > 1)
    else:
        first = first_beats(run, how, found, [each[PROMPT] for each in passes])
        table = beats(found, run.new_tokens, first, beams=beams > 1)
    return GenerationCase(run=run, how=how, manner=manner, found=found, passes=passes, table=table,
                choice=_choice(run, how))  # fmt: skip


def _choice(run: Run, how: BlockSetting) -> TokenChoice:
    given = run.options
    way = BEAMS if given["num_beams"] > 1 else SAMPLE if given["do_sample"] else GREEDY
    top_k, top_p = given["top_k"], given["top_p"]
    return TokenChoice(
        how=way, rows=run.batch, vocab=run.arch.vocab, bits=how.bits, new=run.new_tokens,
        length=run.seq + run.new_tokens, top_k=TOP_K if top_k is None else top_k,
        top_p=TOP_P if top_p is None else top_p,
    )  # fmt: skip


def setting(run: Run, *, beams: bool = False) -> BlockSetting:
    """How the model runs: in the dtype of its weights, with nothing kept for backward."""
    bits = BITS[run.precision]
    return BlockSetting(
        batch=run.batch, seq=run.seq, hidden=run.arch.hidden, bits=bits, matmul_bits=bits,
        weight_bits=bits, half=run.precision.startswith("fp16"), attention=run.attention,
        cudnn=run.compute_capability in ("9.0", "10.0"), training=False,
        quantization=run.quantization, double_quant=run.double_quant,
        hopper=run.compute_capability == "9.0", grouped_experts=beams,
        quirks=family_quirks(run.arch.family),
    )  # fmt: skip


def _weights(
    case: GenerationCase, instants: set[str], title: str = "", startup: str = "startup"
) -> Iterator[Entry]:
    """Parameters and buffers; quantized ones are packed as they come.

    A tied head is made like any other, then tied: it is there while the model is loaded only.
    """
    run, arch, bits = case.run, case.run.arch, case.how.weight_bits
    always: dict[str, Num] = dict.fromkeys((startup, *sorted(instants)), 1)
    precision = Precision(bits, bits)
    packed = run.quantization is not None
    yield Entry(name=f"{title}parameters", kind=PARAM, bytes=base_bytes(run, precision),
                tensors=None if packed else lambda: list(base_tensors(run, precision)),
                script=loading_script(run, precision) if packed and run.unrolled else None,
                live=always, source=BITSANDBYTES if packed else ARITHMETIC)  # fmt: skip
    buffers = [block_bytes(b.num_bytes) for b in arch.buffers]
    yield Entry(name=f"{title}buffers", kind=PARAM, bytes=sum(buffers), tensors=lambda: buffers,
                live=always, source=ARITHMETIC)  # fmt: skip
    if arch.tied:
        yield Entry(
            name=f"{title}head before it is tied to the embedding", kind=PARAM,
            bytes=run.scaled(arch.vocab * arch.hidden) * bits // 8, live={startup: 1},
            source=code("transformers 5.17.0 modeling_utils.py: lm_head is made, then tied"),
        )  # fmt: skip


def _workspaces(case: GenerationCase, table: Iterable[GenerationInstant]) -> Iterator[Entry]:
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
            here: dict[str, Num] = {b.name: 1 for b in table if b.work != MASKS}
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
