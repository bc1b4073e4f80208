"""Inference by transformers: `generate`, or one forward pass, on one GPU.

Legend: b sequences, s tokens of the prompt, n new tokens. Line numbers refer to transformers
5.17.0.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...ledger.ledger import Instant, Ledger
from ...ledger.num import larger
from ...ledger.units import MIB
from ...models.arch.arch import Arch
from ...pytorch.modelling.huggingface.flash import has_flash, prefers_cudnn
from ...pytorch.modelling.huggingface.quirks import QUIRKS
from ...pytorch.modelling.huggingface.setting import BlockSetting
from ...run.engine import Engine, HostLibraries
from ...run.phases import STARTUP
from ...run.run import Run
from ...training.generation import assisted, entries, model_inputs
from ...training.generation.case import GenerationCase
from ...training.generation.decode_steps import CacheMode, DecodeStep, layer_kinds
from ...training.generation.entries import build_case
from ...training.generation.stream import GenerationStreamWriter
from ...training.generation.token_choice import BEAMS, CHECK, GREEDY, SAMPLE, TokenChoice
from .checks import CACHES, QUANTIZATIONS, problems
from .options import OPTIONS
from .row import ROW
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
    always = {b.name for b in case.table}
    common = (
        *weight_entries(case, always),
        *model_inputs.input_entries(case),
        *workspace_entries(case, case.table),
        *model_inputs.rotary_entries(case),
    )
    if run.unrolled:
        events = entries.pass_events(case)
        return Ledger(instants, common, plays=events, writer=GenerationStreamWriter)
    parts = (entries.cache_entries, entries.layer_entries, entries.head_entries)
    return Ledger(instants, (*common, *(entry for part in parts for entry in part(case))))


def _assisted(run: Run, draft: Arch) -> Ledger:
    """The ledger of assisted generation: the assistant `draft` is loaded after the model."""
    candidates = run.options["num_speculative_tokens"] or CANDIDATES
    every = assisted.rounds(run, candidates)
    draft_run = replace(run, arch=draft, parameters_given=None)
    small = _model_case(draft_run, assisted.draft_steps(every, run.unrolled))
    large = _model_case(run, assisted.main_steps(every), beams=True)
    small = replace(small, table=tuple(assisted.draft_instants(small, every)))
    large = replace(large, table=tuple(assisted.main_instants(large, every)))
    pair = assisted.AssistedModels(draft=small, main=large, every=every)
    table = assisted.merge_instants(small.table, large.table)
    first = Instant(name="startup", phase=STARTUP, title="start-up: model on the GPU")
    second = Instant(name="startup.draft", phase=STARTUP, title="start-up: assistant on the GPU")
    always = {b.name for b in table} | {second.name}
    assistant = weight_entries(small, always, "assistant: ", second.name)
    both = [*weight_entries(large, always), *assistant]
    for case in (small, large):
        both += [*model_inputs.pass_input_entries(case), *model_inputs.rotary_entries(case)]
    both += [*assisted.shared_entries(pair), *workspace_entries(large, table)]
    instants = (first, second, *(b.instant for b in table))
    if run.unrolled:
        events = assisted.assisted_events(pair)
        return Ledger(instants, tuple(both), plays=events, writer=GenerationStreamWriter)
    return Ledger(instants, (*both, *assisted.round_entries(pair)))


def _model_case(run: Run, passes: dict[str, DecodeStep], *, beams: bool = False) -> GenerationCase:
    """One of the two models of assisted generation, without its instants."""
    block = setting(run, beams=beams)
    kinds, method = layer_kinds(run.arch), CHECK if beams else GREEDY
    choice = TokenChoice(how=method, rows=1, vocab=run.arch.vocab, bits=block.bits)
    return GenerationCase(
        run=run,
        how=block,
        manner=CacheMode(),
        found=kinds,
        table=(),
        choice=choice,
        passes=[passes for _ in kinds],
    )


def generation_case(run: Run) -> GenerationCase:
    """The passes of a generation and their instants; each beam and each answer is a sequence."""
    options = run.options
    beams, answers = options["num_beams"], options["num_return_sequences"]
    copies = max(beams, answers)
    run = replace(run, batch=run.batch * copies)
    how = setting(run, beams=beams > 1)
    room = None
    if options["cache_implementation"] == "static":
        room = larger(run.seq + run.generated - 1, options["max_seq_len"] or 0)
    mode = CacheMode(room=room, beams=beams, copies=copies)
    return build_case(run, how, mode, _token_choice(run, how.bits))


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
        new=run.generated,
        length=run.seq + run.generated,
        top_k=TOP_K if top_k is None else top_k,
        top_p=TOP_P if top_p is None else top_p,
    )


def setting(run: Run, *, beams: bool = False) -> BlockSetting:
    """The setting of a block: in the dtype of the weights, without tensors saved for backward."""
    bits = BITS[run.precision]
    return BlockSetting(
        batch=run.batch,
        seq=run.seq,
        hidden=run.arch.hidden,
        bits=bits,
        matmul_bits=bits,
        weight_bits=bits,
        half=run.precision.startswith("fp16"),
        attention=run.attention,
        cudnn=prefers_cudnn(run.compute_capability),
        flash=has_flash(run.compute_capability),
        training=False,
        quantization=run.quantization,
        double_quant=run.double_quant,
        hopper=run.compute_capability == "9.0",
        grouped_experts=beams,
        quirks=QUIRKS[run.arch.family],
    )


ENGINE = Engine(
    name="transformers",
    title=ROW.title,
    package="transformers",
    options=OPTIONS,
    values={"quantization": QUANTIZATIONS, "cache_implementation": CACHES},
    host_libraries=HostLibraries(
        800 * MIB, "25 runs, 306 to 912 MiB, and 1.5 MiB for each length decoded"
    ),
    problems=problems,
    ledger=ledger,
)
