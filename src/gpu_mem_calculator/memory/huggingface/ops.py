"""The operations that Hugging Face blocks are made of, with torch's own saving rules.

Line numbers refer to transformers 5.17.0 and torch 2.11. Autocast follows torch's CUDA lists
(aten/src/ATen/autocast_mode.h): matmuls and attention run in 16 bits, softmax and sums in fp32;
weights are cast once per forward and kept, activations are cast at every use.
"""

from __future__ import annotations

from msgspec import Struct

from ...ledger.num import Num, ceil_div, choose, larger, smaller
from ...model.blocks import Linear
from ..tape import Tape, Value


class Adapter(Struct, frozen=True):
    """LoRA as PEFT 0.21.2 runs it: y + scaling · B(A(dropout(x)))."""

    rank: int
    targets: frozenset[str]
    bits: int = 32
    dropout: float = 0.0
    dora: bool = False


class Setting(Struct, frozen=True, kw_only=True):
    """How one rank runs a block. Sizes may be ints, arrays or `Sym`s."""

    batch: Num
    seq: Num
    hidden: Num
    bits: int  # of activations between matmuls
    matmul_bits: int  # of matmuls; differs under autocast
    weight_bits: int
    autocast: bool = False
    attention: str = "sdpa"
    cudnn: bool = True  # torch prefers cuDNN's attention on this card
    fused_scan: bool = False  # mamba-ssm's kernels are installed
    training: bool = True
    frozen: bool = False  # the base weights take no gradient
    adapter: Adapter | None = None
    quantization: str | None = None

    @property
    def tokens(self) -> Num:
        """Tokens of one micro-batch on this rank."""
        return self.batch * self.seq


def linear(tape: Tape, setting: Setting, x: Value, layer: Linear) -> Value:
    """torch.nn.Linear (GPT-2's Conv1D alike), with its adapter where there is one."""
    rows = x.elements() // layer.ins[1]
    out = rows * layer.outs[1]
    bits = setting.matmul_bits
    if setting.frozen:
        y = _frozen(tape, setting, x, layer, out)
        adapter = setting.adapter
        if adapter is not None and layer.name.rpartition(".")[2] in adapter.targets:
            y = _adapted(tape, setting, x, y, layer, adapter)
        return y
    weight = _weight(tape, setting, layer.name, layer.ins[1] * layer.outs[1])
    ins = [tape.cast(x, bits), weight]
    work: Num = 0
    if layer.bias:
        ins.append(_weight(tape, setting, f"{layer.name}.bias", layer.outs[1]))
        work = row_sum_workspace(rows, layer.outs[1])
    return tape.op(layer.name, *ins, elements=out, bits=bits, saves=ins[:2], back_temp=work)


def _weight(tape: Tape, setting: Setting, name: str, elements: Num) -> Value:
    """A weight, cast to the matmul's dtype where autocast does."""
    weight = tape.param(f"{name}.weight", elements, setting.weight_bits)
    if setting.weight_bits == setting.matmul_bits:
        return weight
    return tape.op(f"{name}.weight.to", weight, elements=elements, bits=setting.matmul_bits)


def _frozen(tape: Tape, setting: Setting, x: Value, layer: Linear, out: Num) -> Value:
    """A weight without a gradient: its input is not kept; a quantized one is unpacked twice.

    bitsandbytes 0.50.2 autograd/_functions.py: MatMul4Bit unpacks the weight in forward and
    again in backward; MatMul8bitLt quantizes the rows of x (int8, one fp32 scale a row).
    """
    unpacked: Num = 0
    bits = setting.matmul_bits
    if setting.quantization == "nf4" and layer.name.rpartition(".")[2] != "lm_head":
        unpacked = layer.ins[1] * layer.outs[1] * bits // 8
    elif setting.quantization == "int8" and layer.name.rpartition(".")[2] != "lm_head":
        unpacked = x.elements() + out * 4
    return tape.op(
        layer.name, tape.cast(x, bits), elements=out, bits=bits, temp=unpacked, back_temp=unpacked
    )


