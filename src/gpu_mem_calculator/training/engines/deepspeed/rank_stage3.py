"""ZeRO 3, tensor by tensor: deepspeed 0.19.8 runtime/zero/stage3.py."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from typing import Protocol

from msgspec.structs import replace

from ...step.block_events import EMBEDDING, HEAD
from ...step.cycles import regular, steps
from .gather import GATHER
from .gather_script import EventList, GatheredModel, GatherScript, gather_script, small_parameters
from .layout import ZeroLayout
from .rank import TensorAllocator, ZeroRank
from .rank_stage12 import REDUCTION
from .shards import sub_groups
from .sizes import FP32, norm_bytes

NORM_PART = 250_000_000  # elements whose norm is taken at once, zero/stage3.py:1440


class Stage3Bucket(ZeroRank):
    """One rank's gradient bucket: gradients are reduced, and their shards kept or offloaded."""

    def __init__(self, plan: ZeroLayout, to: TensorAllocator) -> None:
        super().__init__(plan, to)
        self.ranks = int(plan.ranks)
        self.queue = REDUCTION if plan.overlap else 0
        self.inside: list[tuple[int, int]] = []  # in the bucket: elements, tensor or -1
        self.filled = 0  # elements in it
        self.reductions = 0

    def arrived(self, key: tuple[int, int], tensor: int) -> None:
        """Line 1601: copy a gradient into the bucket; a full bucket is reduced first."""
        plan = self.plan
        elements = self.to.size(tensor) // plan.trained_width
        if self.filled and self.filled + elements > plan.bucket:
            self.reduce()
        self.filled += elements
        if plan.contiguous and self.filled <= plan.bucket:
            self.to.free((tensor,))
            tensor = -1
        self.inside.append((elements, tensor))

    def has_room(self, gradients: Sequence[int]) -> bool:
        """Whether gradients of these bytes are only copied into the bucket, and do not fill it."""
        plan, width = self.plan, self.plan.trained_width
        filled = self.filled + sum([size // width for size in gradients])
        return plan.contiguous and filled <= plan.bucket

    def fill(self, gradients: Sequence[int]) -> None:
        """Copy gradients of these bytes into the bucket, which has room for them."""
        new = [size // self.plan.trained_width for size in gradients]
        self.filled += sum(new)
        self.inside += [(elements, -1) for elements in new]

    def reduce(self) -> None:
        """Reduce a padded copy of the bucket; one gradient that the ranks divide needs none."""
        if not self.inside:
            return
        plan, width = self.plan, self.plan.trained_width
        shards = [-(-size // self.ranks) for size, _ in self.inside]
        if len(shards) > 1 or shards[0] * self.ranks != self.inside[0][0]:
            self.make("padded", width * sum(shards) * self.ranks, queue=self.queue)
        if plan.offload != "none":
            for shard in shards:
                self.to_host(shard)
        self.to.free(tensor for _, tensor in self.inside if tensor >= 0)
        self.free("swapped", "padded")
        self.inside, self.filled = [], 0
        self.reductions += 1

    def to_host(self, shard: int) -> None:
        """Line 2024: copy a shard's gradient to the host; before the step its norm is taken."""
        self.make("shard", self.plan.trained_width * shard, queue=self.queue)
        if self.last:
            self.make_and_free(norm_bytes(min(shard, NORM_PART)), queue=self.queue)
            if self.plan.offload == "nvme":
                self.make("swapped", 4 * shard, queue=self.queue)
            else:
                self.make_and_free(4 * shard, queue=self.queue)
        self.free("shard")

    def epilogue(self) -> None:
        """Reduce what is left in the bucket."""
        self.reduce()


class GatherStream(TensorAllocator, Protocol):
    """A stream, to which gathers are written as events."""

    def play_on(
        self, queue: int, events: Sequence[int], sizes: Sequence[int], numbers: dict[int, int]
    ) -> None:
        """Allocate and free tensors on a CUDA stream: tensor i of `events` has `sizes[i]` bytes,
        and while it is allocated its number is `numbers[i]`.
        """


class Stage3Rank(Stage3Bucket):
    """One rank with shards of everything; parameters are gathered when modules need them.

    gathers: what is gathered
    gathered: tensors of the parameters that stay gathered from one micro-batch to the next
    known: the order of modules has been recorded
    """

    def __init__(self, plan: ZeroLayout, to: GatherStream, gathers: GatheredModel) -> None:
        super().__init__(plan, to)
        self.stream = to
        self.shards = [-(-size // self.ranks) for size in self.sizes]
        local = sum(self.shards)  # as the model's configuration gives them
        self.rank = replace(self.rank, local=local, whole=local)
        self.groups = sub_groups(self.shards, plan.sub_group)
        self.gathers, self.lane = gathers, GATHER if plan.overlap else 0
        self.known = False
        self.gathered: dict[int, int] = {}
        self.script: GatherScript
        self.numbers: dict[int, int] = {}  # of the script's tensors that are allocated
        self.made = self.played = self.hook = 0  # its tensors, events and hooks that are over
        self.before_layers = 0  # tensors that are made before the layers of a pass

    def startup(self) -> None:
        """Shard the parameters, put the shards into one tensor, make masters and buffers."""
        plan, width = self.plan, self.plan.width
        self.shard_model()
        rank, on_gpu = self.rank, plan.offload == "none"
        if plan.offload_param == "none":
            self.free("shards")
            self.to.empty_cache()
            self.make("flat", rank.flat)
        if on_gpu:
            steps = [rank.stepping(sum(group)) for group in self.groups]
            for number, one in enumerate(steps):  # a variable still refers to the last one
                self.make(("cast", number), one.masters * (width < FP32))
                self.free(("cast", number - 1))
                self.make("masters", one.masters)
            self.free(("cast", len(self.groups) - 1))
            self.make_and_free(max(int(one.step_grad) for one in steps))
        if plan.contiguous:
            self.make("bucket", plan.bucket_bytes)
        if on_gpu:
            self.make("grads", width * rank.local)
        written = EventList()
        for shard in self.shards:
            whole = written.make_on(0, plan.trained_width * shard * self.ranks)
            if plan.offload_param != "none":
                written.free((written.make_on(0, plan.trained_width * shard),))
            written.free((whole,))
        self.play(written)

    def play(self, written: EventList) -> dict[int, int]:
        """Allocate and free what was written; the numbers of the tensors that are left."""
        numbers: dict[int, int] = {}
        self.stream.play_on(0, written.events, written.sizes, numbers)
        return numbers

    def shard_model(self) -> None:
        """Make each parameter, then shard it: at once under zero.Init, else all at the end."""
        plan, arch = self.plan, self.plan.run.arch
        base = [int(w.numel) for w in (*arch.tower, *arch.weights())] if plan.run.frozen else []
        there = plan.offload_param == "none"
        frozen = [("frozen", size, plan.width) for size in base]
        rows = [*frozen, *(("shards", size, self.rank.width) for size in self.sizes)]
        written, shards = EventList(), dict[str, list[int]]()
        wholes = [written.make_on(0, width * size) for _, size, width in rows if not plan.zero_init]
        for number, (name, size, width) in enumerate(rows):
            whole = written.make_on(0, width * size) if plan.zero_init else wholes[number]
            if there:
                shard = written.make_on(0, width * -(-size // self.ranks))
                shards.setdefault(name, []).append(shard)
            written.free((whole,))
        numbers = self.play(written)
        for name, row in shards.items():
            self.tensors.setdefault(name, []).extend(map(numbers.__getitem__, row))
        if arch.tied and plan.builds_head and plan.zero_init:
            table = int(arch.embedding[0].numel)
            self.make("head", plan.width * table)
            self.make("its shard", plan.width * -(-table // self.ranks) * there)
            self.free("head", "its shard")

    def begin(self) -> None:
        """Run the fetches and releases of the modules before the layers."""
        self.script = gather_script(self.gathers, tuple(self.gathered), known=self.known)
        self.numbers = dict(enumerate(self.gathered.values()))
        self.made = len(self.numbers)
        self.played = self.hook = 0
        self._gather(0)
        self.before_layers = self.made

    def before(self, block: int, number: int, *, forward: bool) -> None:
        """Fetch the parameters of an operation's module; for the embedding's all that is left."""
        self.hook += 1
        self._gather(-2 if block == EMBEDDING else self.hook)

    def after(self, block: int, number: int, *, forward: bool) -> None:
        """Release a module's parameters after its last operation."""
        self.hook += 1
        self._gather(self.hook)
        if block == HEAD:
            self.before_layers = self.made

    def _gather(self, end: int) -> None:
        """Allocate and free what is gathered up to an end of the script."""
        script, stop = self.script, self.script.ends[end]
        if stop > self.played:
            events = script.events[self.played : stop]
            self.stream.play_on(self.lane, events, script.sizes, self.numbers)
            self.made, self.played = max(self.made, max(events) + 1), stop

    def alive_tensors(self) -> list[int]:
        """The tensors that are alive between two steps: what stays gathered, too."""
        return [*super().alive_tensors(), *self.gathered.values()]

    def regular(self, *, forward: bool) -> bool:
        """In backward, too, where gradients wait in the bucket."""
        return forward or self.plan.contiguous

    def state(self) -> tuple[Hashable, list[int], list[int]]:
        """The tensors that are gathered for a while, and how far the script and the bucket are."""
        waiting = [one for one in self.numbers if one >= self.before_layers]
        shape = [self.made - one for one in waiting], self.reductions
        written = [self.hook, self.played, self.made, self.filled, len(self.inside)]
        return shape, [self.numbers[one] for one in waiting], written

    def alike(self, written: list[list[int]], count: int) -> int:
        """While the script goes on alike, and the bucket is not full."""
        (hook, played, made, *_), second, third = written
        hooks, events, tensors, filled, inside = steps(second, third)
        script = self.script
        new = self.inside[len(self.inside) - inside :]
        if any(tensor >= 0 for _, tensor in new):
            return 0
        if filled:
            count = min(count, (self.plan.bucket - self.filled) // filled)
        ahead = sorted(script.events[played : played + (count + 2) * events])
        frees = bisect_left(ahead, 0)
        if frees and ahead[frees - 1] > ~self.before_layers:
            return 0  # `state` leaves this tensor out
        for numbers, begin, length in (
            (script.ends, hook + 1, hooks),
            (script.events, played, events),
            (script.sizes, made, tensors),
        ):
            count = regular(numbers, begin, length, count + 2) - 2
        own = slice(made, made + tensors), slice(made + tensors, made + 2 * tensors)
        return count if script.sizes[own[0]] == script.sizes[own[1]] else 0

    def go_on(self, numbers: list[int], written: list[int], count: int) -> None:
        """The script and the bucket are `count` layers further."""
        hooks, events, tensors, filled = (count * step for step in written[:-1])
        waiting = [one for one in self.numbers if one >= self.before_layers]
        for one in waiting:
            del self.numbers[one]
        moved = (one + tensors for one in waiting)
        self.numbers.update(zip(moved, numbers, strict=True))
        self.hook, self.played = self.hook + hooks, self.played + events
        self.made, self.filled = self.made + tensors, self.filled + filled
        self.inside += self.inside[len(self.inside) - written[-1] :] * count

    def epilogue(self) -> None:
        """Reduce what is left in the bucket; free the gathered parameters."""
        super().epilogue()
        self._gather(-1)
        self.gathered = {p: self.numbers[tensor] for p, tensor in self.script.left.items()}
        self.known = True

    def step(self) -> None:
        """Free all gathered parameters; norms shard by shard; then step the sub-groups in turn."""
        self.to.free(self.gathered.values())
        if self.plan.offload == "none":
            written = EventList()
            for shard in self.shards:
                written.free((written.make_on(0, int(norm_bytes(shard))),))
            self.play(written)
            for number, group in enumerate(self.groups):
                one = self.rank.stepping(sum(group))
                if len(group) > 1:
                    self.make("flat grads", one.step_flat)
                self.make("grad", one.step_grad)
                self.free("flat grads")
                self.states(number, one)
                self.update(one)
                self.free("grad")
        self.gathered = {
            p: self.to.make_on(0, size) for p, size in small_parameters(self.gathers).items()
        }
