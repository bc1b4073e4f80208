"""The `Estimator` of LLMGPUMemEstimator: model states, activations and one 16-bit buffer.

The numbers are those of pp1230/LLMGPUMemEstimator at c96c73f, to the last bit. For an exact
estimate of a real run use `gpu_mem_calculator.estimate`.
"""

from dataclasses import dataclass

from ...ledger.units import GIB
from .formulas import PARAMETER_BYTES, zero_bytes_per_parameter

__all__ = ["Estimator"]


@dataclass(eq=False, repr=False)
class Estimator:
    """Memory of a dense transformer in GiB, from its sizes alone.

    The names are those of Korthikanti et al. (arXiv 2205.05198): `a` attention heads, `p` pipeline
    stages, `b` micro-batch, `s` sequence length, `h` hidden size, `t` tensor-parallel GPUs, `v`
    vocabulary, `L` layers. As in the original, `optimizer` and `p` are stored and change nothing:
    Adam is assumed, and the first pipeline stage holds as many layers' activations as one GPU.
    """

    model_params: float = 7e9
    optimizer: str = "adam"
    a: int = 32
    p: int = 1
    b: int = 1
    s: int = 512
    h: int = 4096
    t: int = 1
    v: int = 32000
    L: int = 32  # (the paper's name)

    def estimate_gpu_memory_training(
        self, *, b: int | None = None, s: int | None = None, stage: int = 0, gpu_num: int = 1
    ) -> tuple[float, float, float, float]:
        """GiB per GPU of a training step: (total, model, activation, buffer).

        Model: 16P over ZeRO's stages with K = 12 (arXiv 1910.02054, Figure 1). Activation:
        sbhL/t (34 + 5as/h + 4v/(Lh)), Korthikanti equation 1 with 4sbv for the fp32 logits.
        Buffer: 2P. `b` and `s` replace the constructor's for this call.
        """
        batch = self.b if b is None else b
        seq = self.s if s is None else s
        if gpu_num < 1:
            raise ValueError(f"gpu_num={gpu_num} is below 1; try 1")
        replicated, sharded = zero_bytes_per_parameter(stage)
        # The order of the operations is the original's: it decides the last bit of each result,
        # so `layer_activation_bytes`, the same equation in integers, cannot stand here.
        model = (replicated + sharded / gpu_num) * self.model_params
        per_sbh = 34 + 5 * self.a * seq / self.h + 4 * self.v / (self.L * self.h)
        activation = seq * batch * self.h * per_sbh * self.L / self.t
        buffer = PARAMETER_BYTES * self.model_params
        total = model + activation + buffer
        return total / GIB, model / GIB, activation / GIB, buffer / GIB

    def estimate_gpu_memory_inference(self, *, precision: float = 2) -> float:
        """GiB of the weights alone at `precision` bytes a parameter (2: 16-bit, 4: 32-bit)."""
        return precision * self.model_params / GIB