def _adapted(
    tape: Tape, setting: Setting, x: Value, y: Value, layer: Linear, adapter: Adapter
) -> Value:
    """result + lora_B(lora_A(dropout(x))) * scaling (PEFT 0.21.2 tuners/lora/layer.py)."""
    rows = x.elements() // layer.ins[1]
    bits = setting.matmul_bits if setting.autocast else adapter.bits
    path = tape.cast(x, adapter.bits)
    if adapter.dropout:
        path = dropout(tape, path)
    path = tape.cast(path, bits)

    def project(ins: Value, size_in: Num, size_out: Num, name: str) -> Value:
        w = tape.param(f"{layer.name}.{name}", size_in * size_out, adapter.bits)
        if bits != adapter.bits:
            w = tape.op(f"{layer.name}.{name}.to", w, bits=bits)
        return tape.op(
            f"{layer.name}.{name}", ins, w, elements=rows * size_out, bits=bits, saves=(ins, w)
        )

    low = project(path, layer.ins[1], adapter.rank, "lora_A")
    high = project(low, adapter.rank, layer.outs[1], "lora_B")
    scaled = tape.op(f"{layer.name}.scaled", high)
    total = tape.op(f"{layer.name}.sum", y, scaled, bits=max(y.bits, scaled.bits), passes=True)
    return tape.cast(total, y.bits)


def dropout(tape: Tape, x: Value) -> Value:
    """torch's fused dropout keeps a boolean mask."""
    mask = tape.value(f"{x.name}.mask", x.elements(), 8, grad=False)
    return tape.op(f"{x.name}.dropout", x, saves=(mask,))


def maybe_dropout(tape: Tape, setting: Setting, x: Value, rate: float) -> Value:
    """Dropout where its rate is above zero."""
    return dropout(tape, x) if rate > 0 and setting.training else x


def add(tape: Tape, a: Value, b: Value, name: str = "residual") -> Value:
    """a + b: keeps nothing, and its gradient is the same tensor for both."""
    return tape.op(name, a, b, bits=max(a.bits, b.bits), passes=True)


def multiply(tape: Tape, a: Value, b: Value, name: str) -> Value:
    """a · b keeps each factor that the other's gradient needs.

    Where the factors differ in width, the narrower one's gradient is made wide, then cast.
    """
    saves = [x for x, other in ((a, b), (b, a)) if other.grad]
    bits = max(a.bits, b.bits)
    work = a.elements() * bits // 8 if a.bits != b.bits else 0
    return tape.op(name, a, b, bits=bits, saves=saves, back_temp=work)


def row_sum_workspace(rows: Num, columns: int) -> Num:
    """Bytes that a sum over rows needs: the gradient of a bias, or of a norm's weight.

    torch 2.11 ATen/native/cuda/Reduce.cuh:1040 (setReduceConfig), which is what an H200 was seen
    to take: threads stand 32 wide (fewer where there are few columns), 128 to a block, and add 4
    columns each. Where a thread would add 256 rows or more, several blocks share a column and
    leave fp32 partial sums: as many as fill the card (132 multiprocessors of 16 blocks), but with
    16 rows for each thread and no more than 256.
    """
    wide = min(32, 1 << (max(int(columns) // 4, 1).bit_length() - 1))
    grid = ceil_div(columns, 4 * wide)
    each = ceil_div(rows, 128 // wide)
    blocks = smaller(ceil_div(132 * 16, grid), ceil_div(each, 16))
    size = columns * (16 * wide) * larger(blocks, ceil_div(each, 256))
    return choose(each >= 256, size, 0)


def gain(tape: Tape, x: Value, weight: Value, width: int, name: str) -> Value:
    """x · weight, one weight a column: its gradient is made for every row, then summed."""
    work: Num = 0
    if weight.grad:
        work = x.bytes + row_sum_workspace(x.elements() // width, width)
    saves = [v for v, other in ((x, weight), (weight, x)) if other.grad]
    bits = max(x.bits, weight.bits)
    return tape.op(name, x, weight, bits=bits, saves=saves, back_temp=work)


def scale(tape: Tape, x: Value, name: str) -> Value:
    """x times a constant."""
    return tape.op(name, x)
