"""DeepSpeed's ZeRO-2 and ZeRO-3 memory tables, without DeepSpeed and without torch.

The functions named ``estimate_zero*`` have the signatures, the return values and the printed text
of DeepSpeed's (0.19.8: ``deepspeed/runtime/zero/stage_1_and_2.py`` and ``stage3.py``), but for
two things. An option prints as ``cpu`` or ``none`` on every Python, where DeepSpeed prints
``OffloadDeviceEnum.cpu`` on Python 3.11 and newer; and parameters of a model on the meta device,
whose data pointers are all 0, are counted each, where DeepSpeed counts one of them.

As in DeepSpeed, "GB" in the text is 2**30 bytes, Adam is assumed, stage 1 has no formula (its
users get stage 2's), and activations and buffers are left out.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

from ...ledger.units import GIB

__all__ = [
    "ParameterModel",
    "estimate_zero2_model_states_mem_needs",
    "estimate_zero2_model_states_mem_needs_all_cold",
    "estimate_zero2_model_states_mem_needs_all_live",
    "estimate_zero3_model_states_mem_needs",
    "estimate_zero3_model_states_mem_needs_all_cold",
    "estimate_zero3_model_states_mem_needs_all_live",
    "model_to_params",
    "zero2_bytes",
    "zero2_table",
    "zero3_table",
]

_COLUMNS: Final = "  per CPU  |  per GPU |   Options"
_ZERO3_ROWS: Final = ((True, True), (True, False), (False, False))
"""(cpu_offload, cpu_offload_params) in the order DeepSpeed prints them."""


class ParameterModel(Protocol):
    """The methods of a ``torch.nn.Module`` that are called here."""

    def parameters(self, recurse: bool = True) -> Iterable[Any]:
        """Yield the parameters; each has ``numel()`` and ``data_ptr()``."""

    def modules(self) -> Iterator["ParameterModel"]:
        """Yield the module itself and every module inside it."""


def _total_gpus(num_gpus_per_node: int, num_nodes: int) -> int:
    """The number of GPUs; a ValueError where it is below one."""
    for name, value in (("num_gpus_per_node", num_gpus_per_node), ("num_nodes", num_nodes)):
        if value < 1:
            raise ValueError(f"{name}={value} is below 1; try 1")
    return num_nodes * num_gpus_per_node


def zero2_bytes(
    total_params: float,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    cpu_offload: bool = True,
    additional_buffer_factor: float = 1.5,
    *,
    legacy: bool = False,
) -> tuple[int, int]:
    """Bytes of ZeRO-2 model states: (per CPU node, per GPU).

    Source: DeepSpeed 0.19.8 stage_1_and_2.py, ``estimate_zero2_model_states_mem_needs``. With P
    parameters and N GPUs, offloaded: GPU 2P, CPU P × max(4N, 16) × factor. Not offloaded: GPU
    2P + 18P/N (16-bit weights replicated; 16-bit and fp32 gradients, fp32 weights, momentum and
    variance sharded), CPU 4P × GPUs per node × factor.

    `legacy` is the formula before 0.14.3 (pull request 5099), which DeepSpeed's documentation still
    shows: not offloaded, GPU 4P + 16P/N.
    """
    total_gpus = _total_gpus(num_gpus_per_node, num_nodes)
    if cpu_offload:
        gpu = 2 * total_params
        cpu = total_params * max(4 * total_gpus, 16) * additional_buffer_factor
    else:
        replicated, sharded = (4, 16) if legacy else (2, 18)
        gpu = replicated * total_params + int(sharded * total_params / total_gpus)
        cpu = total_params * 4 * num_gpus_per_node * additional_buffer_factor
    return int(cpu), int(gpu)


def estimate_zero2_model_states_mem_needs(
    total_params: float,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    cpu_offload: bool = True,
    additional_buffer_factor: float = 1.5,
) -> tuple[int, int]:
    """DeepSpeed's function of this name: bytes (per CPU node, per GPU); see `zero2_bytes`."""
    return zero2_bytes(
        total_params, num_gpus_per_node, num_nodes, cpu_offload, additional_buffer_factor
    )


def estimate_zero3_model_states_mem_needs(
    total_params: float,
    largest_layer_params: float,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    cpu_offload: bool = True,
    cpu_offload_params: bool = True,
    zero_init: bool = True,
    additional_buffer_factor: float = 1.5,
) -> tuple[int, int, int]:
    """DeepSpeed's function of this name: bytes (per CPU node, per GPU, largest layer).

    Source: DeepSpeed 0.19.8 stage3.py. The largest layer, gathered with its gradients, takes
    4 bytes a parameter on the GPU, plus the shards that are not offloaded: 18P/N with
    nothing offloaded, 2P/N with the optimizer offloaded, none with both. The CPU holds 18P or 16P
    over the nodes, or the whole fp32 model once per GPU while it is built without `zero_init`.
    """
    total_gpus = _total_gpus(num_gpus_per_node, num_nodes)
    per_node = 1 / num_nodes
    largest_layer = 4 * largest_layer_params
    gpu = largest_layer
    if cpu_offload:
        per_parameter = 18 if cpu_offload_params else 16
        gpu += 0 if cpu_offload_params else int(2 * total_params / total_gpus)
        # DeepSpeed's order of operations, which decides the last bit of a float.
        if zero_init:
            cpu = total_params * per_parameter * per_node
        else:
            cpu = total_params * max(4 * num_gpus_per_node, per_parameter * per_node)
    else:
        gpu += int(18 * total_params / total_gpus)
        cpu = (largest_layer_params if zero_init else total_params) * 4 * num_gpus_per_node
    return int(cpu * additional_buffer_factor), int(gpu), int(largest_layer)


