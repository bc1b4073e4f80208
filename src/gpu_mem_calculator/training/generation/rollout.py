"""A generation before the micro-batches that train on its completions (trl 1.16.0
trainer/grpo_trainer.py _generate_and_score_completions; rloo_trainer.py is the same).

The policy generates as transformers' generate does elsewhere, with its gradients off. Accelerate's
autocast is around the forward of the model that it has wrapped: with adapters that is PEFT's, whose
generate calls the model inside, so nothing is cast then (peft 0.21.2 peft_model.py generate). A
rollout is replayed in every step of training, so its stream must be short. The highest passes are
the prompt's, the first and the last ones: they are written whole. Of the others stays what is
larger than torch's small blocks, which have segments of their own, and what outlives its block.

Or vLLM's engine generates, on the same card (trl 1.16.0 generation/vllm_generation.py). Asleep, its
weights and its KV cache are not mapped, and cached memory returns to the driver (vllm 0.11.0
device_allocator/cumem.py CuMemAllocator.sleep); CUDA graphs and what is outside torch stay. From
source, not measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from msgspec.structs import replace

from ...ledger.ledger import (
    ACT,
    AFTER_MASKS,
    CPU,
    GRAD,
    LATER,
    PARAM,
    RETURNED,
    Entry,
    Instant,
    Ledger,
)
from ...ledger.num import EMPTY, Bytes, Num, sized
from ...ledger.source import code
from ...pytorch.autograd.events import BlockEvents
from ...pytorch.modelling.huggingface.setting import BlockSetting
from ...pytorch.replay.rounding import SMALL, UNIT
from ...run.phases import FORWARD, GENERATION, OPTIMIZER, STARTUP
from ...run.rollout import ELSEWHERE, VLLM, Rollout
from ...run.run import Run
from ...run.served import ACTIVATION, KINDS, POOL, WEIGHTS
from ..step.layer_groups import LayerGroups
from ..step.reference import most_bytes, no_grad_forward, reference_setting
from . import entries, model_inputs
from .case import GenerationCase
from .decode_steps import ENDS, LAST, PROMPT, CacheMode
from .entries import build_case
from .instants import GenerationInstants
from .stream import GenerationStreamWriter, PassEvents
from .token_choice import SAMPLE, TokenChoice

SLEEPING = (WEIGHTS, POOL)  # figures of which a sleeping engine has nothing on the card
VLLM_CODE = code("vllm 0.11.0 v1/worker/gpu_worker.py determine_available_memory, sleep")
WHOLE = Instant(name=GENERATION, phase=GENERATION, title="generation", where=GENERATION)
TRL_CODE = code("trl 1.16.0 trainer/grpo_trainer.py _generate_and_score_completions")


def with_rollout(run: Run, setting: BlockSetting, groups: LayerGroups, ledger: Ledger) -> Ledger:
    """The ledger of a step with the generation before it. `setting`: how the step runs blocks."""
    if run.rollout is None:
        return ledger
    scored = tuple(_scored(run, run.rollout, setting, groups))
    named = replace(ledger, instants=(*ledger.instants, *(one for one, _ in scored)))
    instants, more = _passes(run, run.rollout, setting, named)
    instants += tuple(one for one, _ in scored)
    more += tuple(entry for _, entry in scored)
    starts = [i for i in ledger.instants if i.phase == STARTUP]
    rest = [i for i in ledger.instants if i.phase != STARTUP]
    names = [i.name for i in instants]
    kept = [_between_steps(entry, ledger, names) for entry in ledger.entries]
    batch = _batch_entry(run.rollout, (*instants, *rest))
    whole = replace(ledger, instants=(*starts, *instants, *rest), entries=(*kept, batch, *more))
    # of several generations in a step, one is trained on in fewer micro-batches
    again = run.rollout.sequences < run.batch * run.micro_batches
    return _repeated(whole, instants) if again else whole


def _repeated(ledger: Ledger, instants: tuple[Instant, ...]) -> Ledger:
    """The ledger with another generation between micro-batches, when the gradients are alive."""
    again = {
        i.name: replace(
            i, name=f"{LATER}.{i.name}", micro_batch=LATER, title=f"{i.title}, later micro-batch"
        )
        for i in instants
    }
    forward = next(i.name for i in ledger.instants if i.phase == FORWARD and i.micro_batch)
    entries = []
    for entry in ledger.entries:
        alive = [(forward if entry.kind == GRAD else i.name, again[i.name].name) for i in instants]
        more = {new: entry.live[old] for old, new in alive if old in entry.live}
        entries.append(replace(entry, live={**entry.live, **more}))
    found = (*ledger.instants, *again.values())
    return replace(ledger, instants=found, entries=tuple(entries))


def _passes(
    run: Run, rollout: Rollout, setting: BlockSetting, ledger: Ledger
) -> tuple[tuple[Instant, ...], tuple[Entry, ...]]:
    """The instants and entries of the passes that generate; none if they run elsewhere."""
    if rollout.engine == ELSEWHERE:
        return (), ()
    if rollout.engine == VLLM:
        return (WHOLE,), tuple(engine_entries(rollout, ledger, WHOLE.name))
    part = rollout_ledger(rollout_case(run, rollout, setting))
    if not run.unrolled:
        return part.instants, part.entries
    return (WHOLE,), (_played(rollout, part, WHOLE),)


def _scored(
    run: Run, rollout: Rollout, setting: BlockSetting, groups: LayerGroups
) -> Iterator[tuple[Instant, Entry]]:
    """The forward passes that give log-probabilities of completions, without autograd, one
    micro-batch at a time: of the policy before its update, and of the reference model.
    """
    passes = (
        ("policy", "the old policy", rollout.scores, setting),
        ("reference", "the reference model", run.reference, reference_setting(run, setting)),
    )
    for name, words, wanted, how in passes:
        if wanted:
            events = no_grad_forward(run, how, groups)
            title = f"generation: log-probabilities of {words}"
            instant = Instant(name=f"scored.{name}", phase=GENERATION, title=title)
            yield (
                instant,
                Entry(
                    name=f"{words}: forward",
                    kind=ACT,
                    bytes=most_bytes(events),
                    live={instant.name: 1},
                    source=TRL_CODE,
                    script=events if run.unrolled else None,
                ),
            )


def rollout_case(run: Run, rollout: Rollout, setting: BlockSetting) -> GenerationCase:
    """The passes of a rollout, by the policy itself."""
    autocast = setting.autocast and run.adapter is None
    how = replace(
        setting,
        batch=rollout.sequences,
        seq=rollout.prompt,
        training=False,
        autocast=autocast,
        matmul_bits=setting.matmul_bits if autocast else setting.bits,
    )
    room = rollout.prompt + rollout.new_tokens - 1 if rollout.static else None
    choice = TokenChoice(
        how=SAMPLE,
        rows=rollout.sequences,
        vocab=run.arch.vocab,
        bits=how.matmul_bits,
        new=rollout.new_tokens,
        length=rollout.prompt + rollout.new_tokens,
        top_k=rollout.top_k,
        top_p=rollout.top_p,
        temperature=rollout.temperature,
        upcast=autocast,
    )
    generating = replace(
        run, batch=rollout.sequences, seq=rollout.prompt, new_tokens=rollout.new_tokens
    )
    return build_case(generating, how, CacheMode(room=room), choice)


def rollout_ledger(case: GenerationCase) -> Ledger:
    """What a rollout itself allocates; weights and workspaces are the step's."""
    common = (*model_inputs.input_entries(case), *model_inputs.rotary_entries(case))
    instants = tuple(
        replace(one.instant, phase=GENERATION, title=f"generation: {one.instant.title}")
        for one in case.table
    )
    if case.run.unrolled:
        events = brief_passes(case.table, entries.pass_events(case))
        return Ledger(instants, common, plays=events)
    makers = (
        entries.cache_entries,
        entries.layer_entries,
        entries.cast_entries,
        entries.head_entries,
    )
    return Ledger(instants, (*common, *(entry for make in makers for entry in make(case))))


