"""Where, between the events of a script, DeepSpeed comes in."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ...autograd.events import BlockEvents
from ...ledger.remember import remembered

Cue = tuple[int, str, int]  # events passed, what comes, its number
BEFORE, BEHIND, GRADIENT = "before", "behind", "gradient"
WEIGHT = "weight"  # the gradient of a weight is made, or (~number) goes
Turn = tuple[tuple[str, int, bool], ...]  # what comes, its number, whether in a forward


class HookedBlock(Struct, frozen=True, cache_hash=True):
    """What DeepSpeed sees of a script: its cues, and the gradients of weights.

    `turns`: a checkpointed block runs forward again before it runs backward. `sizes` are those of
    the gradients in bytes, `drops` says which of them is the weight's, `entry` which one has come
    from another block.
    """

    turns: tuple[Turn, ...]
    sizes: tuple[int, ...] = ()
    drops: tuple[int, ...] = ()
    entry: int = -1


def forward_cues(script: BlockEvents) -> Iterator[Cue]:
    """Before and behind each operation that reads weights."""
    for number, (begin, end, _) in enumerate(script.calls):
        yield begin, BEFORE, number
        yield end, BEHIND, number


def backward_cues(script: BlockEvents) -> Iterator[Cue]:
    """The same in backward, with the hooks of the gradients that an operation has made."""
    hook = 0
    for number, (begin, end, _) in enumerate(script.back_calls):
        yield begin, BEFORE, number
        while hook < len(script.hooks) and script.hooks[hook] == end:
            yield end, GRADIENT, hook
            hook += 1
        yield end, BEHIND, number


def gradients(script: BlockEvents) -> tuple[int, ...]:
    """The tensors of a script that are gradients of weights."""
    if script.exit >= 0:
        return tuple(tensor for _, tensor in script.drops)
    rest = {script.exit_grad, *script.work}  # the embedding's backward has nothing else
    return tuple(tensor for tensor in range(len(script.sizes)) if tensor not in rest)


def all_cues(script: BlockEvents) -> list[Cue]:
    """Everything that comes in a backward, in order."""
    numbers = {tensor: number for number, tensor in enumerate(gradients(script))}
    made: list[Cue] = []
    for at, event in enumerate(script.backward):
        number = numbers.get(event if event >= 0 else ~event)
        if number is not None:
            made.append((at + 1, WEIGHT, number if event >= 0 else ~number))
    if script.exit >= 0:
        made += backward_cues(script)
    else:
        end = len(script.backward)
        made.insert(0, (0, BEFORE, 0))
        made += [(end, GRADIENT, n) for n in range(len(script.drops) - 1, -1, -1)]
    return sorted(made, key=lambda cue: cue[0])


@remembered(512)
def forward_part(script: BlockEvents) -> HookedBlock:
    """A block's forward."""
    return HookedBlock((_turn(sorted(forward_cues(script), key=lambda cue: cue[0]), forward=True),))


@remembered(512)
def backward_part(script: BlockEvents, *, again: bool) -> HookedBlock:
    """A block's backward; `again`: it runs forward before."""
    found = gradients(script)
    turns = (_turn(all_cues(script), forward=False),)
    return HookedBlock(
        (*forward_part(script).turns, *turns) if again else turns,
        tuple(int(script.sizes[tensor]) for tensor in found),
        tuple(found.index(tensor) for _, tensor in script.drops),
        found.index(script.entry) if script.exit < 0 <= script.entry else -1,
    )


def _turn(cues: list[Cue], *, forward: bool) -> Turn:
    return tuple((kind, number, forward) for _, kind, number in cues)