def model_to_params(model: ParameterModel) -> tuple[int, int]:
    """Count a model's parameters and those of its largest single module, as stage3.py does.

    Shared parameters count once. DeepSpeed compares ``data_ptr()``; where there is no data (0 on
    the meta device, 0 or an error for a fake tensor) the objects themselves are compared.
    """
    parameters = list(model.parameters())
    total = sum({_storage_key(p): int(p.numel()) for p in parameters}.values())
    largest = max(
        (sum(int(p.numel()) for p in m.parameters(recurse=False)) for m in model.modules()),
        default=0,
    )
    return total, largest


def _storage_key(parameter: Any) -> tuple[str, int]:
    """A key that is equal for two parameters which share their storage."""
    try:
        pointer = int(parameter.data_ptr())
    except RuntimeError:
        pointer = 0
    return ("data", pointer) if pointer else ("object", id(parameter))


def _heading(num_nodes: int, num_gpus_per_node: int, software: str) -> list[str]:
    """The lines above the rows of a table."""
    nodes = "nodes" if num_nodes > 1 else "node"
    gpus = "GPUs" if num_gpus_per_node > 1 else "GPU"
    return [
        "Estimated memory needed for params, optim states and gradients for a:",
        f"HW: Setup with {num_nodes} {nodes}, {num_gpus_per_node} {gpus} per node.",
        f"SW: Model with {software}.",
        _COLUMNS,
    ]


def _row(cpu_bytes: int, gpu_bytes: int, options: str) -> str:
    """One row of a table; sizes in GiB, which DeepSpeed writes as GB."""
    return f" {cpu_bytes / GIB:7.2f}GB | {gpu_bytes / GIB:6.2f}GB | {options}"


def _device(offloaded: bool) -> str:
    """``cpu`` or ``none``, padded as DeepSpeed pads it."""
    return f"{'cpu' if offloaded else 'none':4}"


def zero2_table(
    total_params: float,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = 1.5,
    *,
    legacy: bool = False,
) -> str:
    """DeepSpeed's ZeRO-2 table as text; `legacy` as in `zero2_bytes`."""
    lines = _heading(num_nodes, num_gpus_per_node, f"{int(total_params / 1e6)}M total params")
    for offload in (True, False):
        cpu, gpu = zero2_bytes(
            total_params,
            num_gpus_per_node,
            num_nodes,
            offload,
            additional_buffer_factor,
            legacy=legacy,
        )
        lines.append(_row(cpu, gpu, f"offload_optimizer={_device(offload)}"))
    return "\n".join(lines)


def zero3_table(
    total_params: float,
    largest_layer_params: float,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = 1.5,
) -> str:
    """DeepSpeed's ZeRO-3 table as text."""
    largest = f"{int(largest_layer_params / 1e6)}M largest layer params"
    software = f"{int(total_params / 1e6)}M total params, {largest}"
    lines = _heading(num_nodes, num_gpus_per_node, software)
    for optimizer, param in _ZERO3_ROWS:
        for zero_init in (True, False):
            cpu, gpu, _ = estimate_zero3_model_states_mem_needs(
                total_params,
                largest_layer_params,
                num_gpus_per_node,
                num_nodes,
                optimizer,
                param,
                zero_init,
                additional_buffer_factor,
            )
            devices = f"offload_param={_device(param)}, offload_optimizer={_device(optimizer)}"
            lines.append(_row(cpu, gpu, f"{devices}, zero_init={int(zero_init)}"))
    return "\n".join(lines)


def estimate_zero2_model_states_mem_needs_all_live(
    model: ParameterModel,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = 1.5,
) -> None:
    """Print DeepSpeed's ZeRO-2 table for a torch `model`."""
    total, _ = model_to_params(model)
    print(zero2_table(total, num_gpus_per_node, num_nodes, additional_buffer_factor))


def estimate_zero2_model_states_mem_needs_all_cold(
    total_params: float,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = 1.5,
) -> None:
    """Print DeepSpeed's ZeRO-2 table for a number of parameters."""
    print(zero2_table(total_params, num_gpus_per_node, num_nodes, additional_buffer_factor))


def estimate_zero3_model_states_mem_needs_all_live(
    model: ParameterModel,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = 1.5,
) -> None:
    """Print DeepSpeed's ZeRO-3 table for a torch `model`."""
    total, largest = model_to_params(model)
    print(zero3_table(total, largest, num_gpus_per_node, num_nodes, additional_buffer_factor))


def estimate_zero3_model_states_mem_needs_all_cold(
    total_params: float,
    largest_layer_params: float,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = 1.5,
) -> None:
    """Print DeepSpeed's ZeRO-3 table for a number of parameters."""
    counts = (total_params, largest_layer_params)
    print(zero3_table(*counts, num_gpus_per_node, num_nodes, additional_buffer_factor))
