"""Inference by transformers: `generate`, or one forward pass, on one GPU.

Legend: b sequences, s tokens of the prompt, n new tokens. Line numbers refer to transformers
5.17.0.
"""

from __future__ import annotations

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
from ...generation.instants import beats, every_beat
from ...generation.model_inputs import first_beats, inputs, made_once, reads_all, tables
from ...generation.stream import GenerationStreamWriter
from ...generation.token_choice import BEAMS, CHECK, GREEDY, SAMPLE, TokenChoice
from ...ledger.ledger import Instant, Ledger
from ...ledger.num import larger
from ...model.arch import Arch
from ...modelling.huggingface.quirks import family_quirks
from ...modelling.huggingface.setting import BlockSetting
from ...run.engine import Engine
from ...run.phases import STARTUP
from ...run.run import Run
from .checks import problems
from .options import OPTIONS
from .weights import weight_entries, workspace_entries

BITS = {"fp32": 32, "bf16_pure": 16, "fp16_pure": 16}
CANDIDATES = 20  # num_assistant_tokens
TOP_K, TOP_P = 50, 1.0  # generation/configuration_utils.py _get_default_generation_params


def ledger(run: Run) -> Ledger:
    """Entries for the model, its cache, and the layer or head that is computed at each instant."""
    if run.draft is not None:
        return _assisted(run, run.draft)
    case = generation_case(run)
    load = Instant(name="startup", phase=STARTUP, title="start-up: model on the GPU")
    instants = (load, *(b.instant for b in case.table))
    model = (case.run, case.how, case.found, case.passes, case.table)
    always = {b.name for b in case.table}
    shared = (
        *weight_entries(case, always),
        *made_once(*model, case.manner),
        *workspace_entries(case, case.table),
        *tables(*model),
    )
    if run.unrolled:
        return Ledger(instants, shared, plays=turns(case), writer=GenerationStreamWriter)
    return Ledger(instants, (*shared, *caches(case), *layers(case), *head(case)))


def _assisted(run: Run, draft: Arch) -> Ledger:
    """The ledger of assisted generation: the assistant `draft` is loaded after the model."""
    candidates = run.options["num_speculative_tokens"] or CANDIDATES
    every = rounds(run, candidates)
    draft_run = replace(run, arch=draft, parameters_given=None)
    small = _model_case(draft_run, draft_steps(every, run.unrolled))
    large = _model_case(run, main_steps(every), beams=True)
    small = replace(small, table=tuple(draft_beats(small, every)))
    large = replace(large, table=tuple(main_beats(large, every)))
    pair = AssistedModels(draft=small, main=large, every=every)
    table = in_order(small.table, large.table)
    first = Instant(name="startup", phase=STARTUP, title="start-up: model on the GPU")
    second = Instant(name="startup.draft", phase=STARTUP, title="start-up: assistant on the GPU")
    always = {b.name for b in table} | {second.name}
    both = [
        *weight_entries(large, always),
        *weight_entries(small, always, "assistant: ", second.name),
    ]
    for case in (small, large):
        model = (case.run, case.how, case.found, case.passes, case.table)
        both += [*inputs(*model), *tables(*model)]
    both += [*shared(pair), *workspace_entries(large, table)]
    instants = (first, second, *(b.instant for b in table))
    if run.unrolled:
        return Ledger(
            instants, tuple(both), plays=assisted_turns(pair), writer=GenerationStreamWriter
        )
    return Ledger(instants, (*both, *entries(pair)))


def _model_case(run: Run, passes: dict[str, DecodeStep], *, beams: bool = False) -> GenerationCase:
    """One of the two models of assisted generation, without its instants."""
    block = setting(run, beams=beams)
    layer_kinds = kinds(run.arch)
    method = CHECK if beams else GREEDY
    choice = TokenChoice(how=method, rows=1, vocab=run.arch.vocab, bits=block.bits)
    return GenerationCase(
        run=run,
        how=block,
        manner=CacheMode(),
        found=layer_kinds,
        table=(),
        choice=choice,
        passes=[passes for _ in layer_kinds],
    )


def generation_case(run: Run) -> GenerationCase:
    """The passes of a generation and their instants; each beam and each answer is a sequence."""
    options = run.options
    beams, answers = options["num_beams"], options["num_return_sequences"]
    copies = max(beams, answers)
    run = replace(run, batch=run.batch * copies)
    how = setting(run, beams=beams > 1)
    found = kinds(run.arch, windows=not how.quirks.buffer_windows)
    room = None
    if options["cache_implementation"] == "static":
        room = larger(run.seq + run.new_tokens - 1, options["max_seq_len"] or 0)
    manner = CacheMode(room=room, beams=beams, copies=copies, whole=reads_all(run, found))
    walk = every_step if run.unrolled else steps
    passes = [walk(kind, run.seq, run.new_tokens, manner) for kind in found]
    if run.unrolled:
        table = every_beat(found, run.new_tokens, beams=beams > 1)
    else:
        first = first_beats(run, how, found, [each[PROMPT] for each in passes])
        table = beats(found, run.new_tokens, first, beams=beams > 1)
    return GenerationCase(
        run=run,
        how=how,
        manner=manner,
        found=found,
        passes=passes,
        table=table,
        choice=_token_choice(run, how.bits),
    )


def _token_choice(run: Run, bits: int) -> TokenChoice:
    """How the next token is chosen from logits of `bits` bits."""
    options = run.options
    method = BEAMS if options["num_beams"] > 1 else SAMPLE if options["do_sample"] else GREEDY
    top_k, top_p = options["top_k"], options["top_p"]
    return TokenChoice(
        how=method,
        rows=run.batch,
        vocab=run.arch.vocab,
        bits=bits,
        new=run.new_tokens,
        length=run.seq + run.new_tokens,
        top_k=TOP_K if top_k is None else top_k,
        top_p=TOP_P if top_p is None else top_p,
    )


def setting(run: Run, *, beams: bool = False) -> BlockSetting:
    """The setting of a block: in the dtype of the weights, without tensors saved for backward."""
    bits = BITS[run.precision]
    return BlockSetting(
        batch=run.batch, seq=run.seq, hidden=run.arch.hidden, bits=bits, matmul_bits=bits,
        weight_bits=bits, half=run.precision.startswith("fp16"), attention=run.attention,
        cudnn=run.compute_capability in ("9.0", "10.0"), training=False,
        quantization=run.quantization, double_quant=run.double_quant,
        hopper=run.compute_capability == "9.0", grouped_experts=beams,
        quirks=family_quirks(run.arch.family),
    )  # fmt: skip


ENGINE = Engine(
    name="transformers",
    title="transformers",
    options=OPTIONS,
    problems=problems,
    ledger=ledger,
)
