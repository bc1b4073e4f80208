"""The handful of instants has the same peak as replaying every layer of every micro-batch."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_mem_calculator.run.phases import FORWARD
from gpu_mem_calculator.step.instants import LayerRange, in_flight, step

SIZES = {
    "layers": st.lists(st.tuples(st.integers(1, 5), st.integers(1, 99), st.integers(0, 99)),
                       min_size=1, max_size=3),
    "pp": st.integers(1, 5), "micro": st.integers(1, 9), "head": st.integers(0, 500),
    "forward": st.integers(0, 99), "backward": st.integers(0, 99),
}  # fmt: skip


def replayed(layers: list[tuple[int, int, int]], pp: int, stage: int, micro: int,
             head: int, forward: int, backward: int) -> int:  # fmt: skip
    """Walk 1F1B layer by layer: activations stack up, gradients appear once and stay."""
    each = [(act, grad) for count, act, grad in layers for _ in range(count)]
    live = peak = grads = 0
    done = False

    def run_forward() -> None:
        nonlocal live, peak
        for act, _ in each:
            peak = max(peak, live + grads + act + forward)
            live += act

    def run_backward() -> None:
        nonlocal live, peak, grads, done
        peak = max(peak, live + grads + head)
        for act, grad in reversed(each):
            peak = max(peak, live + grads + (0 if done else grad) + backward)
            grads += 0 if done else grad
            live -= act
        done = True

    warm = min(pp - stage - 1, micro)
    for _ in range(warm):
        run_forward()
    for _ in range(micro - warm):
        run_forward()
        run_backward()
    for _ in range(warm):
        run_backward()
    return max(peak, live + grads)


@given(stage=st.integers(0, 4), **SIZES)
@settings(max_examples=300, deadline=None)
def test_the_beats_have_the_peak_of_a_replayed_step(
    layers: list[tuple[int, int, int]], pp: int, stage: int, micro: int, head: int,
    forward: int, backward: int,
) -> None:  # fmt: skip
    """Whatever the sizes, no instant that matters is missing and none is too high."""
    stage = min(stage, pp - 1)
    beats = step(
        tuple(LayerRange(str(i), count) for i, (count, _, _) in enumerate(layers)),
        flight=in_flight(pp, stage, micro), micro_batches=micro,
    )  # fmt: skip
    highest = 0
    for beat in beats:
        total = sum(layers[i][1] * n for i, n in enumerate(beat.saved))
        total += sum(layers[i][2] * n for i, n in enumerate(beat.grads))
        if beat.work == "layer":
            _, act, grad = layers[beat.stretch]
            passing = beat.instant.phase == FORWARD
            total += act + (forward if passing else backward)
            total += 0 if passing or beat.later else grad
        if beat.work == "head" and beat.instant.phase != FORWARD:
            total += head
        highest = max(highest, total * beat.instant.present)
    assert highest == replayed(layers, pp, stage, micro, head, forward, backward)
