"""What a script does to its model, the model's parts and configuration, its trainer and optimizer.

Each method either changes what is known of the object (honoured), or has a row in rows.toml, or is
not understood, and said to be so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from .definitions import ScriptWorld
from .record import FREE, UNCLEAR
from .rows import account, honour, limit, row
from .values import DTYPES, UNKNOWN, Arguments, ScriptFunction, Thing, is_thing

Handler = Callable[[ScriptWorld, Thing, Arguments], Any]
METHODS: dict[str, dict[str, Handler]] = {
    kind: {} for kind in ("model", "part", "trainer", "accelerator", "optimizer")
}
ALL_WIDE = "4*weights"  # at most all weights are wide
CASTS = {"half": "float16", "float": "float32", "bfloat16": "bfloat16"}  # methods of a tensor
SHORT = {"half": "float16", "float": "float32", "double": "float64"}
SAME = ("train", "eval", "merge_and_unload", "unload", "get_base_model", "apply")
NUMBERS = ("num_parameters", "get_memory_footprint", "numel", "size", "dim", "generate")


def handles(kind: str, *names: str) -> Callable[[Handler], Handler]:
    """Make a function the one that methods of a kind of object are handled by."""

    def register(handler: Handler) -> Handler:
        METHODS[kind] |= dict.fromkeys(names, handler)
        return handler

    return register


def call_method(world: ScriptWorld, owner: Thing, name: str, arguments: Arguments) -> Any:
    """A method of an object that takes memory."""
    if name in METHODS[owner.kind]:
        return METHODS[owner.kind][name](world, owner, arguments)
    account(world, arguments, row(owner.kind, name))
    if owner.kind not in ("model", "part") or name in NUMBERS:
        return UNKNOWN
    if name in SAME:
        return owner
    model = owner if owner.kind == "model" else owner.model
    return Thing(kind="part", name=arguments.text, model=model, line=arguments.line)


# Of a model.


@handles("model", "gradient_checkpointing_enable")
def enable_checkpointing(world: ScriptWorld, model: Thing, arguments: Arguments) -> None:
    """Checkpointing (modeling_utils.py), which is not reentrant unless asked for."""
    settings = arguments.get("gradient_checkpointing_kwargs", 0)
    model.values["checkpointing"] = True
    model.values["checkpointing_kwargs"] = settings if isinstance(settings, Mapping) else None
    honour(world, arguments)
    if arguments.get("every_n_layers", 1, 1) != 1:
        limit(world, arguments, "only some layers are computed again", saves=False)
    if arguments.get("offload", 2, False):
        why = "saved activations lie on the host"
        limit(world, arguments, why, adds=False, saves="activations")


@handles("model", "gradient_checkpointing_disable")
def disable_checkpointing(world: ScriptWorld, model: Thing, arguments: Arguments) -> None:
    """No checkpointing from here on."""
    model.values["checkpointing"] = False
    honour(world, arguments)


@handles("model", "resize_token_embeddings")
def resize(world: ScriptWorld, model: Thing, arguments: Arguments) -> Thing:
    """resize_token_embeddings(N, pad_to_multiple_of): the rows of the embedding and the head."""
    rows = arguments.get("new_num_tokens", 0)
    multiple = arguments.get("pad_to_multiple_of", 1)
    if isinstance(rows, int) and not isinstance(rows, bool) and rows > 0:
        if isinstance(multiple, int) and multiple > 0:
            rows = -(-rows // multiple) * multiple
        model.values["vocab"] = rows
        honour(world, arguments)
    elif rows is not None or multiple is not None:
        model.values["resized"] = arguments
    return Thing(kind="part", name="embedding", model=model, line=arguments.line)


@handles("model", "to", "cuda")
def convert(world: ScriptWorld, model: Thing, arguments: Arguments) -> Thing:
    """`model.to(...)`: another dtype, or only another place."""
    words = [arguments.get("dtype"), arguments.get("device"), *arguments.positional]
    dtype = next((one for one in words if isinstance(one, str) and one in DTYPES), None)
    if dtype is None and "dtype" in arguments.named:
        limit(world, arguments, "the script computes the dtype when it runs")
    elif dtype is None:
        why = "the model is moved to the GPU, where Trainer would move it"
        world.seen(arguments.line, arguments.text, FREE, why)
        model.values.setdefault("moved", arguments.line)
    elif model.values.get("quantization"):
        why = "weights that are not quantized get another dtype"
        limit(world, arguments, why, adds=ALL_WIDE, saves=False)
    else:
        model.values["dtype"] = SHORT.get(dtype, dtype)  # of all weights, from here on
        honour(world, arguments)
    return model


@handles("model", "compile")
def compile_model(world: ScriptWorld, model: Thing, arguments: Arguments) -> Thing:
    """torch.compile(model) and model.compile()."""
    model.values["compile"] = arguments.get("mode", None, True) or True
    if arguments.get("backend", None, "inductor") != "inductor":
        limit(world, arguments, "only inductor is modelled")
    else:
        honour(world, arguments)
    return model


@handles("model", "add_adapter")
def add_adapter(world: ScriptWorld, model: Thing, arguments: Arguments) -> None:
    """model.add_adapter(LoraConfig(...)) of transformers."""
    every = arguments.things("peft")
    if every:
        model.values["peft"] = every[0]
        honour(world, arguments)
    else:
        limit(world, arguments, "the adapters are not shown")


@handles("model", "forward", "__call__")
def forward(world: ScriptWorld, model: Thing, arguments: Arguments) -> Thing:
    """`model(**batch)`: a forward pass of a loop of one's own."""
    honour(world, arguments)
    model.values["forward"] = arguments.line
    if "use_cache" in arguments.named:
        model.values["use_cache"] = arguments.named["use_cache"]
    return Thing(kind="output", name="output", model=model, line=arguments.line)


