"""Optimizers: all that is true of each, in one row.

States have the dtype of the parameters that are stepped, unless a row says otherwise. torch 2.13
torch/optim (2.11 is the same), bitsandbytes 0.50.2 optim. Temporaries were checked against traces
of torch's own step on the CPU, and on a GPU where a row says so. What a step takes in seconds is in
`timing/curves/optimizers.py`; which optimizers an engine has, the engine says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ..ledger.num import EMPTY, Bytes, Num, ceil_div, sized
from ..ledger.source import Source, code

FOREACH, FUSED, FORLOOP = "foreach", "fused", "forloop"
BITSANDBYTES = "bitsandbytes.optim"
MIN_8BIT_ELEMENTS = 4096  # smaller tensors keep fp32 states (bitsandbytes optimizer.py:492-529)
PAGED_ELEMENTS = 100_000  # smaller tensors are not paged (bitsandbytes optimizer.py:383-390)


class Optimizer(Struct, frozen=True, kw_only=True):
    """One row of the table.

    - `title`: its name for people; `optim`: the values of transformers.Trainer's `optim` that make
      it, each with the implementation that it means, or ""; `aliases`: other words for it.
    - `free`: arguments of its class that change no tensor.
    - `source`: of its states and temporaries.
    - `make`: the module and class that a job makes; `arguments`: of the class, besides the learning
      rate and the implementation.
    - `measured`: a measured or traced run in the tests has it.
    - `timed_as`: "optimizer", or "optimizer implementation", whose measured seconds it takes where
      it has none of its own; an answer with seconds says so.
    - `states`: tensors of the parameter's size and dtype; `bits`: their width where it is fixed.
    - `block`: elements that share an fp32 scale (8-bit states).
    - `narrow`: the optimizer that is the same with 8-bit states, and worth trying.
    - `merged`: how many states are one tensor.
    - `foreach`: temporaries at the peak of a foreach step, in tensors as large as all parameters;
      `forloop`: of a for loop, in tensors as large as the largest parameter; `copies`: fp32 copies
      of a 16-bit parameter and its gradient, besides.
    - `copied_by_decay`: weight decay is added to a copy of all gradients.
    - `factored`: one row and one column of second moments instead of a whole tensor.
    - `decayed_first`: parameters are stepped in the order of transformers.Trainer: those that decay
      first (trainer.py create_optimizer).
    - `paged`: states are in unified memory, which the driver moves to the host.
    - `from_start`: the states exist when the optimizer is made.
    - `matrices`: Newton-Schulz iterations in bf16, one matrix at a time.
    - `default`: the implementation that torch chooses on a GPU.
    """

    title: str
    optim: Mapping[str, str] = {}
    aliases: Mapping[str, str] = {}
    free: tuple[str, ...] = ()
    source: Source
    make: str
    arguments: Mapping[str, Any] = {}
    measured: bool = True
    timed_as: str = ""
    states: int
    bits: int = 0
    block: int = 0
    narrow: str = ""
    merged: int = 1
    foreach: int = 0
    forloop: int = 0
    copies: int = 0
    copied_by_decay: bool = False
    factored: bool = False
    decayed_first: bool = False
    paged: bool = False
    from_start: bool = False
    matrices: bool = False
    implementations: tuple[str, ...] = (FOREACH, FUSED, FORLOOP)
    default: str = FOREACH

    @property
    def of_bitsandbytes(self) -> bool:
        """Whether bitsandbytes steps it, in one fused kernel a tensor."""
        return self.make.startswith(BITSANDBYTES)


def _kernel(
    kind: str, states: int, bits: int, *optim: str, paged: bool = False, **more: Any
) -> Optimizer:
    """An optimizer of bitsandbytes, by its class: fused kernels, one tensor at a time."""
    row: dict[str, Any] = {
        "title": f"{'paged ' * paged}{'8-bit ' * (bits == 8)}{kind}",
        "optim": dict.fromkeys(optim, ""),
        "source": code(f"bitsandbytes 0.50.2 optim/{kind.lower()}.py and optim/optimizer.py"),
        "make": f"{BITSANDBYTES}:{kind}",
        "arguments": {"optim_bits": bits, **({"is_paged": True} if paged else {})},
        "states": states,
        "bits": bits,
        "block": 256 if bits == 8 else 0,
        "paged": paged,
        "implementations": (),
        "default": FUSED,
    }
    return Optimizer(**{**row, **more})


def _ademamix(bits: int, optim: str, *, paged: bool = False) -> Optimizer:
    """bitsandbytes' AdEMAMix: state1 holds both averages of the gradient (init_state)."""
    free = ("beta1", "beta2", "beta3", "alpha", "eps", "t_alpha", "t_beta3")
    more = {"merged": 2, "free": free, "measured": False}
    return _kernel("AdEMAMix", 3, bits, optim, paged=paged, **more)


