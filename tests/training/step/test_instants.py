"""The few instants of a step have the peak of all layers of all micro-batches."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_mem_calculator.run.phases import FORWARD
from gpu_mem_calculator.training.step.instants import LayerRange, in_flight, step

SIZES = {
    "layers": st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 99), st.integers(0, 99)), min_size=1, max_size=3
    ),
    "pp": st.integers(1, 5),
    "micro": st.integers(1, 9),
    "head": st.integers(0, 500),
    "forward": st.integers(0, 99),
    "backward": st.integers(0, 99),
}


def replayed(
    layers: list[tuple[int, int, int]],
    pp: int,
    stage: int,
    micro: int,
    head: int,
    forward: int,
    backward: int,
) -> int:
    """The peak of 1F1B, layer by layer: activations add up, gradients come once and stay."""
    each = [(act, grad) for count, act, grad in layers for _ in range(count)]
    live = peak = grads = 0
    has_grads = False

    def run_forward() -> None:
        nonlocal live, peak
        for act, _ in each:
            peak = max(peak, live + grads + act + forward)
            live += act

    def run_backward() -> None:
        nonlocal live, peak, grads, has_grads
        peak = max(peak, live + grads + head)
        for act, grad in reversed(each):
            peak = max(peak, live + grads + (0 if has_grads else grad) + backward)
            grads += 0 if has_grads else grad
            live -= act
        has_grads = True

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
def test_the_instants_have_the_peak_of_a_whole_step(
    layers: list[tuple[int, int, int]],
    pp: int,
    stage: int,
    micro: int,
    head: int,
    forward: int,
    backward: int,
) -> None:
    """For all sizes, the highest instant is as high as the step, and none is higher."""
    stage = min(stage, pp - 1)
    instants = step(
        tuple(LayerRange(str(i), count) for i, (count, _, _) in enumerate(layers)),
        flight=in_flight(pp, stage, micro),
        micro_batches=micro,
    )
    highest = 0
    for instant in instants:
        total = sum(layers[i][1] * n for i, n in enumerate(instant.saved))
        total += sum(layers[i][2] * n for i, n in enumerate(instant.grads))
        if instant.work == "layer":
            _, act, grad = layers[instant.stretch]
            forwards = instant.instant.phase == FORWARD
            total += act + (forward if forwards else backward)
            total += 0 if forwards or instant.later else grad
        if instant.work == "head" and instant.instant.phase != FORWARD:
            total += head
        highest = max(highest, total * instant.instant.present)
    assert highest == replayed(layers, pp, stage, micro, head, forward, backward)
