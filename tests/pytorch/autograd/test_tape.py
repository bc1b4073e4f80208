"""A walk follows autograd: what is saved, when it is freed, and the peaks."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_mem_calculator.pytorch.autograd.events import EventRecorder
from gpu_mem_calculator.pytorch.autograd.op_walk import EVERY_SECOND_MM, walk_by_operation
from gpu_mem_calculator.pytorch.autograd.peak import PeakTracker
from gpu_mem_calculator.pytorch.autograd.tape import MM, Tape
from gpu_mem_calculator.pytorch.autograd.walk import PeakParts, walk


def test_a_linear_layer_keeps_its_input() -> None:
    """x is saved for the weight's gradient; backward allocates the gradients of both inputs."""
    tape = Tape()
    x, weight = tape.value("x", 100, 16), tape.param("w", 30, 16)
    y = tape.op("y", x, weight, elements=50, saves=(x, weight))
    result = walk(tape, x, y)
    assert result.saved == (("x", 200),)
    assert result.forward == PeakParts(200 + 100)
    assert result.backward == PeakParts(act=200 + 100 + 200, grad=60)
    assert result.later.total == result.backward.total


def test_a_tensor_that_is_not_saved_is_freed_after_its_last_use() -> None:
    """a is gone when c is result."""
    tape = Tape()
    x = tape.value("x", 10, 8)
    b = tape.op("b", tape.op("a", x))
    c = tape.op("c", b)
    result = walk(tape, x, c)
    assert result.saved == ()
    assert result.forward.total == 20
    assert result.transient == result.forward


def test_python_names_hold_a_tensor() -> None:
    """A name that is still in scope keeps its tensor."""
    tape = Tape()
    x = tape.value("x", 10, 8)
    a = tape.op("a", x)
    b = tape.op("b", a)
    c = tape.op("c", b)
    tape.hold(a)
    assert walk(tape, x, c).forward.total == 30


def test_a_residual_shares_its_gradient() -> None:
    """An addition passes one gradient tensor to both inputs; the branch adds to it in place."""
    tape = Tape()
    x = tape.value("x", 10, 8)
    branch = tape.op("branch", x, save_out=True)
    y = tape.op("y", x, branch, passes=True)
    result = walk(tape, x, y)
    # kept branch, the output's gradient (which is the residual's too), the branch's new one
    assert result.backward.total == 10 + 10 + 10


def test_a_shared_gradient_is_summed_into_a_new_tensor() -> None:
    """Where the first gradient is still shared, the sum is a new tensor."""
    tape = Tape()
    x = tape.value("x", 10, 8)
    y = tape.op("y", x, x, passes=True)
    assert walk(tape, x, y).backward.total == 20


def test_views_have_one_storage() -> None:
    """Keeping one part of a split keeps the whole; their gradients are joined in a new tensor."""
    tape = Tape()
    x = tape.value("x", 30, 8)
    q, k, v = tape.split("split", tape.op("qkv", x), [("q", 10), ("k", 10), ("v", 10)])
    y = tape.op("y", q, k, v, elements=10, saves=(v,))
    result = walk(tape, x, y)
    assert result.saved == (("qkv", 30),)
    assert result.backward.total == 30 + 10 + 30


def test_selective_recompute_drops_what_core_attention_makes() -> None:
    """Saved: its input and its output. Backward recomputes the rest."""
    tape = Tape()
    x = tape.value("x", 10, 8)
    q = tape.op("q", x, save_out=True)
    tape.core = True
    scores = tape.op("scores", q, elements=1000, saves=(q,))
    probs = tape.op("probs", scores, save_out=True)
    mixed = tape.op("mixed", probs, elements=10)
    tape.core = False
    y = tape.op("y", mixed, saves=(mixed,))
    plain, again = walk(tape, x, y), walk(tape, x, y, recompute_core=True)
    assert dict(plain.saved) == {"q": 10, "probs": 1000, "mixed": 10}
    assert dict(again.saved) == {"q": 10, "mixed": 10}
    assert again.backward.total == plain.backward.total


def test_a_cast_to_the_same_width_is_nothing() -> None:
    """x.to(x.dtype) allocates no tensor."""
    tape = Tape()
    x = tape.value("x", 10, 16)
    assert tape.cast(x, 16) is x
    assert tape.cast(x, 32).bytes == 40
    assert x.elements() == 10


