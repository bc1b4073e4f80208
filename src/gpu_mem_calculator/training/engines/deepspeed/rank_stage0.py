"""ZeRO 0, tensor by tensor: deepspeed 0.19.8 runtime/fp16/fused_optimizer.py, bf16_optimizer.py."""

from __future__ import annotations

from .rank import ZeroRank
from .sizes import FP32
from .stage0 import REDUCE_ELEMENTS


class Stage0Rank(ZeroRank):
    """Gradients stay until the step and are all-reduced in flat copies (engine.py:3795)."""

    def epilogue(self) -> None:
        """All-reduce the gradients: a flat copy is closed above 5e8 elements; one gradient alone
        needs none.
        """
        if not self.last or int(self.plan.ranks) == 1:
            return
        filled = count = 0
        for tensor in list(self.grads.values())[::-1]:
            filled, count = filled + self.to.size(tensor), count + 1
            if filled > REDUCE_ELEMENTS * self.plan.width:
                self.make_and_free(filled if count > 1 else 0)
                filled = count = 0
        self.make_and_free(filled if count > 1 else 0)


class Stage0FusedRank(Stage0Rank):
    """FP16_Optimizer around FusedAdam."""

    def startup(self) -> None:
        """Clones, the flat copy of them, masters, and a first step with zero gradients."""
        rank = self.rank
        self.model()
        self.make("clones", *(rank.width * size for size in self.sizes))
        self.make("flat", rank.flat)
        self.free("clones", "model")
        self.make("clone", rank.clone)
        self.make("masters", rank.masters)
        self.free("clone")
        self.make("zeros", rank.step_grad)
        self.states(0, rank)
        self.free("zeros")

    def step(self) -> None:
        """fp32 copies one by one, then flat; the gradients are freed when both exist."""
        tower = () if self.plan.run.frozen else self.plan.run.arch.tower  # zeros: line 285
        sizes = [4 * int(weight.numel) for weight in tower]
        sizes += [2 * self.to.size(tensor) for tensor in list(self.grads.values())[::-1]]
        self.make("wide", *sizes)
        self.make("grad", sum(sizes))
        self.free("wide")
        self.to.free(self.in_order())
        self.update(self.rank.stepping(sum(sizes) // FP32))
        self.free("grad")


class Stage0Fp32Rank(Stage0Rank):
    """fp32: the optimizer steps on the weights themselves."""

    def step(self) -> None:
        """States parameter by parameter, then the gradients are freed."""
        for number, size in enumerate(self.sizes):
            self.states(number, self.rank.stepping(size))
        self.update(self.rank)
        super().step()


class Stage0PipelineRank(Stage0Rank):
    """BF16_Optimizer under a pipeline: masters and states sharded over dp, whole gradients."""

    def startup(self) -> None:
        """The flat copy, masters, and a gradient buffer of the whole stage."""
        rank = self.rank
        self.model()
        self.make("flat", rank.flat)
        self.free("model")
        self.make("clone", rank.clone)
        self.make("masters", rank.masters)
        self.free("clone")
        self.make("buffer", rank.flat)

    def step(self) -> None:
        """fp32 gradients of the slice, beside the stage's own, which go when the step is over."""
        self.make("grad", self.rank.step_grad)
        self.states(0, self.rank)
        self.update(self.rank)
        self.free("grad")
        self.to.free(self.in_order())
