"""Constants that were estimated from measured steps, each with its meaning and its rows.

Everything else comes from curves of kernels or from a framework's code. `docs/timing.md` has the
rows; a constant was estimated on the rows with an even number in their file and checked on the
others.
"""

from __future__ import annotations

# Share of a card's peak that matmuls reach while power limits its clocks, by compute capability.
# Curves are measured with cold cards and pauses; a training step runs for hours.
# 8.0: Korthikanti, SC21, MegaScale; 9.0: NVIDIA's recipes of Llama 3.1 without tensor parallelism.
SUSTAINED = {"8.0": 0.74, "9.0": 0.67, "10.0": 0.56}
SUSTAINED_ELSEWHERE = 0.65
# Share of a tensor-parallel collective that stays exposed if Transformer Engine splits the matmul
# beside it: the first or last of its pieces, and slower matmuls. NVIDIA's recipes of Nemotron-4.
EXPOSED_SHARE = 0.4
# Seconds of the host for one operation of Megatron-DeepSpeed's layers: Python, autograd, and the
# states of random numbers around dropout. vTrain's rows with one sequence a micro-batch.
MEGATRON_DEEPSPEED_OPERATION = 6.0e-5
