"""Stage 3's parameters, gathered tensor by tensor, and stage 1's reduction in order."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_mem_calculator.memory.zero.coordinator import HELD, NEVER, Limits, Stack, Trace, gathered
from gpu_mem_calculator.memory.zero.gathering import Gathering, Reader
from gpu_mem_calculator.memory.zero.partition import reduced_in_order

LAYER = (((),), ((), (30,), (50,)))  # a module without parameters, and one with two projections


class Tensors:
    """Counts what is alive."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.alive: set[int] = set()

    def make_on(self, queue: int, size: int) -> int:
        """A new tensor."""
        self.sizes.append(size)
        self.alive.add(len(self.sizes) - 1)
        return len(self.sizes) - 1

    def free(self, tensors: Iterable[int]) -> None:
        """Tensors go."""
        for tensor in tensors:
            self.alive.remove(tensor)

    def empty_cache(self) -> None:
        """Nothing is cached."""

    def size(self, tensor: int) -> int:
        """Bytes of a tensor."""
        return self.sizes[tensor]

    @property
    def total(self) -> int:
        """Bytes alive."""
        return sum(self.sizes[tensor] for tensor in self.alive)


def stack(again: int) -> Stack:
    """Two layers between an embedding and a head of 100 elements each."""
    return Stack(((), (), (100,), ()), ((LAYER, 2, again),), ((100,),))


def most_of_a_recorded_pass(again: int) -> int:
    """The most that is gathered at once while the order of modules is recorded."""
    to, trace = Tensors(), Trace(stack(again))
    state = Gathering(trace, Limits(persist=0), to, ranks=1, lane=0, from_host=False)
    reader, most = Reader(trace, state), 0
    for end in range(len(trace.events)):
        reader.advance(end + 1)
        most = max(most, to.total)
    state.sweep(persistent=True)
    assert not to.total
    return most


def test_a_recorded_pass_gathers_one_module_at_a_time() -> None:
    """The largest parameter is all there ever is."""
    assert most_of_a_recorded_pass(NEVER) == 100


def test_a_second_forward_holds_the_weights_it_has_read() -> None:
    """A checkpoint's hooks keep 30 + 50 elements until backward has read them."""
    again = Stack(((), (), (10,), ()), ((LAYER, 1, HELD),), ((10,),))
    bare = Limits(prefetch=0, live=0, reuse=0, persist=0)
    assert max(gathered(again, bare).layers[0]) == 30 + 50


def test_gathers_are_padded_to_the_ranks() -> None:
    """100 elements on 8 ranks are 104."""
    to, trace = Tensors(), Trace(stack(NEVER))
    state = Gathering(trace, Limits(persist=0), to, ranks=8, lane=0, from_host=False)
    Reader(trace, state).advance(trace.begun - 2)
    assert max(to.sizes) == 104


def test_gradients_in_the_bucket_make_room_for_the_slice() -> None:
    """All 40 elements fit into the bucket, of which the slice's 20 are laid out again."""
    runs = (((10, 10), 2),)
    assert reduced_in_order(runs, 40, 20, 2, offload=False) == 0
    assert reduced_in_order(runs, 10, 20, 2, offload=False) == 20 * 2 - 10 * 2


def test_a_gradient_larger_than_the_bucket_stays_beside_its_copy() -> None:
    """40 elements for two ranks are copied whole, and then the slice's parameter is laid out."""
    assert reduced_in_order((((40,), 1),), 10, 20, 2, offload=False) == 40 * 2
