"""What is done once before the trials: packages to import ahead, and DeepSpeed's kernels."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from typing import Any

from gpu_mem_calculator.lab.measure.cases_file import MeasureCase
from gpu_mem_calculator.lab.measure.child_process import Tell, run_in_child

MEGATRON = (
    "megatron.core.models.gpt.gpt_model",
    "megatron.core.optimizer",
    "megatron.core.pipeline_parallel",
)
# Group -> packages that take seconds to import, and that each of its tries needs.
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "deepspeed": ("deepspeed",),
    "deepspeed-offload": ("deepspeed",),
    "lora": ("peft", "bitsandbytes"),
    "qlora": ("peft", "bitsandbytes"),
    "megatron": MEGATRON,
}
BUILDERS = ("FusedAdamBuilder", "CPUAdamBuilder")
KERNELS = "DeepSpeed's kernels"  # the name of the task that compiles them
LONGEST = 300.0  # seconds


def importable(cases: Iterable[MeasureCase]) -> set[str]:
    """The packages of these cases after whose import a process can still be forked to use CUDA."""
    wanted = list(dict.fromkeys(n for case in cases for n in PACKAGES.get(case.group, ())))
    if not wanted:
        return set()
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(len(wanted), mp_context=context) as pool:
        found = list(pool.map(forks_after, wanted))
    return {name for name, safe in zip(wanted, found, strict=True) if safe}


def forks_after(name: str) -> bool:
    """Whether a process that imported a package can be forked to use the GPU."""
    return bool(run_in_child(_import_and_fork, name, LONGEST, lambda _: None).value)


def _import_and_fork(name: str, tell: Tell) -> bool:
    import_module(name)
    return not run_in_child(_use_gpu, None, LONGEST, lambda _: None).error


def _use_gpu(_: Any, tell: Tell) -> None:
    torch = import_module("torch")
    torch.zeros(1, device="cuda").item()


def import_packages(case: MeasureCase, safe: set[str]) -> None:
    """Import what the tries of a case need, in the process that forks them."""
    for name in PACKAGES.get(case.group, ()):
        if name in safe:
            import_module(name)


def uses_deepspeed(case: MeasureCase) -> bool:
    """Whether a case needs DeepSpeed's kernels."""
    return "deepspeed" in PACKAGES.get(case.group, ())


def compile_kernels() -> None:
    """Compile DeepSpeed's optimizers, which it does at first use; a process that finds them loads
    them at once.
    """
    major, minor = import_module("torch").cuda.get_device_capability()
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", f"{major}.{minor}")  # as the jobs set it
    os.environ.setdefault("DS_SKIP_CUDA_CHECK", "1")
    builders = import_module("deepspeed.ops.op_builder")
    for name in BUILDERS:
        getattr(builders, name)().load(verbose=False)
