"""The operations of a layer and of the head, as the engine's modelling code runs them.

The tapes are those from which memory is computed, so time and memory agree on what runs.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...ledger.remember import remembered
from ...models.arch.arch import Layer
from ...pytorch.autograd.compiled import compiled_tape
from ...pytorch.autograd.tape import Op, Tape
from ...pytorch.modelling.huggingface.head import head_walk
from ...pytorch.modelling.huggingface.layer import residual_bits
from ...pytorch.modelling.huggingface.layer import run_layer as run_transformers_layer
from ...pytorch.modelling.huggingface.setting import BlockSetting
from ...pytorch.modelling.megatron.layer import run_layer as run_megatron_layer
from ...pytorch.modelling.megatron.ops import MegatronSetting
from ...run.engine_row import MEGATRON_2
from ...run.run import Precision, Run
from ...training.engines import engine_row
from ...training.engines.megatron_deepspeed.layer import run_layer as run_megatron_2_layer
from ...training.engines.megatron_lm import options as megatron
from ...training.step.activations import setting as transformers_setting


def precision_of(run: Run, engine: str) -> Precision:
    """Bits of the weights that layers read, and of activations."""
    return engine_row(engine).precision(run)


def block_setting(run: Run, engine: str) -> BlockSetting:
    """How transformers' blocks run under an engine."""
    row = engine_row(engine)
    own_linear = row.zero_hooks and run.options.get("zero_stage") == 3
    setting = transformers_setting(row.as_computed(run), row.precision(run))
    return replace(setting, own_linear=own_linear)


def megatron_setting(run: Run, engine: str) -> MegatronSetting:
    """How Megatron's layers run under an engine."""
    if engine_row(engine).layers == MEGATRON_2:
        run = replace(run, options={"transformer_implementation": megatron.LOCAL, **run.options})
    return megatron.setting(run, selective=False)


def is_plain_torch(run: Run) -> bool:
    """Whether Megatron's layers run torch's kernels: its local ones, without fused softmax."""
    local = megatron.option(run, "transformer_implementation") == megatron.LOCAL
    return bool(local and not megatron.option(run, "masked_softmax_fusion"))


def layer_ops(run: Run, engine: str, layer: Layer, *, masked: bool = False) -> tuple[Op, ...]:
    """The operations of one layer."""
    row = engine_row(engine)
    if row.megatron:
        return _megatron_ops(megatron_setting(run, engine), layer, row.layers)
    setting = block_setting(run, engine)
    return _transformers_ops(setting, layer, masked or setting.compiled)


@remembered(64)
def _megatron_ops(setting: MegatronSetting, layer: Layer, layers: str) -> tuple[Op, ...]:
    tape = Tape()
    x = tape.value("layer.input", setting.local_tokens * setting.hidden, setting.bits)
    if layers == MEGATRON_2:
        run_megatron_2_layer(tape, setting, x, layer)
        return tuple(op for op in tape.ops if not _fused_by_jit(op))
    run_megatron_layer(tape, setting, x, layer)
    return tuple(tape.ops)


def _fused_by_jit(op: Op) -> bool:
    """Whether torch.jit runs an operation in the kernel that adds the residual: bias and dropout
    (model/transformer.py bias_dropout_add_fused_train). torch has no such fuser any more, and all
    public times of Megatron-DeepSpeed are from before.
    """
    inside = op.name.startswith("attn.")
    return op.name.endswith((".biased", ".dropped")) and not inside


@remembered(64)
def _transformers_ops(setting: BlockSetting, layer: Layer, masked: bool) -> tuple[Op, ...]:
    tape = Tape()
    bits = residual_bits(setting, layer)
    x = tape.value("layer.input", setting.tokens * setting.hidden, bits)
    y = run_transformers_layer(tape, setting, x, layer, masked=masked)
    if setting.compiled:
        tape = compiled_tape(tape, x, y)
    return tuple(tape.ops)


def head_ops(run: Run, engine: str) -> tuple[Op, ...]:
    """The operations of the head of transformers' models: final norm, logits, loss."""
    tape = Tape()
    head_walk(block_setting(run, engine), run.arch, tape)
    return tuple(tape.ops)
