"""What every ZeRO stage needs to know about a run, and the instants it adds to a step."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.ledger import GPU, Entry, Instant
from ...ledger.num import Num, holds, larger
from ...ledger.source import code
from ..run import Run
from ..timeline import BACKWARD, FORWARD, OPTIMIZER, STARTUP, Beat
from .buckets import EMBEDDING, HEAD, Flushes

BIRTH, SETUP = "startup", "startup.optimizer"


class Plan(Struct, frozen=True, kw_only=True):
    """Sizes of one rank. `width`: bytes of a weight, `trained_width` of one that is trained;
    `counts`: trainable parameters by size.
    """

    run: Run
    stage: int
    width: int
    trained_width: int
    ranks: Num
    trainable: Num  # elements in this rank's model
    frozen: Num
    runs: tuple[tuple[tuple[int, ...], Num], ...]  # trainable parameters in order
    counts: dict[int, Num]
    frozen_counts: dict[int, Num]
    beats: tuple[Beat, ...]
    flushes: Flushes
    bucket: int  # elements
    overlap: bool
    contiguous: bool
    offload: str  # where the optimizer is: none, cpu, nvme
    offload_param: str
    pinned: bool
    implementation: str
    pipeline: bool = False

    @property
    def largest(self) -> int:
        """Elements of the largest trainable parameter."""
        return max(self.counts)

    @property
    def moves(self) -> bool:
        """Whether hooks move a gradient into the bucket as soon as it is made.

        runtime/zero/stage_1_and_2.py:2284: stage 1 does with overlap_comm, in the step's last
        micro-batch.
        """
        alone = isinstance(self.run.micro_batches, int) and self.run.micro_batches == 1
        return self.stage > 1 or (self.stage == 1 and self.overlap and alone)

    @property
    def listed(self) -> Num:
        """Trainable elements that the model's configuration gives, whatever count was given."""
        total: Num = 0
        for sizes, units in self.runs:
            total = total + sum(sizes) * units
        return total

    @property
    def table(self) -> Num:
        """Bytes of the head's gradient that waits for the embedding's, where both share a table.

        torch 2.11 csrc/autograd/input_buffer.cpp: a parameter's hook runs when all is added up.
        """
        run = self.run
        if not run.arch.tied or run.frozen or self.pipeline:
            return 0
        return run.scaled(run.arch.embedding[0].numel) * self.width

    def boundary(self, beat: Beat) -> Num:
        """1 in the micro-batch that the step follows, the only one where there is no other."""
        return 1 if beat.later else holds(self.run.micro_batches == 1)

    def entry(
        self, name: str, kind: str, size: Num, live: Callable[[Beat], Num], source: str,
        startup: tuple[str, ...] = (), place: str = GPU,
    ) -> Entry:  # fmt: skip
        """An entry alive where `live` says so, and in the given moments of start-up."""
        alive: dict[str, Num] = {b.name: live(b) for b in self.beats}
        alive = {n: c for n, c in alive.items() if not (isinstance(c, int | bool) and c == 0)}
        alive |= dict.fromkeys(startup, 1)
        return Entry(name=name, kind=kind, bytes=size, live=alive, place=place,
                     source=code(f"deepspeed 0.19.8 {source}"))  # fmt: skip


def always(beat: Beat) -> Num:
    """Alive at every instant of a step."""
    return 1


def named(*names: str) -> Callable[[Beat], Num]:
    """Alive at the instants of these names, in later micro-batches too."""
    return lambda beat: int(_split(beat.name)[1] in names)


def in_bucket(beat: Beat) -> bool:
    """Whether a gradient bucket that the first gradient makes is there."""
    return beat.instant.phase == BACKWARD and not beat.name.endswith("loss.backward")


def startup_instants() -> tuple[Instant, ...]:
    """While the engine is built: parameters are laid out, then the optimizer's copies made."""
    return (
        Instant(name=BIRTH, phase=STARTUP, title="start-up: parameters laid out"),
        Instant(name=SETUP, phase=STARTUP, title="start-up: optimizer set up"),
    )


