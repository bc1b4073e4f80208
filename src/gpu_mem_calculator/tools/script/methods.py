"""What a script does to its model, the model's parts and configuration, its trainer and optimizer.

Each method either changes what is known of the object (honoured), or has a row in rows.toml, or is
not understood, and said to be so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .accounting import account, honour
from .model_methods import MODEL_METHODS, Handler, require_gradient
from .record import FREE, UNCLEAR
from .rows import row
from .values import UNKNOWN, Arguments, ScriptFunction, ScriptWorld, Thing


def call_method(world: ScriptWorld, owner: Thing, name: str, arguments: Arguments) -> Any:
    """A method of an object that takes memory."""
    handlers = METHODS.get(owner.kind, {})
    if name in handlers:
        return handlers[name](world, owner, arguments)
    account(world, arguments, row(owner.kind, name))
    if owner.kind in ("model", "part"):
        return _result(owner, name, arguments)
    return owner if owner.kind == "accelerator" and name == "unwrap_model" else UNKNOWN


def _result(owner: Thing, name: str, arguments: Arguments) -> Any:
    """What a method of a model returns: itself, or a part of it."""
    model = owner if owner.kind == "model" else owner.model
    if name in ("train", "eval", "merge_and_unload", "unload", "get_base_model", "apply"):
        return owner
    if name in ("num_parameters", "get_memory_footprint", "numel", "size", "dim", "generate"):
        return UNKNOWN
    return Thing(kind="part", name=arguments.text, model=model, line=arguments.line)


def train(world: ScriptWorld, trainer: Thing, arguments: Arguments) -> Any:
    """trainer.train(): this is the run."""
    trainer.values["trained"] = arguments.line
    honour(world, arguments)
    return UNKNOWN


def evaluate(world: ScriptWorld, trainer: Thing, arguments: Arguments) -> Any:
    """trainer.evaluate() and predict(): a phase of its own, with the evaluation's batch."""
    trainer.values["evaluates"] = arguments.line
    honour(world, arguments)
    return UNKNOWN


def add_callback(world: ScriptWorld, trainer: Thing, arguments: Arguments) -> None:
    """A callback: its methods are followed."""
    trainer.values.setdefault("callbacks", []).extend(arguments.positional)
    world.seen(arguments.line, arguments.text, FREE, "its methods are followed on their own")


def prepare(world: ScriptWorld, owner: Thing, arguments: Arguments) -> Any:
    """accelerator.prepare(a, b): the same objects, under Accelerate."""
    honour(world, arguments)
    models = [one for one in arguments.positional if isinstance(one, Thing) and one.kind == "model"]
    owner.values.setdefault("models", []).extend(models)
    values = arguments.positional
    return values[0] if len(values) == 1 else list(values)


def backward(world: ScriptWorld, owner: Thing, arguments: Arguments) -> None:
    """accelerator.backward(loss)."""
    owner.values["backward"] = arguments.line
    world.found.facts["loader"] = world.loaders[-1] if world.loaders else None
    honour(world, arguments)


def clip(world: ScriptWorld, owner: Thing, arguments: Arguments) -> Any:
    """accelerator.clip_grad_norm_."""
    owner.values["clipped"] = True
    honour(world, arguments)
    return UNKNOWN


def unwrapped(world: ScriptWorld, owner: Thing, arguments: Arguments) -> Any:
    """accelerator.unwrap_model(model) is the model."""
    account(world, arguments, row("accelerator", "unwrap_model"))
    return arguments.positional[0] if arguments.positional else UNKNOWN


def set_arguments(world: ScriptWorld, owner: Thing, arguments: Arguments) -> Thing:
    """`args.set_dataloader(...)` and its kind are not followed."""
    account(world, arguments, None)
    return owner


METHODS: Mapping[str, Mapping[str, Handler]] = {
    **MODEL_METHODS,
    "trainer": {
        "train": train,
        "evaluate": evaluate,
        "predict": evaluate,
        "add_callback": add_callback,
    },
    "accelerator": {
        "prepare": prepare,
        "prepare_model": prepare,
        "backward": backward,
        "clip_grad_norm_": clip,
        "unwrap_model": unwrapped,
    },
}


def set_attribute(
    world: ScriptWorld, owner: Thing, name: str, value: Any, line: int, text: str
) -> None:
    """An assignment to an attribute of an object that takes memory."""
    what = f"{text} = {_shown(value)}"
    where = Arguments(line=line, text=what)
    if name in ("requires_grad", "weight.requires_grad") and owner.kind in ("part", "model"):
        require_gradient(world, owner, value, line, what)
    elif owner.kind == "config" and name in ("_attn_implementation", "attn_implementation"):
        owner.values["attn_implementation"] = value
        honour(world, where)
    elif owner.kind == "config" and owner.model is None and row("config attribute", name) is None:
        owner.values[name] = value  # before a model is made of it
        owner.lines[name] = line
        honour(world, where)
    elif owner.kind == "config" and name == "use_cache" and owner.model is not None:
        owner.model.values["use_cache"] = value  # which a loop of one's own keeps
        account(world, where, row("config attribute", name))
    elif owner.kind == "part" and name == "data":
        # A dtype that `.to` gave was accounted for there.
        world.seen(line, what, FREE, "values are written into a tensor that is there")
    elif owner.kind == "trainer" and isinstance(value, ScriptFunction):
        world.seen(line, what, UNCLEAR, "the trainer's own method is replaced")
    else:
        account(world, where, row(f"{owner.kind} attribute", name))


def _shown(value: Any) -> str:
    if value is UNKNOWN or isinstance(value, Thing | ScriptFunction):
        return "..."
    return repr(value)[:30] if isinstance(value, str | int | float | None) else "..."