def test_arrays_walk_like_numbers() -> None:
    """Each element of an array has the peak it would have alone."""
    sizes = np.array([1, 50], dtype=np.int64)

    def peak(size: object) -> object:
        tape = Tape()
        x = tape.value("x", size, 8)
        wide = tape.op("wide", x, elements=40, temp=20)
        y = tape.op("y", wide, elements=size, saves=(wide,))
        return walk(tape, x, y).backward.total

    assert [int(n) for n in peak(sizes)] == [peak(1), peak(50)]  # type: ignore[attr-defined]


def test_a_checkpoint_holds_the_input_of_its_block_once() -> None:
    """A block that keeps its input shares it with the checkpoint; another holds it in addition."""
    kept, other = Tape(), Tape()
    x = kept.value("x", 10, 8)
    y = kept.op("y", x, saves=(x,))
    assert walk(kept, x, y, checkpoint="hooks").backward == walk(kept, x, y).backward
    x = other.value("x", 10, 8)
    y = other.op("y", x, save_out=True)
    more = walk(other, x, y, checkpoint="hooks").backward.total - walk(other, x, y).backward.total
    assert more == 10


def test_a_checkpoint_frees_saved_tensors_before_gradients_are_summed() -> None:
    """A weight's product is summed after the operation has returned and its saved tensors are
    freed, unless the checkpoint is reentrant.
    """
    tape = Tape()
    x, weight = tape.value("x", 10, 8), tape.param("w", 1, 8)
    middle = tape.op("middle", x)
    y = tape.op("y", middle, weight, saves=(middle, weight), back_temp=10 + 7, settle=7)
    plain, reentrant = walk(tape, x, y), walk(tape, x, y, checkpoint="reentrant")
    # kept middle, gradients of y, middle and w, the product, the partial sums
    assert plain.backward.total == 10 + 10 + 10 + 1 + 10 + 7
    assert reentrant.backward.total == plain.backward.total + 10
    assert walk(tape, x, y, checkpoint="hooks").backward.total == reentrant.backward.total - 7


def test_a_tracker_begins_at_nothing() -> None:
    """An instant of one byte is its peak."""
    tracker = PeakTracker()
    assert tracker.moment == PeakParts(0, 0, 0)
    tracker.see(0, 1, 0)
    assert (tracker.total, tracker.moment) == (1, PeakParts(0, 1, 0))


@pytest.mark.parametrize(("elements", "others"), [(30, []), (31, [1]), (130, [100])])
def test_weights_that_no_operation_reads_are_added(elements: int, others: list[int]) -> None:
    """As one more weight of the first operation, so that the tape has all elements."""
    tape = Tape()
    x, weight = tape.value("x", 100, 16), tape.param("w", 30, 16)
    tape.op("y", x, weight, elements=50, saves=(x, weight))
    tape.add_other_weights(elements, 16)
    sizes = [int(one.elements()) for one in tape.weights()]
    assert sizes == [30, *others]


def test_what_runs_once_has_neither_input_nor_output() -> None:
    """Start-up's events, such as making a mask, belong to no block: -1 is no tensor."""
    recorder = EventRecorder()
    mask = recorder.make(64)
    events = recorder.forward_only((mask,))
    assert (events.entry, events.exit) == (-1, -1)
    assert (events.forward, events.left) == ((mask,), (mask,))


def test_the_peak_after_the_first_gradient_has_the_workspace() -> None:
    """A norm before a linear layer: its input, both gradients and its workspace are alive."""
    tape = Tape()
    x, scale, weight = tape.value("x", 10, 8), tape.param("n", 3, 8), tape.param("w", 5, 8)
    normed = tape.op("norm", x, scale, saves=(x,), back_temp=7)
    y = tape.op("y", normed, weight, elements=20, saves=(normed, weight))
    assert walk(tape, x, y).after_first == 10 + 10 + 10 + 7


def test_a_kept_result_that_recompute_does_not_reach_is_freed() -> None:
    """Recompute ends at the first operation, whose own result forward has kept."""
    tape = Tape()
    x, weight = tape.value("x", 10, 8), tape.param("w", 5, 8)
    product = tape.op("product", x, weight, elements=20, saves=(x, weight), kernel=MM)
    y = tape.op("y", product, elements=30)
    events = walk_by_operation(tape, x, y, (EVERY_SECOND_MM,)).script
    kept = events.sizes.index(20)
    assert events.forward == (kept, events.exit)
    assert events.backward[-1] == ~kept  # with the checkpoint