def with_hooks(
    beats: tuple[Beat, ...], sent: Flushes, *, head: bool, moves: bool = False,
    early: tuple[int, ...] = (),
) -> tuple[Beat, ...]:  # fmt: skip
    """The beats of a step, with the moments at which gradients meet their bucket.

    `head.gradient`: the first gradient of backward; `flush.N`: the bucket is sent off in the
    middle of backward; `epilogue`: what is left of it; then the norm, the cast of the gradients
    and the update. `moves`: gradients go into the bucket at once, and the slice's are laid out
    beside the sum of earlier micro-batches, so that the first layer's backward may be highest.
    `early`: the layers of each stretch that have run when the most is gathered in forward.
    """
    found: list[Beat] = []
    end = beats[-1]
    there: dict[str, Num] = {}  # whether a first, or a later, micro-batch runs backward here
    for beat in beats:
        if beat.work and beat.instant.phase == BACKWARD:
            tag, _ = _split(beat.name)
            there[tag] = larger(there.get(tag, 0), beat.instant.present)
    first = {b.name: b for b in beats}.get("backward.0.first")
    for beat in beats:
        tag, name = _split(beat.name)
        if tag and name == "embedding.backward" and moves and first is not None:
            instant = replace(first.instant, name=tag + first.name, present=beat.instant.present,
                              title=f"{first.instant.title}, later micro-batch")  # fmt: skip
            found.append(replace(first, instant=instant, later=True, head_grads=beat.head_grads))
        if name == "optimizer":
            found.append(_like(beat, "optimizer.norm", OPTIMIZER, "gradient norm"))
            found.append(_like(beat, "optimizer.cast", OPTIMIZER, "gradients cast to fp32"))
        if name == "forward" and early:
            made = _like(beat, "forward.early", FORWARD, "forward, most gathered")
            place = sum(1 for count in early if count) - 1
            found.append(replace(made, work="layer", stretch=max(place, 0), saved=early))
        found.append(beat)
        if name == "loss.backward":
            if head:
                made = _like(beat, "head.gradient", BACKWARD, "first gradient")
                found.append(replace(made, head_grads=end.head_grads))
            found += _flush_beats(beats, beat, sent)
        if name == "embedding.backward":
            made = _like(beat, "epilogue", BACKWARD, "gradients reduced")
            instant = replace(made.instant, present=there[tag])
            found.append(replace(made, instant=instant, embedding_grads=end.embedding_grads))
    return tuple(found)


def _split(name: str) -> tuple[str, str]:
    """A beat's name without the word for later micro-batches, and that word."""
    rest = name.removeprefix("later.")
    return name[: len(name) - len(rest)], rest


def _like(beat: Beat, name: str, phase: str, title: str) -> Beat:
    tag = _split(beat.name)[0]
    word = ", later micro-batch" if tag else ""
    instant = Instant(name=tag + name, phase=phase, title=title + word,
                      present=beat.instant.present)  # fmt: skip
    return replace(beat, instant=instant, work="hook" if phase == BACKWARD else "")


def _flush_beats(beats: tuple[Beat, ...], loss: Beat, sent: Flushes) -> list[Beat]:
    """The moments at which a full bucket is sent off, layer and gradient known."""
    tag = _split(loss.name)[0]
    places = {b.name: b for b in beats}
    found = []
    for index, flush in enumerate(sent.first):
        if flush.block == HEAD:
            like, saved = loss, loss.saved
        elif flush.block == EMBEDDING:
            like = places[tag + "embedding.backward"]
            saved = like.saved
        else:
            like = places[f"{tag}backward.{flush.block}.last"]
            saved = tuple(
                n - flush.done if i == flush.block else n for i, n in enumerate(like.saved)
            )
        made = _like(like, f"flush.{index}", BACKWARD, "bucket sent off")
        found.append(replace(made, saved=saved))
    return found
