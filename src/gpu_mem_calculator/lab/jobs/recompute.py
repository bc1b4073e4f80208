"""Activation checkpointing in a job: of whole layers, of every n-th one, or by operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from ...run.recompute import ATTENTION, EVERY_SECOND_MM
from ...run.run import Run
from ...runfile.resolve.record_checks import SELECTIVE
from ...runfile.text.errors import InputError
from ...tools.translation.arguments import tables
from ...training.step.layer_groups import CHECKPOINTED_POLICIES, layer_policy

TABLES = tables(__file__)
ATTENTION_OPERATIONS: list[str] = TABLES["attention_operations"]
CHILDREN: dict[str, list[str]] = TABLES["children"]


def recompute(run: Run, model: Any, layers: list[Any]) -> None:
    """Switch transformers' activation checkpointing on, for the layers that the run recomputes."""
    if run.recompute == "none":
        return
    if run.rule.modules:
        checkpoint = import_module("torch.utils.checkpoint").checkpoint
        for module in _chosen(run.rule.modules, layers):
            _call_through(module, partial(checkpoint, use_reentrant=False))
        return
    if run.recompute == "selective":
        setting = "training.activation_checkpointing='selective'"
        fix = "use 'full', training.recompute='op', or trace --function with your own policy"
        raise InputError(f"{setting} has no switch in transformers; {fix}")
    model.gradient_checkpointing_enable(_arguments(run), offload=run.rule.offload)
    for index, layer in enumerate(layers):
        layer.gradient_checkpointing = layer_policy(run, index) in CHECKPOINTED_POLICIES


def _chosen(names: tuple[str, ...], layers: list[Any]) -> list[Any]:
    """The attention and MLP modules of each layer, by the names that transformers gives them."""
    wanted = [child for name in names for child in CHILDREN[name]]
    modules = [
        [child for name, child in layer.named_children() if name in wanted] for layer in layers
    ]
    if any(len(found) != len(names) for found in modules):
        raise InputError(f"training.recompute of modules: the layers have no {' and '.join(names)}")
    return [module for found in modules for module in found]


def recompute_module(
    run: Run, layers: list[Any], checkpoint: Callable[..., Any] | None = None
) -> None:
    """Activation checkpointing for a user's module: its layers are called through `checkpoint`.

    Their hooks run inside it, as in transformers' layers. Without `checkpoint`, torch's is used.
    """
    if run.recompute == "none":
        return
    if run.recompute == "selective":
        raise InputError(SELECTIVE)
    torch_checkpoint = import_module("torch.utils.checkpoint").checkpoint
    function = checkpoint or partial(torch_checkpoint, **_arguments(run))
    if run.rule.offload:
        function = partial(_offloaded, function)
    for index, layer in enumerate(layers):
        chosen = index < len(layers) * run.recompute_quarters // 4
        if chosen and index % run.rule.every == run.rule.first:
            _call_through(layer, function)


def _offloaded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a checkpoint that keeps its inputs in pinned host RAM."""
    with import_module("torch.autograd.graph").save_on_cpu(pin_memory=True):
        return function(*args, **kwargs)


def _call_through(layer: Any, function: Callable[..., Any]) -> None:
    kind = type(layer)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(partial(kind.__call__, self), *args, **kwargs)

    layer.__class__ = type(kind.__name__, (kind,), {"__call__": call})


def _arguments(run: Run) -> dict[str, Any]:
    """Arguments of torch.utils.checkpoint.checkpoint."""
    arguments: dict[str, Any] = {"use_reentrant": run.reentrant}
    if not run.rule.early_stop:
        arguments["early_stop"] = False
    if run.recompute == "op":
        arguments["context_fn"] = partial(_contexts, run.rule.keeps)
    return arguments


def _contexts(keeps: tuple[str, ...]) -> Any:
    """torch's two contexts of a checkpoint that keeps results of operations, for one call of it.

    Matrix products without a bias are counted over the layer, and every second one is recomputed.
    """
    checkpoint = import_module("torch.utils.checkpoint")
    aten = import_module("torch").ops.aten
    kept = {getattr(aten, name).default for name in ATTENTION_OPERATIONS if ATTENTION in keeps}
    products, policies = Counter[bool](), checkpoint.CheckpointPolicy

    def policy(context: Any, function: Any, *_: Any, **__: Any) -> Any:
        if function is aten.mm.default:
            products[context.is_recompute] += 1
            odd = products[context.is_recompute] % 2 == 1
            keep = odd and EVERY_SECOND_MM in keeps
        else:
            keep = function in kept
        return policies.MUST_SAVE if keep else policies.PREFER_RECOMPUTE

    return checkpoint.create_selective_checkpoint_contexts(policy)