ADAM_CODE = code("torch 2.13 optim/adam.py:704-799 and :544-546")
SGD_CODE = code("torch 2.13 optim/sgd.py:429-511")
# foreach: sqrt(exp_avg_sq) of every parameter, 0 B off in 15 measured runs; for loop: a square
# root and its quotient
_ADAMW = Optimizer(
    title="AdamW",
    optim={"adamw_torch": "", "adamw_torch_fused": FUSED},
    aliases={"adamw_apex_fused": FUSED, "adamw_hf": FORLOOP},
    source=ADAM_CODE,
    make="torch.optim:AdamW",
    states=2,
    narrow="adamw_8bit",
    foreach=1,
    forloop=2,
)
# every operation is in place
_SGD = Optimizer(
    title="SGD",
    optim={"sgd": ""},
    free=("dampening", "nesterov", "momentum"),
    source=SGD_CODE,
    make="torch.optim:SGD",
    timed_as="sgd foreach",
    states=0,
    copied_by_decay=True,
)
OPTIMIZERS: Mapping[str, Optimizer] = {
    "adamw": _ADAMW,
    "adam": replace(
        _ADAMW, title="Adam", optim={}, aliases={}, make="torch.optim:Adam", timed_as="adamw"
    ),
    "sgd": _SGD,
    "sgd_momentum": replace(
        _SGD,
        title="SGD with momentum",
        optim={},
        free=(),
        arguments={"momentum": 0.9},
        timed_as="sgd_momentum foreach",
        states=1,
    ),
    # the root of the sums, and the gradients times the learning rate
    "adagrad": Optimizer(
        title="Adagrad",
        optim={"adagrad": ""},
        free=("lr_decay", "eps"),
        source=code("torch 2.13 optim/adagrad.py:430-466"),
        make="torch.optim:Adagrad",
        states=1,
        foreach=2,
        from_start=True,
        implementations=(FOREACH,),
    ),
    # the root of the averages
    "rmsprop": Optimizer(
        title="RMSprop",
        optim={"rmsprop": ""},
        free=("alpha", "eps"),
        source=code("torch 2.13 optim/rmsprop.py:430-470"),
        make="torch.optim:RMSprop",
        states=1,
        foreach=1,
        copied_by_decay=True,
        implementations=(FOREACH,),
    ),
    # foreach=None stays a for loop, which holds one estimate; foreach holds those of every matrix
    "adafactor": Optimizer(
        title="Adafactor",
        source=code("torch 2.13 optim/_adafactor.py:366-416, :564-599 and :636-639"),
        make="torch.optim:Adafactor",
        timed_as="adafactor foreach",
        states=0,
        factored=True,
        foreach=1,
        forloop=1,
        implementations=(FOREACH, FORLOOP),
        default=FORLOOP,
    ),
    # states in fp32; the squared gradient and its sum with eps, beside fp32 copies of a 16-bit
    # gradient and parameter; made as its Trainer does (trainer_optimizer.py)
    "adafactor_transformers": Optimizer(
        title="Adafactor of transformers",
        optim={"adafactor": ""},
        source=code("transformers 5.17.0 optimization.py Adafactor.step"),
        make="transformers.optimization:Adafactor",
        arguments={"scale_parameter": False, "relative_step": False},
        timed_as="adafactor foreach",
        states=0,
        bits=32,
        factored=True,
        forloop=2,
        copies=2,
        decayed_first=True,
        implementations=(),
        default=FORLOOP,
    ),
    "adamw_8bit": _kernel("AdamW", 2, 8, "adamw_bnb_8bit", "adamw_8bit", aliases={"adamw8bit": ""}),
    "paged_adamw": _kernel("AdamW", 2, 32, "paged_adamw_32bit", paged=True),
    "paged_adamw_8bit": _kernel(
        "AdamW", 2, 8, "paged_adamw_8bit", paged=True, aliases={"pagedadamw8bit": ""}
    ),
    "ademamix": _ademamix(32, "ademamix"),
    "ademamix_8bit": _ademamix(8, "ademamix_8bit"),
    "paged_ademamix": _ademamix(32, "paged_ademamix_32bit", paged=True),
    "paged_ademamix_8bit": _ademamix(8, "paged_ademamix_8bit", paged=True),
    "lion": _kernel("Lion", 1, 32, "lion_32bit"),
    "lion_8bit": _kernel("Lion", 1, 8, "lion_8bit"),
    "paged_lion": _kernel("Lion", 1, 32, "paged_lion_32bit", paged=True, measured=False),
    "paged_lion_8bit": _kernel("Lion", 1, 8, "paged_lion_8bit", paged=True, measured=False),
    "rmsprop_bnb": _kernel(
        *("RMSprop", 1, 32, "rmsprop_bnb", "rmsprop_bnb_32bit"),
        title="RMSprop of bitsandbytes",
        measured=False,
    ),
    "rmsprop_bnb_8bit": _kernel("RMSprop", 1, 8, "rmsprop_bnb_8bit", measured=False),
    # a for loop only
    "muon": Optimizer(
        title="Muon",
        source=code("torch 2.13 optim/_muon.py:365"),
        make="torch.optim:Muon",
        states=1,
        matrices=True,
        implementations=(FORLOOP,),
        default=FORLOOP,
    ),
}