def _between_steps(entry: Entry, ledger: Ledger, names: Iterable[str]) -> Entry:
    """The entry, alive during the generation as well if it outlives a step."""
    forward = next(i.name for i in ledger.instants if i.phase == FORWARD)
    end = next(i.name for i in ledger.instants if i.phase == OPTIMIZER)
    first, last = entry.live.get(forward, 0), entry.live.get(end, 0)
    if entry.kind == GRAD or not _always(first) or not _always(last):
        return entry
    role = "" if entry.role == AFTER_MASKS else entry.role  # the generation makes workspaces
    return replace(entry, live={**dict.fromkeys(names, 1), **entry.live}, role=role)


def _always(copies: Num) -> bool:
    return isinstance(copies, int) and copies == 1


def _batch_entry(rollout: Rollout, instants: Iterable[Instant]) -> Entry:
    """What the trainer buffers of a generation: ids and masks of prompts and completions, and the
    advantages, until the next one has replaced them.
    """
    sizes = _batch_sizes(rollout)
    return Entry(
        name="prompts and completions, with their masks",
        kind=ACT,
        bytes=sum(sizes, EMPTY),
        live={i.name: 1 for i in instants},
        source=TRL_CODE,
        tensors=lambda: sizes,
    )


def _batch_sizes(rollout: Rollout) -> list[Bytes]:
    each = (rollout.prompt, rollout.prompt, rollout.new_tokens, rollout.new_tokens)
    return [sized(rollout.sequences * n, 64) for n in each] + [sized(rollout.sequences, 32)]