# Of a model and of its parts.


@handles("model", "requires_grad_")
@handles("part", "requires_grad_")
def freeze(world: ScriptWorld, owner: Thing, arguments: Arguments) -> Thing:
    """requires_grad_(False) of a model or a part of it."""
    value = arguments.get("requires_grad", 0, True)
    require_gradient(owner, value, arguments.line, arguments.text)
    return owner


def require_gradient(owner: Thing, value: Any, line: int, text: str) -> None:
    """Note which weights are trained: the whole model, or an unknown part of it."""
    model = owner if owner.kind == "model" else owner.model
    if model is not None:
        changes = model.values.setdefault("gradients", [])
        changes.append((line, text, value, model.values.get("peft") is not None))


@handles("part", "to", "cuda")
def convert_part(world: ScriptWorld, part: Thing, arguments: Arguments) -> Thing:
    """`part.to(...)`: some weights in another dtype."""
    dtypes = [one for one in arguments.every() if isinstance(one, str) and one in DTYPES]
    if not dtypes:
        why = "it stays on its GPU, or moves there as the whole model does"
        world.seen(arguments.line, arguments.text, FREE, why)
    else:
        wide = SHORT.get(dtypes[0], dtypes[0]) in ("float32", "float64")
        why = f"some weights are cast to {dtypes[0]}"
        limit(world, arguments, why, adds=ALL_WIDE if wide else False, saves=not wide)
    return part


def _cast(
    convert_to: Handler, dtype: str, world: ScriptWorld, owner: Thing, arguments: Arguments
) -> Any:
    """`owner.half()` is `owner.to(torch.float16)`."""
    return convert_to(world, owner, replace(arguments, positional=[dtype]))


for _name, _dtype in CASTS.items():
    METHODS["model"][_name] = partial(_cast, convert, _dtype)
    METHODS["part"][_name] = partial(_cast, convert_part, _dtype)

# Of a trainer and of an accelerator.


def _noted(key: str) -> Handler:
    """Notes the line of a call that is a phase of the run, or that changes one."""

    def note(world: ScriptWorld, owner: Thing, arguments: Arguments) -> Any:
        owner.values[key] = arguments.line
        honour(world, arguments)
        return UNKNOWN

    return note


METHODS["trainer"] |= {"train": _noted("trained"), "evaluate": _noted("evaluates")}
METHODS["trainer"]["predict"] = METHODS["trainer"]["evaluate"]
METHODS["accelerator"]["clip_grad_norm_"] = _noted("clipped")


@handles("trainer", "add_callback")
def add_callback(world: ScriptWorld, trainer: Thing, arguments: Arguments) -> None:
    """A callback: its methods are followed."""
    trainer.values.setdefault("callbacks", []).extend(arguments.positional)
    world.seen(arguments.line, arguments.text, FREE, "its methods are followed on their own")


@handles("accelerator", "prepare", "prepare_model")
def prepare(world: ScriptWorld, owner: Thing, arguments: Arguments) -> Any:
    """accelerator.prepare(a, b): the same objects, under Accelerate."""
    honour(world, arguments)
    values = arguments.positional
    owner.values.setdefault("models", []).extend(one for one in values if is_thing(one, "model"))
    return values[0] if len(values) == 1 else list(values)


@handles("accelerator", "backward")
def backward(world: ScriptWorld, owner: Thing, arguments: Arguments) -> None:
    """accelerator.backward(loss)."""
    owner.values["backward"] = arguments.line
    world.found.facts["loader"] = world.loaders[-1] if world.loaders else None
    honour(world, arguments)


@handles("accelerator", "unwrap_model")
def unwrapped(world: ScriptWorld, owner: Thing, arguments: Arguments) -> Any:
    """accelerator.unwrap_model(model) is the model."""
    account(world, arguments, row("accelerator", "unwrap_model"))
    return arguments.first


def set_attribute(
    world: ScriptWorld, owner: Thing, name: str, value: Any, line: int, text: str
) -> None:
    """An assignment to an attribute of an object that takes memory."""
    what = f"{text} = {_shown(value)}"
    where = Arguments(line=line, text=what)
    if name in ("requires_grad", "weight.requires_grad") and owner.kind in ("part", "model"):
        require_gradient(owner, value, line, what)
    elif owner.kind == "config" and name in ("_attn_implementation", "attn_implementation"):
        owner.values["attn_implementation"] = value
        honour(world, where)
    elif owner.kind == "config" and owner.model is None and row("config attribute", name) is None:
        owner.values[name] = value  # before a model is made of it
        owner.lines[name] = line
        honour(world, where)
    elif owner.kind == "part" and name == "data":
        # A dtype that `.to` gave was accounted for there.
        world.seen(line, what, FREE, "values are written into a tensor that is there")
    elif owner.kind == "trainer" and isinstance(value, ScriptFunction):
        world.seen(line, what, UNCLEAR, "the trainer's own method is replaced")
    else:
        if owner.kind == "config" and name == "use_cache" and owner.model is not None:
            owner.model.values["use_cache"] = value  # which a loop of one's own keeps
        account(world, where, row(f"{owner.kind} attribute", name))


def _shown(value: Any) -> str:
    return repr(value)[:30] if isinstance(value, str | int | float | None) else "..."