def optimizer_name(text: str) -> str:
    """The name of an optimizer as rows have it: `AdamW-8bit` is adamw_8bit."""
    return text.lower().replace("-", "_")


def state_bytes(row: Optimizer, elements: Num, bits: int) -> Bytes:
    """Bytes of optimizer states for `elements` parameters of `bits`.

    8-bit states add one fp32 scale for each block of 256 (bitsandbytes functional.py, blockwise);
    bitsandbytes' Lion has fp32 states for every dtype (optimizer.py:374-390). Tensors under 4,096
    elements have fp32 states and are counted here like larger ones: see `tensor_state_bytes`.
    """
    width = row.bits or bits
    size = sized(elements * row.states, width)
    if row.block:
        size = size + sized(row.states * ceil_div(elements, row.block), 32)
    return size


def tensor_state_bytes(row: Optimizer, elements: int, bits: int) -> Bytes:
    """Bytes of the states of one tensor, with bitsandbytes' rule for small ones."""
    if row.block and elements < MIN_8BIT_ELEMENTS:
        return sized(row.states * elements, 32)
    return state_bytes(row, elements, bits)


def tensor_states(row: Optimizer, elements: int, bits: int) -> list[Bytes]:
    """Bytes of each state of one tensor, then of the scales of 8-bit ones.

    bitsandbytes' paged states are no torch tensors and are left out.
    """
    small = row.block and elements < MIN_8BIT_ELEMENTS
    width, scales = 32 if small else row.bits or bits, ceil_div(elements, row.block or 1)
    counts = [row.merged, *[1] * (row.states - row.merged)] if row.states else []
    state = [] if paged_bytes(row, elements, bits) else [sized(elements * n, width) for n in counts]
    return state + ([] if small or not row.block else [sized(scales * n, 32) for n in counts])


def by_width(
    row: Optimizer, sizes: Iterable[tuple[int, int]], wide: Iterable[int]
) -> Iterator[tuple[Optimizer, int, int]]:
    """(row, elements, how many) of the parameters; `wide`: elements of those whose states have 32
    bits where the others' have 8 (bitsandbytes 0.50.2 optim/optimizer.py GlobalOptimManager).
    """
    left, wide_row = Counter(wide), replace(row, bits=32, block=0)
    for elements, count in sizes:
        found = min(left[elements], count) if row.block else 0
        left[elements] -= found
        yield from ((one, elements, n) for one, n in ((wide_row, found), (row, count - found)) if n)


def paged_bytes(row: Optimizer, elements: int, bits: int) -> Bytes:
    """Bytes of one tensor's paged states: all but the scales, from 100,000 elements on.

    bitsandbytes 0.50.2 optim/optimizer.py:383-390 get_state_buffer; the scales are torch tensors
    on the GPU (init_state).
    """
    if not row.paged or elements < PAGED_ELEMENTS:
        return EMPTY
    return sized(row.states * elements, row.bits or bits)