def _played(rollout: Rollout, part: Ledger, whole: Instant) -> Entry:
    """A whole rollout as one entry of an unrolled ledger: its events, which leave the generated
    ids.
    """
    writer = GenerationStreamWriter(part)
    for one in part.instants:
        if one.present:
            writer.visit(one.name)
    writer.finish()
    ids = sized(rollout.sequences * (rollout.prompt + rollout.new_tokens), 64)
    left = writer.make(int(ids))
    events = BlockEvents(
        sizes=tuple(sized(size, 8) for size in writer.sizes),
        entry=-1,
        exit=-1,
        forward=tuple(writer.events),
        left=(left,),
    )
    return Entry("generation", ACT, ids, {whole.name: 1}, TRL_CODE, script=events)


def brief_passes(
    table: GenerationInstants, events: Mapping[str, PassEvents]
) -> dict[str, PassEvents]:
    """The events of each instant, those of the passes between the ends shortened."""
    names = list(dict.fromkeys(one.step for one in table))
    steps = [name for name in names if name.startswith(LAST)]
    whole = {PROMPT, *steps[:ENDS], *steps[-ENDS:]}
    return {
        one.name: events[one.name] if one.step in whole else _brief(events[one.name])
        for one in table
        if one.name in events
    }


def _brief(run: PassEvents) -> PassEvents:
    stays = (*run.cache_before, *run.cache_after, *run.named, *run.casts)
    return replace(run, script=_without_small(run.script, stays))


@cache
def _without_small(block: BlockEvents, stays: tuple[int, ...]) -> BlockEvents:
    """The block without small tensors that it both allocates and frees."""
    made = {event for event in block.forward if event >= 0}
    freed = {~event for event in block.forward if event < 0}
    ends = {block.entry, block.exit, *stays}
    small = {n for n in made & freed if int(block.sizes[n]) <= SMALL * UNIT and n not in ends}
    kept = (e for e in block.forward if (e if e >= 0 else ~e) not in small)
    return replace(block, forward=tuple(kept))


def engine_entries(rollout: Rollout, ledger: Ledger, generation: str) -> Iterator[Entry]:
    """Entries of an engine's memory, from the end of start-up on. `generation`: the instant at
    which it generates; its activations are there only then.
    """
    started = [i.name for i in ledger.instants if i.phase == STARTUP and _always(i.present)][-1:]
    others = [i.name for i in ledger.instants if i.phase != STARTUP]
    for item in rollout.items:
        names = [*started, generation]
        sleeps = bool(rollout.sleep_level) and item.figure in SLEEPING
        if item.figure != ACTIVATION and not sleeps:
            names += others
        live: dict[str, Num] = dict.fromkeys(names, 1)
        yield Entry(
            name=f"vLLM: {item.name}",
            kind=KINDS[item.figure],
            bytes=sized(item.bytes, 8),
            live=live,
            source=VLLM_CODE,
            role=RETURNED if sleeps else "",
        )
    if rollout.sleep_level == 1:
        live, size = dict.fromkeys(others, 1), sized(rollout.asleep_bytes, 8)
        yield Entry("vLLM: weights, asleep", PARAM, size, live, VLLM_CODE, place=CPU)
