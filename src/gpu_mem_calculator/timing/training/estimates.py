"""Constants that were estimated from measured steps, each with its meaning and its rows.

Everything else comes from curves of kernels or from a framework's code. `docs/timing.md` has the
rows. The values were chosen while all rows were visible. On every second row alone, the best ones
are 0.70 for the A100, 0.62 to 0.64 for the H100, 60 to 100 us for LATE_SECONDS, 0.4 to 0.6 for
EXPOSED_SHARE, 67 to 69 us for an operation of Megatron-DeepSpeed, 0.025 to 0.035 for SLOWEST_HOST.
With the values below, tuned dense runs and experts are 4.0 % off on these rows and 3.7 % on the
others, vTrain's 6.2 and 6.1 %. The B200's share is from ten rows, which are all that there are.
"""

from __future__ import annotations

# Share of a card's peak that matmuls reach while power limits its clocks, by a word of its title.
# Curves are measured with pauses; a training step runs for hours. H200: measured, matmuls of 1 s
# each without pause, 0.62 to 0.70. A100: Korthikanti, SC21, MegaScale. H100, B200, GB200: NVIDIA's
# recipes. H800 and A800 are H100 and A100 with fewer links. Others: the mean.
SUSTAINED = {
    **{"H200": 0.67, "H100": 0.62, "A100": 0.72, "B200": 0.56, "B300": 0.56},
    **{"H800": 0.62, "A800": 0.72},
}
SUSTAINED_ELSEWHERE = 0.65
# Seconds by which the last rank of a collective inside a layer is later than the others.
# Korthikanti, MegaScale.
LATE_SECONDS = 6.0e-5
# Share of a tensor-parallel collective that stays exposed if Transformer Engine splits the matmul
# beside it: the first or last of its pieces, and slower matmuls. NVIDIA's recipes of Nemotron-4.
EXPOSED_SHARE = 0.4
# Seconds of the host for one operation of Megatron-DeepSpeed's layers: Python, autograd, and the
# states of random numbers around dropout. vTrain's rows with one sequence a micro-batch.
MEGATRON_DEEPSPEED_OPERATION = 6.9e-5
# Share of the fp32 peak without tensor cores of a batch of 16-bit products whose matrices begin at
# addresses that are no multiples of 16 bytes: cuBLAS then has no tensor core kernel. BigScience's
# rows with heads of 108 and of 150: 10 and 8 TFLOP/s on an A100.
UNALIGNED = 0.5
# By how much the slowest host of a tensor-parallel group is slower than one, for each further rank:
# all wait for it at every collective. vTrain's rows with one sequence a micro-batch.
SLOWEST_HOST = 0.03
# Seconds of the host for one of Megatron's local layers besides its operations, forward and
# backward: states of random numbers, calls of collectives. Three runs of a GPT with 12 layers on 2
# and 4 ranks of tensor parallelism. For one expert of a layer, which run one after another: two
# runs with 4 and 8 experts on a rank. tests/ground_truth/options.jsonl.
LOCAL_LAYER = (1.8e-3, 2.2e-3)
LOCAL_EXPERT = (1.4e-3, 2.1e-3)
